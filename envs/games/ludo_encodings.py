"""What a Ludo player sees, as numbers: `ENCODINGS` lists the ways. All are seen from one seat, its own tokens first.

`handcrafted` float32, 70 numbers for two players: for each token of each player, the seat's own first,

    cell / 57 (0 in base, 1 in the goal), in base, in play, in the goal,
    threatened within 6, within 7 .. 12, threatening within 6, within 7 .. 12

then for the first three pending dice: die / 6 (0 for none), and whether it is a six. A token is threatened by an
opponent's token that stands 1 .. 6 (7 .. 12) squares behind it on its loop while it is on a square where that one may
capture; that one is threatening. The number is (7 - distance) / 6, or (13 - distance) / 6, of the nearest.

`onehot` bool, 946 for two players: one-hot over 58 cells (base, 0 .. 56) of every player's every token in its own
coordinates; of the seat's tokens in each opponent's coordinates; of each opponent's tokens in the seat's coordinates
(nothing where a token is on no square of that loop); three dice one-hot over 6 faces.

`actions` float32, 420 for two players: one-hot over 58 cells of the seat's four tokens; for each opponent how many of
its tokens stand on each of its cells, over 4; three dice one-hot over 6 faces; how endangered each own token is; and
for each of the 12 actions what it would lead to (`ACTION_FEATURES`, see `consequences`), zero where it is illegal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.games import ludo_track
from trainer.envs.games.ludo_track import BASE, FACES, GOAL, NOWHERE, NUM_CELLS, NUM_SLOTS, NUM_TOKENS

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
_DISTANCES = np.arange(256)
_NEAR = np.where((_DISTANCES >= 1) & (_DISTANCES <= 6), (7 - _DISTANCES) / 6, 0).astype(np.float32)
_FAR = np.where((_DISTANCES >= 7) & (_DISTANCES <= 12), (13 - _DISTANCES) / 6, 0).astype(np.float32)
_DANGER = np.where(_NEAR > 0, DANGER / np.maximum(_DISTANCES, 1), 0).astype(np.float32)
_PLACES = np.stack(  # by cell: cell / 57, in base, in play, in the goal
    [np.arange(NUM_CELLS) / GOAL]
    + [np.arange(NUM_CELLS) == BASE, np.arange(NUM_CELLS) % GOAL != 0, np.arange(NUM_CELLS) == GOAL],
    -1,
).astype(np.float32)
_FAR_OFF = np.uint8(100)  # a base, as a cell from which no square is near


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
        danger_before: sum of .8 / distance over the opponents' tokens that are 1 .. 6 behind `old` and may capture
            there, float32.
        danger_after: the same of `new`.
        own_start_taken: whether an opponent stands on the seat's start, bool [M].
    """

    old: NDArray[np.uint8]
    new: NDArray[np.uint8]
    face: NDArray[np.int64]
    captures: NDArray[np.int64]
    danger_before: NDArray[np.float32]
    danger_after: NDArray[np.float32]
    own_start_taken: NDArray[np.bool_]


