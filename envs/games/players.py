"""Players: functions `player(game, generator, rows=None) -> action` that choose for the seat to move.

`rows`, int64 [M], are the games to choose in, by default all; the actions are int64 [M]. In a game that is over the
action is arbitrary and has no effect. `PLAYERS` lists the players of each game.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.games import connect_four, ludo_track, tictactoe
from trainer.envs.games.ludo_encodings import Consequences, consequences
from trainer.envs.games.ludo_track import BASE, GOAL, NUM_SLOTS, NUM_TOKENS
from trainer.envs.games.rows import Rows

Player = Callable[..., NDArray[np.int64]]


def random_player(game: Any, generator: np.random.Generator, rows: Rows | None = None) -> NDArray[np.int64]:
    """A legal action, each with the same probability."""
    mask = game.action_mask if rows is None else game.action_mask.take(rows, 0)
    return _any_of(mask, generator)


def ludo_heuristic(game: Any, generator: np.random.Generator, rows: Rows | None = None) -> NDArray[np.int64]:
    """The action with the highest of `ludo_scores`, of several the first; it uses no random numbers."""
    rows = np.arange(game.num_games) if rows is None else rows
    position = game.position(rows, game.to_move.take(rows))
    scores = ludo_scores(consequences(position), ludo_track.safe_cells(game.num_players))
    scores[~game.action_mask.take(rows, 0)] = -np.inf
    return scores.argmax(1)


def ludo_scores(found: Consequences, safe: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Scores of a simple player of Ludo for each action, float64 [M, 12].

    3 for a token into the goal, 2 for a capture, 1 for a token out of base (0.5 if an opponent is on the start), 0.4
    for entering a safe square, -0.35 for leaving one; minus the danger at the new square, plus half of the danger that
    the token escapes; a little for each square, more for a token that is far; if two tokens are in the goal, more for
    one that is ahead; less for a six that a token in base could use, for tokens on one square, and for a high face.

    Args:
        found: consequences of the actions.
        safe: cells without captures, bool [256].
    """
    old, new = found.old.astype(np.int64), found.new.astype(np.int64)
    from_base = old == BASE
    coordinate = (old - 1) / (GOAL - 1)
    score = 3.0 * (new == GOAL) + 2.0 * (found.captures > 0)
    score += from_base * np.where(found.own_start_taken, 0.5, 1.0)[:, None]
    score += 0.4 * (safe[new] & ~safe[old]) - 0.35 * (safe[old] & ~safe[new])
    score += 0.5 * np.maximum(found.danger_before - found.danger_after, 0.0) - found.danger_after
    score += ~from_base * (new - old) * (0.5 + 0.5 * coordinate) * 0.05
    mine = old[:, :NUM_TOKENS]
    waiting, finished = (mine == BASE).any(1), (mine == GOAL).sum(1)
    score -= 0.3 * (waiting[:, None] & (found.face == 6) & (old > 41) & (new < GOAL))
    score += 0.5 * (finished >= 2)[:, None] * ~from_base * coordinate
    score -= 0.1 * _together(mine, new)
    return score - 0.02 * found.face


def _together(mine: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of own tokens in play that share a square with another own one after each action, int64 [M, 12]."""
    # Of the three that stay, those on the square of one before them; and the moved one, if it joins one of them.
    action = np.arange(NUM_SLOTS * NUM_TOKENS) % NUM_TOKENS
    others = np.array([[k for k in range(NUM_TOKENS) if k != token] for token in action])  # [12, 3]
    first, second, third = (mine[:, others[:, k]] for k in range(NUM_TOKENS - 1))
    playing = [(cell % GOAL != 0) for cell in (second, third)]
    together = ((second == first) & playing[0]).astype(np.int64) + (((third == first) | (third == second)) & playing[1])
    joins = ((new == first) | (new == second) | (new == third)) & (new % GOAL != 0)
    return together + joins


def tictactoe_perfect(game: Any, generator: np.random.Generator, rows: Rows | None = None) -> NDArray[np.int64]:
    """An action with the best outcome against perfect play, each with the same probability."""
    rows = np.arange(game.num_games) if rows is None else rows
    best = tictactoe.best_actions().take(game.codes.take(rows), 0)
    return _any_of(best | game.over.take(rows)[:, None], generator)


def connect_four_heuristic(game: Any, generator: np.random.Generator, rows: Rows | None = None) -> NDArray[np.int64]:
    """A column that wins at once; else one where the opponent would win at once; else any legal one."""
    rows = np.arange(game.num_games) if rows is None else rows
    seats, landing = game.to_move.take(rows), connect_four.landings(game.pieces.take(rows, 0).sum(1))
    mask = legal = game.action_mask.take(rows, 0)
    for seat in (1 - seats, seats):  # the more urgent one last
        fours = legal & connect_four.wins(game.pieces[rows, seat][:, None] | landing)
        mask = np.where(fours.any(1)[:, None], fours, mask)
    return _any_of(mask, generator)


def _any_of(mask: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.int64]:
    # A random number for each action, from 1 on for legal ones and below 1 for others; the largest one is chosen.
    numbers = generator.random(mask.shape, np.float32)
    numbers += mask
    return numbers.argmax(1)


PLAYERS: dict[str, dict[str, Player]] = {
    "ludo": {"random": random_player, "heuristic": ludo_heuristic},
    "connect_four": {"random": random_player, "heuristic": connect_four_heuristic},
    "tictactoe": {"random": random_player, "perfect": tictactoe_perfect},
}
