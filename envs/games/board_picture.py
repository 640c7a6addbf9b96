"""A board of two players' pieces on a grid, as a picture and as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CELL = 32  # pixels
PAPER, LINE = np.array((236, 230, 218), np.uint8), np.array((70, 70, 70), np.uint8)
COLOURS = np.array([(215, 50, 50), (240, 190, 30)], np.uint8)  # of the seats
MARKS = "XO"  # of the seats


def picture(pieces: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """A picture rgb uint8 [32 * height, 32 * width, 3] of pieces bool [2, height, width], the first row on top."""
    _, height, width = pieces.shape
    drawn = np.empty((height * CELL, width * CELL, 3), np.uint8)
    drawn[:] = PAPER
    drawn[::CELL], drawn[:, ::CELL], drawn[CELL - 1 :: CELL], drawn[:, CELL - 1 :: CELL] = (LINE,) * 4
    disc = np.hypot(*(np.mgrid[:CELL, :CELL] - (CELL - 1) / 2)) <= CELL / 2 - 4
    for seat, row, column in np.argwhere(pieces):
        drawn[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL][disc] = COLOURS[seat]
    return drawn


def text(pieces: NDArray[np.bool_], empty: Sequence[str]) -> str:
    """Pieces, bool [2, height, width], as lines, the first row on top; `empty` has the character of each free cell."""
    _, height, width = pieces.shape
    cells = list(empty)
    for seat, row, column in np.argwhere(pieces):
        cells[row * width + column] = MARKS[seat]
    return "\n".join(" ".join(cells[row * width : (row + 1) * width]) for row in range(height))
