"""Ludo's track as tables: what the rules, the encodings, the players and the picture look up.

A token's place is told in its player's own coordinates: -1 base, 0 start, 0 .. 50 loop, 51 .. 55 home column, 56 goal.
The tables are indexed by *cells*, which are coordinates + 1, so that 0 is the base and no index is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_TOKENS = 4
NUM_SLOTS = 3  # pending dice that can be chosen from
FACES = 6
SQUARES = 52  # of the track
BASE, START, HOME_COLUMN, GOAL = 0, 1, 52, 57  # cells; those before the home column are the loop
NUM_CELLS = 58
NOWHERE = 255  # a cell that no token is in
SAFE_COORDINATES = (0, 8, 13, 21, 26, 34, 39, 47)


def spacing(num_players: int) -> int:
    """Squares from one player's start to the next one's: 26 for two players, who sit opposite, 13 for four."""
    return SQUARES // num_players


def legal_faces() -> NDArray[np.uint8]:
    """By cell, the faces that move a token from there, face f as bit f - 1; uint8 [58]."""
    cell = np.arange(NUM_CELLS)
    legal = [np.where(cell == BASE, face == FACES, cell + face <= GOAL) for face in range(1, FACES + 1)]
    return np.sum([one.astype(np.uint8) << bit for bit, one in enumerate(legal)], axis=0).astype(np.uint8)


def targets() -> NDArray[np.uint8]:
    """Where a face leads from a cell, uint8 [58, 8], `NOWHERE` where it may not; face 0 is no die."""
    faces = legal_faces()
    table = np.full((NUM_CELLS, 8), NOWHERE, np.uint8)
    for face in range(1, FACES + 1):
        legal = faces >> (face - 1) & 1 == 1
        table[legal, face] = np.where(np.arange(NUM_CELLS) == BASE, START, np.arange(NUM_CELLS) + face)[legal]
    return table


def crossings(num_players: int) -> NDArray[np.uint8]:
    """The same square as another player's cell, uint8 [num_players, 256].

    Entry [k, cell] is for the player k seats further on; `NOWHERE` for the base, the home column, the goal, and for a
    square that this player's loop does not pass. Entry [0] is `NOWHERE` throughout.
    """
    table = np.full((num_players, 256), NOWHERE, np.uint8)
    for ahead in range(1, num_players):
        for cell in range(START, HOME_COLUMN):
            other = (cell - 1 - spacing(num_players) * ahead) % SQUARES + 1
            if other < HOME_COLUMN:
                table[ahead, cell] = other
    return table


def open_crossings(num_players: int) -> NDArray[np.uint8]:
    """As `crossings`, but `NOWHERE` on safe squares: where one can be captured by, or capture, that player."""
    table = crossings(num_players)
    table[:, np.add(SAFE_COORDINATES, 1)] = NOWHERE
    return table


def safe_cells(num_players: int) -> NDArray[np.bool_]:
    """Cells in play on which nobody can capture, bool [256]: safe squares, the home column, the goal.

    For two players the square before the opponent's start (own 25) is among them, as the opponent's loop leaves it out.
    """
    safe = np.zeros(256, bool)
    safe[START:NUM_CELLS] = (open_crossings(num_players)[1:, START:NUM_CELLS] == NOWHERE).all(0)
    return safe


def throws() -> NDArray[np.int64]:
    """The dice of the 216 equally likely results of three dice, int64 [216], 3 bits a die, the first lowest.

    The second die counts after a six only, and the third after two; three sixes are void, which is 0.
    """
    table = np.zeros(216, np.int64)
    for number in range(216):
        first, second, third = number // 36 + 1, number // 6 % 6 + 1, number % 6 + 1
        dice = [first] if first < 6 else [6, second] if second < 6 else [6, 6, third] if third < 6 else []
        table[number] = pack(dice)
    return table


def pack(dice: list[int]) -> int:
    """Pending dice as one number, 3 bits a die, the first lowest."""
    return sum(int(die) << 3 * i for i, die in enumerate(dice))


def unpack(queue: int) -> list[int]:
    """What `pack` packed."""
    return [queue >> shift & 7 for shift in range(0, 63, 3) if queue >> shift & 7]
