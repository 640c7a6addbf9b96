"""Whose turn it is in Ludo: the turn passes until a seat has a legal move.

All functions take `to_move`, the seats to move, int64 [N], and the games that they are about, `rows`, int64 [M].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.envs.games.ludo_board import Board
from trainer.envs.games.ludo_dice import THROWS_AT_ONCE, Dice, faces_of, slots
from trainer.envs.games.rows import Rows


def legal_actions(board: Board, dice: Dice, to_move: NDArray[np.int64], rows: Rows) -> NDArray[np.bool_]:
    """The legal actions of the seats to move, bool [M, 12]."""
    seat = rows * board.num_players + to_move.take(rows)
    return board.legal(seat, slots(dice.queue.take(rows)))


def go_on(board: Board, dice: Dice, to_move: NDArray[np.int64], rows: Rows) -> None:
    """Pass the turn on where the seat to move has no legal move."""
    movable = board.movable(rows * board.num_players + to_move.take(rows))
    stuck = dice.without_a_move(rows, movable)
    if stuck.any():
        pass_on(board, dice, to_move, rows[stuck])


def pass_on(board: Board, dice: Dice, to_move: NDArray[np.int64], rows: Rows) -> None:
    """Let the next seats throw, until one of each game can move."""
    ahead = np.arange(1, THROWS_AT_ONCE + 1)[:, None]
    while len(rows):
        player = (to_move.take(rows) + ahead) % board.num_players
        throws = dice.throw(rows)
        can = board.movable(rows * board.num_players + player) & faces_of(throws) != 0
        first = can.argmax(0)
        column = np.arange(len(rows))
        found = can[first, column]
        done = rows if found.all() else rows[found]
        throw = throws[first, column]
        dice.keep(done, throw if found.all() else throw[found])
        # Where nobody could, four throws later it is the same seat's turn again: both 2 and 4 divide 4.
        to_move[done] = player[first, column][found]
        rows = rows[~found]