def distances(squares: NDArray[np.uint8], hunters: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """How far hunters are behind squares: 1 .. 12, and anything else where they are not.

    Games lie along the last axis, as NumPy is several times as fast over a long last axis as over one of four.

    Args:
        squares: as the hunters' cells, [K, M]; `NOWHERE` where they cannot capture.
        hunters: their cells [4, M].

    Returns:
        uint8 [K, 4, M].
    """
    # Modulo 256, where neither what lies before a hunter, nor a base, nor NOWHERE comes near to 1 .. 12.
    return squares[:, None] - np.where(hunters == BASE, _FAR_OFF, hunters)


def consequences(position: Position) -> Consequences:
    """What each action would lead to."""
    cells, faces = np.ascontiguousarray(position.cells.transpose(1, 2, 0)), position.faces.T
    num_players, _, games = cells.shape
    crossings, open_crossings = _tables(num_players)
    mine = cells[0]
    new = _TARGETS[mine, faces[:, None]].reshape(NUM_SLOTS * NUM_TOKENS, games)
    captures = np.zeros(new.shape, np.int64)
    before, after = np.zeros(mine.shape, np.float32), np.zeros(new.shape, np.float32)
    taken = np.zeros(games, bool)
    for ahead in range(1, num_players):
        theirs = cells[ahead]
        before += _DANGER.take(distances(open_crossings[ahead].take(mine), theirs)).sum(1)
        square = open_crossings[ahead].take(new)
        behind = distances(square, theirs)
        after += _DANGER.take(behind).sum(1)
        captures += (behind == 0).sum(1)
        taken |= (theirs == crossings[ahead, ludo_track.START]).any(0)
    return Consequences(
        np.tile(mine, (NUM_SLOTS, 1)).T,
        new.T,
        faces.repeat(NUM_TOKENS, 0).T,
        captures.T,
        np.tile(before, (NUM_SLOTS, 1)).T,
        after.T,
        taken,
    )


class Handcrafted:
    """The encoding `handcrafted`; the file's head explains it."""

    dtype = "float32"

    def __init__(self, num_players: int) -> None:
        self.size = num_players * NUM_TOKENS * TOKEN_FEATURES + 2 * NUM_SLOTS

    def write(self, position: Position, out: NDArray[Any]) -> None:
        """Into float32 [M, size]."""
        cells, faces = np.ascontiguousarray(position.cells.transpose(1, 2, 0)), position.faces
        num_players, _, games = cells.shape
        open_crossings = _tables(num_players)[1]
        threats = np.zeros((TOKEN_FEATURES - 4, num_players, NUM_TOKENS, games), np.float32)
        for prey in range(num_players):
            for hunter in range(num_players):
                if prey == hunter:
                    continue
                squares = open_crossings[(hunter - prey) % num_players].take(cells[prey])
                between = distances(squares, cells[hunter])
                for k, by_distance in enumerate((_NEAR, _FAR)):
                    threat = by_distance.take(between)
                    threatened, threatening = threats[k, prey], threats[2 + k, hunter]
                    np.maximum(threatened, threat.max(1), out=threatened)
                    np.maximum(threatening, threat.max(0), out=threatening)
        tokens = out[:, : -2 * NUM_SLOTS].reshape(games, num_players, NUM_TOKENS, TOKEN_FEATURES)
        tokens[..., :4] = _PLACES.take(position.cells, 0)
        tokens[..., 4:] = threats.transpose(3, 1, 2, 0)
        out[:, -2 * NUM_SLOTS : -NUM_SLOTS] = faces / np.float32(FACES)
        out[:, -NUM_SLOTS:] = faces == FACES


class OneHot:
    """The encoding `onehot`; the file's head explains it."""

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
    """The encoding `actions`; the file's head explains it."""

    dtype = "float32"

    def __init__(self, num_players: int) -> None:
        self._places = NUM_CELLS * (NUM_TOKENS + num_players - 1)
        self._features = NUM_SLOTS * NUM_TOKENS * len(ACTION_FEATURES)
        self.size = self._places + NUM_SLOTS * FACES + NUM_TOKENS + self._features
        self._safe = ludo_track.safe_cells(num_players)

    def write(self, position: Position, out: NDArray[Any]) -> None:
        """Into float32 [M, size]."""
        cells, found = position.cells, consequences(position)
        games, num_players, _ = cells.shape
        row, place = np.arange(games), cells.astype(np.int64)  # beyond 255
        places = out[:, : self._places]
        places[:] = 0
        for token in range(NUM_TOKENS):
            places[row, NUM_CELLS * token + place[:, 0, token]] = 1
            for ahead in range(1, num_players):  # token by token, as two may stand on one cell
                places[row, NUM_CELLS * (NUM_TOKENS + ahead - 1) + place[:, ahead, token]] += 1 / NUM_TOKENS
        dice, danger, features = np.split(
            out[:, self._places :], np.cumsum([NUM_SLOTS * FACES, NUM_TOKENS]).tolist(), axis=1
        )
        dice[:] = _dice(position)
        danger[:] = found.danger_before[:, :NUM_TOKENS] / NUM_TOKENS
        features = features.reshape(games, NUM_SLOTS * NUM_TOKENS, len(ACTION_FEATURES))
        legal = found.new != NOWHERE
        safe_before, safe_after = self._safe.take(found.old), self._safe.take(found.new)
        columns = (
            legal,
            found.new / np.float32(GOAL) * legal,
            (found.old == BASE) & legal,
            found.captures / np.float32(NUM_TOKENS),
            found.new == GOAL,
            safe_after & ~safe_before,
            safe_before & ~safe_after & legal,
            found.danger_after / NUM_TOKENS,
            found.danger_before / NUM_TOKENS * legal,
        )
        for i, column in enumerate(columns):
            features[:, :, i] = column


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
