"""A Ludo board as a picture and as text: 15 x 15 cells, bases in the corners, home columns towards the middle."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trainer.envs.games import ludo_track
from trainer.envs.games.ludo_track import SAFE_COORDINATES, SQUARES

CELL = 24  # pixels
SIDE = 15  # cells
COLOURS = np.array([(215, 50, 50), (50, 110, 215), (240, 190, 30), (40, 160, 80)], np.uint8)  # by corner
PAPER, TRACK, SAFE, LINE = (
    np.array(x, np.uint8) for x in ((236, 230, 218), (255, 255, 255), (200, 200, 200), (70,) * 3)
)
_PIPS = {1: "4", 2: "08", 3: "048", 4: "0268", 5: "02468", 6: "035268"}  # of a 3 x 3 raster


def _turned(row: int, column: int, times: int) -> tuple[int, int]:
    """A cell after so many quarter turns of the board, clockwise."""
    for _ in range(times):
        row, column = column, SIDE - 1 - row
    return row, column


def _quarter() -> list[tuple[int, int]]:
    """The first 13 squares of the track, from the start of the first corner on."""
    return [(6, c) for c in range(1, 6)] + [(r, 6) for r in range(5, -1, -1)] + [(0, 7), (0, 8)]


TRACK_CELLS = [_turned(*cell, times) for times in range(4) for cell in _quarter()]  # by square, of the first player


def cell_of(player_corner: int, token: int, coordinate: int) -> tuple[int, int]:
    """Where a token is drawn, (row, column).

    Args:
        player_corner: 0 .. 3, clockwise from the upper left; its start is that many times 13 squares on.
        token: 0 .. 3; tells places in base apart.
        coordinate: its own, -1 .. 56.
    """
    if coordinate == -1:
        return _turned(1 + 3 * (token // 2), 1 + 3 * (token % 2), player_corner)
    if coordinate <= 50:
        return TRACK_CELLS[(coordinate + 13 * player_corner) % SQUARES]
    return _turned(7, coordinate - 50, player_corner)


def picture(tokens: NDArray[np.int64], to_move: int, dice: list[int]) -> NDArray[np.uint8]:
    """A picture, rgb uint8 [360, 360, 3]; the dice lie in the middle, in the colour of the one to move.

    Args:
        tokens: own coordinates [num_players, 4].
        to_move: a seat.
        dice: at most three.
    """
    corners = [ludo_track.spacing(len(tokens)) // 13 * player for player in range(len(tokens))]
    drawn = np.empty((SIDE * CELL, SIDE * CELL, 3), np.uint8)
    drawn[:] = PAPER
    for square, cell in enumerate(TRACK_CELLS):
        _fill(drawn, cell, SAFE if square in SAFE_COORDINATES else TRACK)
    for corner in corners:
        pale = _pale(COLOURS[corner])
        _fill(drawn, cell_of(corner, 0, 0), pale)
        for coordinate in range(51, 57):
            _fill(drawn, cell_of(corner, 0, coordinate), pale)
        for token in range(4):
            _fill(drawn, cell_of(corner, token, -1), pale)
    standing: dict[tuple[int, int], list[int]] = {}
    for corner, places in zip(corners, tokens.tolist(), strict=True):
        for token, coordinate in enumerate(places):
            standing.setdefault(cell_of(corner, token, coordinate), []).append(corner)
    for cell, owners in standing.items():
        _tokens(drawn, cell, owners)
    for i, die in enumerate(dice):
        _die(drawn, (6 + i, 6 + i), die, COLOURS[corners[to_move]])
    return drawn


def token_name(player: int, token: int) -> str:
    """A token's name in a text: A0 is the first one of seat 0."""
    return f"{'ABCD'[player]}{token}"


def text(tokens: NDArray[np.int64], to_move: int, dice: list[int]) -> str:
    """The board in 15 lines: `.` track, `*` a safe square of it, `:` home columns, `_` bases, tokens by name.

    Several tokens on a square are `A+` where they are one player's, else `++`. Below: every token's own coordinate
    (base and goal in words), who is to move, and the dice.

    Args:
        tokens: own coordinates [num_players, 4].
        to_move: a seat.
        dice: that are pending.
    """
    drawn = [["  "] * SIDE for _ in range(SIDE)]

    def write(cell: tuple[int, int], what: str) -> None:
        drawn[cell[0]][cell[1]] = what

    for square, cell in enumerate(TRACK_CELLS):
        write(cell, "* " if square in SAFE_COORDINATES else ". ")
    standing: dict[tuple[int, int], list[str]] = {}
    for player, places in enumerate(tokens.tolist()):
        corner = ludo_track.spacing(len(tokens)) // 13 * player
        for coordinate in range(51, 57):
            write(cell_of(corner, 0, coordinate), ": ")
        for token, coordinate in enumerate(places):
            write(cell_of(corner, token, -1), "_ ")
            standing.setdefault(cell_of(corner, token, coordinate), []).append(token_name(player, token))
    for cell, names in standing.items():
        owners = {name[0] for name in names}
        write(cell, names[0] if len(names) == 1 else f"{owners.pop() if len(owners) == 1 else '+'}+")
    lines = [" ".join(row).rstrip() for row in drawn]
    words = {-1: "base", 56: "goal"}
    for player, places in enumerate(tokens.tolist()):
        told = (f"{token_name(player, token)} {words.get(place, place)}" for token, place in enumerate(places))
        lines.append("  ".join(told))
    return "\n".join([*lines, f"{'ABCD'[to_move]} is to move, dice: {' '.join(map(str, dice)) or 'none'}"])


def _pale(colour: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (0.45 * colour + 0.55 * 255).astype(np.uint8)


def _view(drawn: NDArray[np.uint8], cell: tuple[int, int]) -> NDArray[np.uint8]:
    row, column = cell[0] * CELL, cell[1] * CELL
    return drawn[row : row + CELL, column : column + CELL]


def _fill(drawn: NDArray[np.uint8], cell: tuple[int, int], colour: NDArray[np.uint8]) -> None:
    part = _view(drawn, cell)
    part[:] = LINE
    part[1:-1, 1:-1] = colour


def _disc(part: NDArray[np.uint8], colour: NDArray[np.uint8]) -> None:
    side = len(part)
    away = np.hypot(*(np.mgrid[:side, :side] - (side - 1) / 2))
    part[away <= side / 2 - 0.5] = LINE
    part[away <= side / 2 - 2] = colour


def _tokens(drawn: NDArray[np.uint8], cell: tuple[int, int], owners: list[int]) -> None:
    """Tokens side by side in a cell: one alone fills it."""
    part = _view(drawn, cell)[2:-2, 2:-2]
    in_a_row = math.isqrt(len(owners) - 1) + 1
    side = len(part) // in_a_row
    for i, owner in enumerate(owners):
        row, column = i // in_a_row * side, i % in_a_row * side
        _disc(part[row : row + side, column : column + side], COLOURS[owner])


def _die(drawn: NDArray[np.uint8], cell: tuple[int, int], die: int, colour: NDArray[np.uint8]) -> None:
    _fill(drawn, cell, colour)
    part = _view(drawn, cell)
    for pip in _PIPS[die]:
        row, column = 4 + 6 * (int(pip) // 3), 4 + 6 * (int(pip) % 3)
        part[row : row + 4, column : column + 4] = TRACK
