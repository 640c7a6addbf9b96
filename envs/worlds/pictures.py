"""Pictures of worlds: a coloured square for each cell, a black frame around each agent."""

from __future__ import annotations

import colorsys

import numpy as np
from numpy.typing import NDArray

CELL_PIXELS = 16  # side of a cell in a picture; video encoders like multiples of 16


def agent_colours(num_agents: int) -> NDArray[np.uint8]:
    """Different colours, uint8 [num_agents, 3], blue first."""
    hues = (0.6 + np.arange(num_agents) * 0.618034) % 1  # golden ratio: agents with similar numbers get different hues
    return np.array([[round(255 * x) for x in colorsys.hsv_to_rgb(hue, 0.75, 0.95)] for hue in hues], np.uint8)


def portrait(colours: NDArray[np.uint8], cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    """As `picture`, with another colour for each agent on `cells`, which is written into `colours`."""
    row, column = cells.T
    colours[row, column] = agent_colours(len(cells))
    return picture(colours, cells)


def picture(colours: NDArray[np.uint8], framed: NDArray[np.int64]) -> NDArray[np.uint8]:
    """A picture uint8 [16 * height, 16 * width, 3].

    Args:
        colours: of the cells, uint8 [height, width, 3].
        framed: cells (row, column) int64 [N, 2] that get a black frame: the agents'.
    """
    drawn = colours.repeat(CELL_PIXELS, 0).repeat(CELL_PIXELS, 1)
    for row, column in framed * CELL_PIXELS:
        cell = drawn[row : row + CELL_PIXELS, column : column + CELL_PIXELS]
        cell[:2] = cell[-2:] = cell[:, :2] = cell[:, -2:] = 0
    return drawn
