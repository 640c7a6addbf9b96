"""Ludo's dice: what the games throw, and what is left of it.

A *queue* is a game's pending dice as an int64, 3 bits for each die, the first die in the lowest bits. `queue & 511` is
its first three dice, from which the player chooses; each of them is in a *slot*.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.envs.games import ludo_track
from trainer.envs.games.ludo_track import FACES, NUM_SLOTS
from trainer.envs.games.rows import Rows, require
from trainer.envs.worlds import draws

MAX_PENDING = 21  # dice, as a queue is an int64; two players can have 17, four will not in the life of the sun
THROWS_AT_ONCE = 4  # throws made of one random number; of its 53 bits they use 31

_THROWS = ludo_track.throws()
_QUEUE_LENGTH = np.array([len(ludo_track.unpack(queue)) for queue in range(512)])
# By the first three dice: which faces are among them, face f as bit f - 1.
_FACES = np.array([sum(1 << x for x in {d - 1 for d in ludo_track.unpack(q)}) for q in range(512)], np.uint8)
_THROW_FACES = _FACES[_THROWS]
_LOW = np.array([0, 7, 63])  # the dice before a slot
_SHIFTS = np.array([0, 3, 6])
_POWERS = 216.0 ** np.arange(1, THROWS_AT_ONCE + 1)[:, None]


class Dice:
    """The dice of N games.

    Attributes:
        queue: pending dice, int64 [N].
        pending: how many they are, int64 [N].
        keys: of the games' random streams, uint64 [N].
        drawn: random numbers used so far, uint64 [N].
    """

    def __init__(self, num_games: int) -> None:
        self.queue = np.zeros(num_games, np.int64)
        self.pending = np.zeros(num_games, np.int64)
        self.keys = draws.stream_keys(0, num_games)
        self.drawn = np.zeros(num_games, np.uint64)

    def seed(self, seed: int) -> None:
        """Begin the streams of this seed."""
        self.keys[:] = draws.stream_keys(seed, len(self.keys))
        self.drawn[:] = 0

    def clear(self, rows: Rows) -> None:
        """Leave no dice in these games."""
        self.queue[rows] = self.pending[rows] = 0

    def of(self, index: int) -> list[int]:
        """A game's pending dice, the next ones first."""
        return ludo_track.unpack(int(self.queue[index]))

    def put(self, index: int, dice: list[int]) -> None:
        """Set a game's pending dice.

        Raises:
            EnvError: there are no such dice, or too many.
        """
        fits = all(1 <= die <= FACES for die in dice) and len(dice) <= MAX_PENDING
        require(fits, f"ludo: dice={dice} must be at most {MAX_PENDING} numbers from 1 to {FACES}.")
        self.queue[index], self.pending[index] = ludo_track.pack(dice), len(dice)

    def take(self, rows: Rows, slot: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take the die of a slot from each game's queue; returns its face, 1 .. 6, int64 [M]."""
        queue, low = self.queue.take(rows), _LOW.take(slot)
        face: NDArray[np.int64] = queue >> 3 * slot & 7
        self.queue[rows] = queue & low | queue >> 3 & ~low
        self.pending[rows] -= 1
        return face

    def throw(self, rows: Rows) -> NDArray[np.int64]:
        """Four throws for each game, as numbers 0 .. 215, int64 [4, M]; `faces_of` and `keep` look them up."""
        drawn = self.drawn.take(rows)
        self.drawn[rows] = drawn + np.uint64(1)
        digits = np.floor(draws.uniforms(self.keys.take(rows), drawn) * _POWERS)
        digits[1:] -= 216.0 * digits[:-1]
        return digits.astype(np.int64)

    def keep(self, rows: Rows, throw: NDArray[np.int64]) -> None:
        """Make a throw of each game, a number 0 .. 215, its pending dice."""
        queue = _THROWS.take(throw, mode="clip")
        self.queue[rows], self.pending[rows] = queue, _QUEUE_LENGTH.take(queue)

    def throw_extra(self, rows: Rows) -> None:
        """Add a throw to the dice left."""
        throw = _THROWS.take(self.throw(rows)[0], mode="clip")
        pending, more = self.pending.take(rows), _QUEUE_LENGTH.take(throw)
        throw[pending + more > MAX_PENDING] = more[pending + more > MAX_PENDING] = 0
        self.queue[rows] |= throw << 3 * pending
        self.pending[rows] = pending + more

    def without_a_move(self, rows: Rows, movable: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which games have no die that can be played, bool [M].

        Where none of the first three can be played but a later one can, these three go behind the others.

        Args:
            rows: the games, int64 [M].
            movable: faces that move any of the player's tokens, by bits, uint8 [M].
        """
        queue = self.queue.take(rows)
        stuck: NDArray[np.bool_] = movable & _FACES.take(queue & 511) == 0
        if stuck.any() and (queue >= 512).any():
            stuck[stuck] = ~self._reorder(rows[stuck], movable[stuck])
        return stuck

    def _reorder(self, rows: Rows, movable: NDArray[np.uint8]) -> NDArray[np.bool_]:
        can = np.zeros(len(rows), bool)
        for i in np.flatnonzero(self.pending[rows] > NUM_SLOTS):  # hardly ever any
            dice = self.of(rows[i])
            for _ in range(len(dice) // NUM_SLOTS):
                dice = dice[NUM_SLOTS:] + dice[:NUM_SLOTS]
                if any(movable[i] >> (die - 1) & 1 for die in dice[:NUM_SLOTS]):
                    self.queue[rows[i]], can[i] = ludo_track.pack(dice), True
                    break
        return can


def faces_of(throw: NDArray[np.int64]) -> NDArray[np.uint8]:
    """By bits, the faces of throws, numbers 0 .. 215."""
    faces: NDArray[np.uint8] = _THROW_FACES.take(throw, mode="clip")
    return faces


def slots(queue: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first three dice of queues [M], 0 for none, int64 [M, 3]."""
    faces: NDArray[np.int64] = queue[:, None] >> _SHIFTS & 7
    return faces
