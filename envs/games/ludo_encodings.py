"""What a Ludo player sees, as numbers: `ENCODINGS` lists the ways. All are seen from one seat, its own tokens first.

``handcrafted`` float32, 70 numbers for two players: for each token of each player, the seat's own first,

    cell / 57 (0 in base, 1 in the goal), in base, in play, in the goal,
    threatened within 6, within 7 .. 12, threatening within 6, within 7 .. 12

then for the first three pending dice: die / 6 (0 for none), and whether it is a six. A token is threatened by an
opponent's token that stands 1 .. 6 (7 .. 12) squares behind it on its loop while it is on a square where that one may
capture; that one is threatening. The number is (7 - distance) / 6, or (13 - distance) / 6, of the nearest.

``onehot`` bool, 946 for two players: one-hot over 58 cells (base, 0 .. 56) of every player's every token in its own
coordinates; of the seat's tokens in each opponent's coordinates; of each opponent's tokens in the seat's coordinates
(nothing where a token is on no square of that loop); three dice one-hot over 6 faces.

``actions`` float32, 420 for two players: one-hot over 58 cells of the seat's four tokens; for each opponent how many of
its tokens stand on each of its cells, over 4; three dice one-hot over 6 faces; how endangered each own token is; and
for each of the 12 actions what it would lead to (`ACTION_FEATURES`, see `consequences`), zero where it is illegal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.games import ludo_track
from envs.games.ludo_track import BASE, FACES, GOAL, NOWHERE, NUM_CELLS, NUM_SLOTS, NUM_TOKENS

TOKEN_FEATURES = 8
ACTION_FEATURES = (
    "legal",
    "progress",  # where it lands, cell / 57
    "leaves_base",
    "captures",  # tokens, over 4
    "goal",
    "enters_safe",
    "leaves_safe",
    "danger_after",  # on the square where it lands, over 4
    "danger_before",  # where it stands, over 4
)
DANGER = 0.8  # of an opponent 1 behind; falls with the distance, up to 6

_TARGETS = ludo_track.targets()
_DISTANCES = np.arange(14)
_NEAR = np.where((_DISTANCES >= 1) & (_DISTANCES <= 6), (7 - _DISTANCES) / 6, 0).astype(np.float32)
_FAR = np.where((_DISTANCES >= 7) & (_DISTANCES <= 12), (13 - _DISTANCES) / 6, 0).astype(np.float32)
_DANGER = np.where(_NEAR > 0, DANGER / np.maximum(_DISTANCES, 1), 0).astype(np.float32)
_PLACES = np.stack(  # by cell: cell / 57, in base, in play, in the goal
    [np.arange(NUM_CELLS) / GOAL]
    + [np.arange(NUM_CELLS) == BASE, np.arange(NUM_CELLS) % GOAL != 0, np.arange(NUM_CELLS) == GOAL],
    -1,
).astype(np.float32)
_BEFORE_ANY = 100  # a base, as a cell from which no distance is positive


@dataclass(frozen=True)
class Position:
    """Games seen from one seat each.

    Args:
        cells: own coordinates + 1, uint8 [M, num_players, 4], the seat's own first, then the next one's.
        faces: the first three pending dice, int64 [M, 3]; 0 for none.
    """

    cells: NDArray[np.uint8]
    faces: NDArray[np.int64]


@dataclass(frozen=True)
class Consequences:
    """What each action would lead to, arrays [M, 12]; cells are own coordinates + 1.

    Args:
        old: where the token stands, uint8.
        new: where it would land, uint8; `NOWHERE` where that is illegal.
        face: of the die, int64.
        captures: how many tokens it would capture, int64.
        danger_before: sum of .8 / distance over the opponents' tokens that are 1 .. 6 behind ``old`` and may capture
            there, float32.
        danger_after: the same of ``new``.
        own_start_taken: whether an opponent stands on the seat's start, bool [M].
    """

    old: NDArray[np.uint8]
    new: NDArray[np.uint8]
    face: NDArray[np.int64]
    captures: NDArray[np.int64]
    danger_before: NDArray[np.float32]
    danger_after: NDArray[np.float32]
    own_start_taken: NDArray[np.bool_]


def distances(squares: NDArray[np.uint8], hunters: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How far hunters are behind squares: 1 .. 12, 0 or 13 for everything else.

    Args:
        squares: as the hunters' cells, [M, K]; `NOWHERE` where they cannot capture.
        hunters: their cells [M, 4].

    Returns:
        int64 [M, K, 4].
    """
    standing = np.where(hunters == BASE, _BEFORE_ANY, hunters).astype(np.int16)
    behind = squares.astype(np.int16)[:, :, None] - standing[:, None, :]
    return np.clip(behind, 0, 13).astype(np.int64)


def consequences(position: Position) -> Consequences:
    """What each action would lead to."""
    cells, faces = position.cells, position.faces
    games, num_players, _ = cells.shape
    crossings, open_crossings = _tables(num_players)
    own = cells[:, 0]
    new = _TARGETS[own[:, None, :], faces[:, :, None]].reshape(games, NUM_SLOTS * NUM_TOKENS)
    captures = np.zeros(new.shape, np.int64)
    before, after = np.zeros(own.shape, np.float32), np.zeros(new.shape, np.float32)
    taken = np.zeros(games, bool)
    for ahead in range(1, num_players):
        theirs = cells[:, ahead]
        before += _DANGER[distances(open_crossings[ahead][own], theirs)].sum(-1)
        square = open_crossings[ahead][new]
        after += _DANGER[distances(square, theirs)].sum(-1)
        captures += (square[:, :, None] == theirs[:, None, :]).sum(-1)
        taken |= (theirs == crossings[ahead, ludo_track.START]).any(1)
    return Consequences(
        np.tile(own, (1, NUM_SLOTS)),
        new,
        faces.repeat(NUM_TOKENS, 1),
        captures,
        np.tile(before, (1, NUM_SLOTS)),
        after,
        taken,
    )


