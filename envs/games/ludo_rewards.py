"""What Ludo pays, as tables by cells; the head of `trainer.envs.games.ludo` says when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.envs.games import ludo_track
from trainer.envs.games.ludo_track import BASE, GOAL, NUM_TOKENS

REWARDS = ("sparse", "dense", "progress")
DENSE = {
    "win": 200.0,
    "loss": -50.0,
    "square": 0.01,  # for each that a token moves on; leaving base is none
    "leave_base": 2.0,
    "enter_safe": 1.0,  # from a square that is not safe, or from base
    "goal": 15.0,
    "capture": 10.0,  # for each token
    "captured": -10.0,  # for each token
}
BASE_SQUARES = 8  # that the way out of base counts for, as it takes a six

# Share of a player's whole way that a token at a cell has behind it: a potential.
_CELLS = np.arange(GOAL + 1)
BEHIND = ((_CELLS + BASE_SQUARES * (_CELLS > BASE)) / (GOAL + BASE_SQUARES) / NUM_TOKENS).astype(np.float32)


def of_moves(num_players: int) -> NDArray[np.float32]:
    """What a move pays but for captures and the end, by old and new cell, float32 [58, 58]."""
    old, new = np.mgrid[: GOAL + 1, : GOAL + 1]
    safe = ludo_track.safe_cells(num_players)
    paid = np.where(old == BASE, DENSE["leave_base"], DENSE["square"] * (new - old))
    paid = paid + DENSE["enter_safe"] * (safe[new] & ~safe[old]) + DENSE["goal"] * (new == GOAL)
    return paid.astype(np.float32)


def lead(cells: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Share of the way that each seat has behind it, less the mean of the others', float32 [M, P].

    Args:
        cells: of all tokens, uint8 [M, P, 4].
    """
    behind = BEHIND.take(cells).sum(2)
    others = (behind.sum(1, keepdims=True) - behind) / np.float32(cells.shape[1] - 1)
    lead: NDArray[np.float32] = behind - others
    return lead
