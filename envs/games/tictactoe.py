"""Tic-tac-toe, many games at a time; for the interface see `trainer.envs.games`.

Two players in turn mark one of 3 x 3 cells, seat 0 first; three in a row, column or diagonal win, a full board is a
draw. Actions are cells in row-major order. The winner gets 1, the loser -1, in a draw both get 0. The observation is
bool [2, 3, 3]: the seat's own marks, then the opponent's.

The code of a position is a number in base 3, whose digit c is 0 if cell c is empty, 1 if it has a mark of the player to
move, and 2 if it has one of the other player.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.actions import DiscreteAction
from trainer.envs.games import board_picture
from trainer.envs.games.rows import Rows, choice, chosen, look, require, to_advance
from trainer.envs.spec import EnvSpec, Leaf
from trainer.envs.state import set_state, state_of

NAME = "tictactoe"
CELLS = 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_FULL = 2**CELLS - 1
_BITS = 1 << np.arange(CELLS)
_POWERS = 3 ** np.arange(CELLS)
# By the nine bits of a player's marks: the cells as bools, whether they win, and the number in base 3.
_BOARDS = (np.arange(_FULL + 1)[:, None] & _BITS) != 0
_WINS = np.array(
    [any((board & line) == line for line in (sum(1 << c for c in x) for x in LINES)) for board in range(512)]
)
_TERNARY = _BOARDS @ _POWERS


class TicTacToe:
    """`num_games` games; the arrays and methods are those of `trainer.envs.games`.

    Attributes:
        num_actions: 9, the cells in row-major order.
        marks: the cells of each seat, int64 [num_games, 2], cell c as bit c.
    """

    def __init__(self, num_games: int, num_players: int = 2) -> None:
        """Create them in the state after `reset(0)`.

        Args:
            num_games: number of games.
            num_players: 2.

        Raises:
            EnvError: the settings are impossible.
        """
        require(num_games >= 1, f"{NAME}: num_games={num_games} must be at least 1.")
        choice(NAME, "num_players", num_players, (2,))
        n = num_games
        self.num_games, self.num_players, self.num_actions = n, 2, CELLS
        self.spec = EnvSpec(
            NAME,
            (Leaf("observation", (2, 3, 3), "bool", "binary"),),
            DiscreteAction(CELLS, has_mask=True),
            max_episode_steps=CELLS,
        )
        self.to_move = np.zeros(n, np.int64)
        self.action_mask = np.ones((n, CELLS), bool)
        self.rewards = np.zeros((n, 2), np.float32)
        self.over = np.zeros(n, bool)
        self.winner = np.full(n, -1)
        self.length = np.zeros(n, np.int64)
        self.marks = np.zeros((n, 2), np.int64)
        self._every = np.arange(n)
        self._seen = {"observation": np.zeros((n, 2, 3, 3), bool), "action_mask": np.ones((n, CELLS), bool)}

    @property
    def codes(self) -> NDArray[np.int64]:
        """Codes of the positions, int64 [num_games]."""
        mine = self.marks[self._every, self.to_move]
        others = self.marks[self._every, 1 - self.to_move]
        return _TERNARY[mine] + 2 * _TERNARY[others]

    def reset(self, seed: int | None = None) -> None:
        """Start every game. Nothing is random, so the seed does not matter."""
        self.reset_where(np.ones(self.num_games, bool))

    def reset_where(self, mask: NDArray[np.bool_]) -> None:
        """Start the games of a bool mask [N]."""
        self.rewards[:] = 0
        self.marks[mask] = self.to_move[mask] = self.length[mask] = 0
        self.over[mask], self.winner[mask], self.action_mask[mask] = False, -1, True

    def step(self, action: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> None:
        """Advance games by one decision, as `trainer.envs.games` describes.

        Raises:
            EnvError: an action is illegal.
        """
        rows = to_advance(self._every, self.over, where)
        cell = chosen(NAME, action, self.action_mask, rows)
        self.rewards[:] = 0
        player = self.to_move.take(rows)
        self.marks[rows, player] |= _BITS.take(cell)
        self.length[rows] += 1
        self.action_mask[rows, cell] = False
        self.to_move[rows] = 1 - player
        won = _WINS.take(self.marks[rows, player])
        _end(self, rows, player, won, won | (self.length.take(rows) == CELLS))

    def observe(self, rows: Rows | None = None, seats: NDArray[np.int64] | None = None) -> dict[str, NDArray[Any]]:
        """Observations of seats, as `trainer.envs.games` describes."""
        rows, seats, _, seen = look(self, self._every, self._seen, rows, seats)
        for plane, seat in enumerate((seats, 1 - seats)):
            seen["observation"][:, plane] = _BOARDS.take(self.marks[rows, seat], 0).reshape(-1, 3, 3)
        return seen

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """A picture of one game, rgb uint8 [96, 96, 3]."""
        return board_picture.picture(_BOARDS[self.marks[index]].reshape(2, 3, 3))

    def text(self, index: int = 0) -> str:
        """One game as text: X and O are seats 0 and 1, free cells their actions."""
        return board_picture.text(_BOARDS[self.marks[index]].reshape(2, 3, 3), "012345678")

    def state(self) -> dict[str, Any]:
        """The state of all games, as tensors and plain values."""
        return state_of(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one."""
        set_state(self, state)


def _end(
    game: TicTacToe, rows: Rows, player: NDArray[np.int64], won: NDArray[np.bool_], over: NDArray[np.bool_]
) -> None:
    if not over.any():
        return
    ended, winners, mover = rows[over], rows[won], player[won]
    game.over[ended], game.action_mask[ended], game.to_move[ended] = True, True, player[over]
    game.winner[winners] = mover
    game.rewards[winners, mover], game.rewards[winners, 1 - mover] = 1, -1


@functools.cache
def solution() -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Solve tic-tac-toe.

    Returns:
        For each code of a position: its value for the player to move (1 won, 0 drawn, -1 lost), int64 [19683], and the
        actions that reach it, bool [19683, 9]; 0 and False for codes that are no position with a player to move.
    """
    values, best = np.zeros(3**CELLS, np.int64), np.zeros((3**CELLS, CELLS), bool)
    done: dict[tuple[int, int], int] = {}

    def value(mine: int, other: int) -> int:
        """Value of a position for the player to move, whose marks are `own`."""
        if _WINS[other]:
            return -1
        if mine | other == _FULL:
            return 0
        if (mine, other) not in done:
            outcome = {c: -value(other, mine | 1 << c) for c in range(CELLS) if not (mine | other) >> c & 1}
            done[mine, other] = top = max(outcome.values())
            code = _TERNARY[mine] + 2 * _TERNARY[other]
            values[code] = top
            best[code, [c for c, reached in outcome.items() if reached == top]] = True
        return done[mine, other]

    value(0, 0)
    return values, best


def best_actions() -> NDArray[np.bool_]:
    """For each code of a position, the actions that reach its value, bool [19683, 9]."""
    return solution()[1]
