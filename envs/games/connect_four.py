"""Connect four, many games at a time; for the interface see `trainer.envs.games`.

Two players in turn drop a piece into one of 7 columns of 6 cells, seat 0 first; four in a row, column or diagonal win,
a full board is a draw. Actions are columns. The winner gets 1, the loser -1, in a draw both get 0. The observation is
bool [2, 6, 7]: the seat's own pieces, then the opponent's, the top row first. With the encoding `threats` it is bool
[5, 6, 7], and has also the empty cells that would complete four of the seat's own pieces, those that would complete
four of the opponent's, and the cell where the next piece of each column would land.

A player's pieces are an integer: the cell in column c at height h from the bottom is bit 7 * c + h. The seventh bit of
a column is always 0, so that no line leads from the top of a column to the bottom of the next one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.actions import DiscreteAction
from trainer.envs.games import board_picture
from trainer.envs.games.rows import Rows, choice, chosen, look, require, to_advance
from trainer.envs.spec import EnvSpec, Leaf
from trainer.envs.state import set_state, state_of

NAME = "connect_four"
ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS
STRIDE = ROWS + 1
PLANES = {"pieces": 2, "threats": 5}  # of the encodings
DIRECTIONS = (1, STRIDE, STRIDE - 1, STRIDE + 1)  # up, right, right and down, right and up
_BOTTOM = np.int64(1) << STRIDE * np.arange(COLUMNS)
_COLUMN = (2**ROWS - 1) * _BOTTOM
_TOP = _BOTTOM << ROWS - 1
_BOARD = np.int64(_COLUMN.sum())
# Bit of each cell in the order of the observation, the top row first, int64 [6, 7].
_BITS = _BOTTOM << (ROWS - 1 - np.arange(ROWS))[:, None]


class ConnectFour:
    """`num_games` games; the arrays and methods are those of `trainer.envs.games`.

    Attributes:
        num_actions: 7, the columns from left to right.
        pieces: of each seat as bits, int64 [num_games, 2]; see the beginning of this file.
    """

    def __init__(self, num_games: int, num_players: int = 2, encoding: str = "pieces") -> None:
        """Create them in the state after `reset(0)`.

        Args:
            num_games: number of games.
            num_players: 2.
            encoding: one of `PLANES`.

        Raises:
            EnvError: the settings are impossible.
        """
        require(num_games >= 1, f"{NAME}: num_games={num_games} must be at least 1.")
        choice(NAME, "num_players", num_players, (2,))
        choice(NAME, "encoding", encoding, PLANES)
        n, shape = num_games, (PLANES[encoding], ROWS, COLUMNS)
        self.num_games, self.num_players, self.num_actions = n, 2, COLUMNS
        self.spec = EnvSpec(
            NAME,
            (Leaf("observation", shape, "bool", "binary"),),
            DiscreteAction(COLUMNS, has_mask=True),
            max_episode_steps=CELLS,
        )
        self.to_move = np.zeros(n, np.int64)
        self.action_mask = np.ones((n, COLUMNS), bool)
        self.rewards = np.zeros((n, 2), np.float32)
        self.over = np.zeros(n, bool)
        self.winner = np.full(n, -1)
        self.length = np.zeros(n, np.int64)
        self.pieces = np.zeros((n, 2), np.int64)
        self._every = np.arange(n)
        self._seen = {"observation": np.zeros((n, *shape), bool), "action_mask": np.ones((n, COLUMNS), bool)}

    def reset(self, seed: int | None = None) -> None:
        """Start every game. Nothing is random, so the seed does not matter."""
        self.reset_where(np.ones(self.num_games, bool))

    def reset_where(self, mask: NDArray[np.bool_]) -> None:
        """Start the games of a bool mask [N]."""
        self.rewards[:] = 0
        self.pieces[mask] = self.to_move[mask] = self.length[mask] = 0
        self.over[mask], self.winner[mask], self.action_mask[mask] = False, -1, True

    def step(self, action: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> None:
        """Advance games by one decision, as `trainer.envs.games` describes.

        Raises:
            EnvError: an action is illegal.
        """
        rows = to_advance(self._every, self.over, where)
        column = chosen(NAME, action, self.action_mask, rows)
        self.rewards[:] = 0
        player = self.to_move.take(rows)
        piece = landings(self.pieces.take(rows, 0).sum(1))[np.arange(len(rows)), column]
        pieces = self.pieces[rows, player] | piece
        self.pieces[rows, player] = pieces
        self.length[rows] += 1
        self.action_mask[rows, column] = (piece & _TOP.take(column)) == 0
        self.to_move[rows] = 1 - player
        won = wins(pieces)
        over = won | (self.length.take(rows) == CELLS)
        if over.any():
            ended, winners, mover = rows[over], rows[won], player[won]
            self.over[ended], self.action_mask[ended], self.to_move[ended] = True, True, player[over]
            self.winner[winners] = mover
            self.rewards[winners, mover], self.rewards[winners, 1 - mover] = 1, -1

    def observe(self, rows: Rows | None = None, seats: NDArray[np.int64] | None = None) -> dict[str, NDArray[Any]]:
        """Observations of seats, as `trainer.envs.games` describes."""
        rows, seats, _, seen = look(self, self._every, self._seen, rows, seats)
        mine, theirs = self.pieces[rows, seats], self.pieces[rows, 1 - seats]
        planes, out = [mine, theirs], seen["observation"]
        if out.shape[1] > len(planes):
            free = _BOARD & ~(mine | theirs)
            planes += [winning(mine) & free, winning(theirs) & free, landings(mine | theirs).sum(1) & _BOARD]
        for plane, bits in enumerate(planes):
            np.not_equal(bits[:, None, None] & _BITS, 0, out=out[:, plane])
        return seen

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one game, rgb uint8 [192, 224, 3]."""
        return board_picture.picture(self.pieces[index][:, None, None] & _BITS != 0)

    def text(self, index: int = 0) -> str:
        """One game as text: X and O are seats 0 and 1, below them the columns' actions."""
        board = board_picture.text(self.pieces[index][:, None, None] & _BITS != 0, "." * CELLS)
        return f"{board}\n{' '.join(map(str, range(COLUMNS)))}"

    def state(self) -> dict[str, Any]:
        """The state of all games, as tensors and plain values."""
        return state_of(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one."""
        set_state(self, state)


def landings(taken: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bit of the cell where the next piece of each column lands, int64 [M, 7]; the seventh bit if it is full.

    Args:
        taken: the pieces of both players, int64 [M].
    """
    # Adding a column's lowest bit to its pieces carries into the lowest free one.
    return (taken[:, None] & _COLUMN) + _BOTTOM


def wins(pieces: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether pieces have four in a line, bool [...]."""
    found = np.zeros(pieces.shape, bool)
    for step in DIRECTIONS:
        pairs = pieces & pieces >> step
        found |= (pairs & pairs >> 2 * step) != 0
    return found


def winning(pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells that would complete four in a line, as bits, int64 [...]; also taken cells, and cells beyond the board."""
    found = np.zeros_like(pieces)
    for step in DIRECTIONS:
        for place in range(4):  # of the missing piece in its line, from the low end
            line = np.full_like(pieces, -1)
            for other in range(4):
                if other != place:
                    shift = step * (other - place)
                    line &= pieces >> shift if shift > 0 else pieces << -shift
            found |= line
    return found