class Handcrafted:
    """The encoding ``handcrafted``; the file's head explains it."""

    dtype = "float32"

    def __init__(self, num_players: int) -> None:
        self.size = num_players * NUM_TOKENS * TOKEN_FEATURES + 2 * NUM_SLOTS

    def write(self, position: Position, out: NDArray[Any]) -> None:
        """Into float32 [M, size]."""
        cells, faces = position.cells, position.faces
        games, num_players, _ = cells.shape
        open_crossings = _tables(num_players)[1]
        tokens = out[:, : -2 * NUM_SLOTS].reshape(games, num_players, NUM_TOKENS, TOKEN_FEATURES)
        tokens[..., :4] = _PLACES[cells]
        tokens[..., 4:] = 0
        for prey in range(num_players):
            for hunter in range(num_players):
                if prey == hunter:
                    continue
                squares = open_crossings[(hunter - prey) % num_players][cells[:, prey]]
                between = distances(squares, cells[:, hunter])
                for k, by_distance in enumerate((_NEAR, _FAR)):
                    threat = by_distance[between]
                    threatened, threatening = tokens[:, prey, :, 4 + k], tokens[:, hunter, :, 6 + k]
                    np.maximum(threatened, threat.max(2), out=threatened)
                    np.maximum(threatening, threat.max(1), out=threatening)
        out[:, -2 * NUM_SLOTS : -NUM_SLOTS] = faces / np.float32(FACES)
        out[:, -NUM_SLOTS:] = faces == FACES


class OneHot:
    """The encoding ``onehot``; the file's head explains it."""

    dtype = "bool"

    def __init__(self, num_players: int) -> None:
        self.size = NUM_CELLS * NUM_TOKENS * (3 * num_players - 2) + NUM_SLOTS * FACES

    def write(self, position: Position, out: NDArray[Any]) -> None:
        """Into bool [M, size]."""
        cells = position.cells
        num_players = cells.shape[1]
        crossings = _tables(num_players)[0]
        views = [cells.reshape(len(cells), num_players * NUM_TOKENS)]
        views += [crossings[ahead][cells[:, 0]] for ahead in range(1, num_players)]
        views += [crossings[num_players - ahead][cells[:, ahead]] for ahead in range(1, num_players)]
        places = np.concatenate(views, 1)
        out[:] = False
        tokens = out[:, : -NUM_SLOTS * FACES].reshape(*places.shape, NUM_CELLS)
        row, column = np.nonzero(places != NOWHERE)
        tokens[row, column, places[row, column]] = True
        out[:, -NUM_SLOTS * FACES :] = _dice(position)


class Actions:
    """The encoding ``actions``; the file's head explains it."""

    dtype = "float32"

    def __init__(self, num_players: int) -> None:
        self._opponents = num_players - 1
        self._features = NUM_SLOTS * NUM_TOKENS * len(ACTION_FEATURES)
        places = NUM_CELLS * (NUM_TOKENS + self._opponents)
        self.size = places + NUM_SLOTS * FACES + NUM_TOKENS + self._features
        self._eye = np.eye(NUM_CELLS, dtype=np.float32)
        self._safe = ludo_track.safe_cells(num_players)

    def write(self, position: Position, out: NDArray[Any]) -> None:
        """Into float32 [M, size]."""
        cells, found = position.cells, consequences(position)
        games = len(cells)
        parts: list[NDArray[Any]] = [self._eye[cells[:, 0]].reshape(games, NUM_TOKENS * NUM_CELLS)]
        parts += [self._eye[cells[:, ahead]].mean(1) for ahead in range(1, 1 + self._opponents)]
        parts += [_dice(position), found.danger_before[:, :NUM_TOKENS] / NUM_TOKENS]
        features = np.stack(
            [
                np.ones(found.new.shape, bool),
                found.new / np.float32(GOAL),
                found.old == BASE,
                found.captures / np.float32(NUM_TOKENS),
                found.new == GOAL,
                self._safe[found.new] & ~self._safe[found.old],
                self._safe[found.old] & ~self._safe[found.new],
                found.danger_after / NUM_TOKENS,
                found.danger_before / NUM_TOKENS,
            ],
            -1,
        )
        features *= (found.new != NOWHERE)[..., None]
        np.concatenate([*parts, features.reshape(games, self._features)], 1, out=out)


ENCODINGS: dict[str, Callable[[int], Any]] = {"handcrafted": Handcrafted, "onehot": OneHot, "actions": Actions}


def _dice(position: Position) -> NDArray[np.bool_]:
    """The dice one-hot, bool [M, 18]."""
    shown = position.faces[..., None] == np.arange(1, FACES + 1)
    return shown.reshape(len(shown), NUM_SLOTS * FACES)


_CROSSINGS = {
    num_players: (ludo_track.crossings(num_players), ludo_track.open_crossings(num_players)) for num_players in (2, 4)
}


def _tables(num_players: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return _CROSSINGS[num_players]
