"""Ludo's tokens: where they stand, which of them dice can move, and whom they capture.

A *seat* in the arguments below is an index into arrays of [game * P + player].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainer.envs.games import ludo_track
from trainer.envs.games.ludo_track import BASE, FACES, GOAL, NUM_SLOTS, NUM_TOKENS
from trainer.envs.games.rows import Rows, require

_TARGETS = ludo_track.targets().reshape(-1)  # [cell * 8 + face]
_ALL_IN_GOAL = np.full(NUM_TOKENS, GOAL, np.uint8).view(np.uint32)[0]


def _of_pairs(table: NDArray[Any]) -> NDArray[Any]:
    """For two tokens' cells, side by side in memory and read as uint16: both entries of a table by cell, [..., 2]."""
    pairs = np.arange((GOAL + 1) * 257, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    return table[np.minimum(pairs, GOAL)]


_PAIR_FACES = np.bitwise_or.reduce(_of_pairs(ludo_track.legal_faces()), axis=1)
# By face and pair, which of both tokens it moves: two bools read as uint16, [face * number of pairs + pair].
_PAIR_LEGAL = np.concatenate(
    [
        np.ascontiguousarray(_of_pairs(ludo_track.targets()[:, face] != ludo_track.NOWHERE)).view(np.uint16).ravel()
        for face in range(FACES + 1)
    ]
)


class Board:
    """The tokens of N games of P players.

    Attributes:
        num_players: P.
        open: by how many seats further on an opponent sits, and by cell: its cell on the same square, where it can be
            captured there; uint8 [P, 256].
        cells: of all tokens, uint8 [N * P * 4].
        fours: the same memory, the cells of a player as one number, uint32 [N * P].
        pairs: the same memory, the cells of two tokens as one number, uint16 [N * P, 2].
    """

    def __init__(self, num_games: int, num_players: int) -> None:
        self.num_players = num_players
        self.open = ludo_track.open_crossings(num_players)
        self.cells = np.zeros(num_games * num_players * NUM_TOKENS, np.uint8)
        self.fours = self.cells.view(np.uint32)
        self.pairs = self.cells.view(np.uint16).reshape(-1, 2)

    def of_games(self) -> NDArray[np.uint8]:
        """The cells, uint8 [N, P, 4]; a view."""
        return self.cells.reshape(-1, self.num_players, NUM_TOKENS)

    def put(self, index: int, tokens: ArrayLike) -> None:
        """Set the coordinates of a game's tokens, int [P, 4].

        Raises:
            EnvError: tokens cannot stand so, or all of a player's are in the goal.
        """
        placed = np.asarray(tokens)
        fits = placed.shape == (self.num_players, NUM_TOKENS) and placed.min() >= -1 and placed.max() <= GOAL - 1
        require(fits, f"ludo: tokens must be {self.num_players} x 4 coordinates from -1 to 56.")
        require(not (placed == GOAL - 1).all(1).any(), "ludo: this game would be over already.")
        self.of_games()[index] = placed + 1

    def seen_from(self, rows: Rows, seats: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The cells of the games `rows`, int64 [M], with the players in turn from `seats`, int64 [M]; [M, P, 4]."""
        order = rows[:, None] * self.num_players + (seats[:, None] + np.arange(self.num_players)) % self.num_players
        return (
            self.cells.reshape(-1, NUM_TOKENS).take(order.ravel(), 0).reshape(len(rows), self.num_players, NUM_TOKENS)
        )

    def move(
        self, seat: NDArray[np.int64], token: NDArray[np.int64], face: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Move a token of each seat by a die's face; returns the cells before and after, uint8 [M] each."""
        moved = seat * NUM_TOKENS + token
        old = self.cells.take(moved)
        new: NDArray[np.uint8] = _TARGETS.take(old.astype(np.int64) << 3 | face)
        self.cells[moved] = new
        return old, new

    def sort(self, rows: Rows) -> None:
        """Number each player's tokens again, from the farthest one."""
        cells = self.of_games()
        cells[rows] = np.sort(cells[rows], 2)[..., ::-1]

    def won(self, seat: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether all tokens of each seat are in the goal, bool [M]."""
        won: NDArray[np.bool_] = self.fours.take(seat) == _ALL_IN_GOAL
        return won

    def movable(self, seat: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Faces that move any token of each seat, face f as bit f - 1; uint8, shaped as `seat`."""
        pairs = self.pairs.take(seat, 0)
        faces: NDArray[np.uint8] = _PAIR_FACES.take(pairs[..., 0]) | _PAIR_FACES.take(pairs[..., 1])
        return faces

    def legal(self, seat: NDArray[np.int64], faces: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which actions, 4 * slot + token, dice allow: bool [M, 12] for faces [M, 3], 0 where there is no die."""
        pairs = self.pairs.take(seat, 0)[:, None, :]
        legal = _PAIR_LEGAL.take(faces[..., None] * len(_PAIR_FACES) + pairs)
        return legal.reshape(len(seat), NUM_SLOTS * NUM_TOKENS // 2).view(bool)

    def capture(
        self, rows: Rows, player: NDArray[np.int64], new: NDArray[np.uint8]
    ) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]]:
        """Send the tokens back to base that moves to the cells `new`, uint8 [M], capture.

        Yields:
            For one opponent of each game after the other: in which games there were any, bool [M]; of these games the
            opponents' seats, int64 [K]; and the numbers of tokens, int64 [K].
        """
        for ahead in range(1, self.num_players):
            seat = rows * self.num_players + (player + ahead) % self.num_players
            hit = self.fours.take(seat).view(np.uint8).reshape(-1, NUM_TOKENS) == self.open[ahead].take(new)[:, None]
            caught = hit.view(np.uint32).ravel() != 0  # four bools at once
            if not caught.any():
                continue
            hit, seat = hit[caught], seat[caught]
            cells = self.cells.reshape(-1, NUM_TOKENS)
            cells[seat] = np.where(hit, BASE, cells[seat])
            yield caught, seat, hit.sum(1)
