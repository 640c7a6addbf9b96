"""Random numbers of many worlds at a time.

Each world has a stream of random numbers, which are computed at any index, not drawn one after another (`uniforms`):
world i of a vector seeded with `seed` has the same numbers as a single world seeded with `seed + i`. A NumPy generator
for each world would need a Python call for each world and turn.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Keys = NDArray[np.uint64]

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def stream_keys(seed: int, num_worlds: int) -> Keys:
    """The keys of the streams `seed`, `seed + 1`, ..., uint64 [num_worlds]."""
    # Mixed, as streams of similar keys would be similar.
    return _mixed(np.arange(num_worlds, dtype=np.uint64) + np.uint64(seed % 2**64))


def numbers(turn: int, first: int, count: int) -> Keys:
    """Indices, uint64 [count], of the random numbers `first`, `first + 1`, ... of a turn; turn -1 is the reset."""
    return np.arange(count, dtype=np.uint64) + np.uint64(((turn + 1) << 32) + first)


def uniforms(keys: Keys, index: Keys) -> NDArray[np.float64]:
    """Random numbers in [0, 1) at an index of each stream; keys and indices broadcast.

    This is SplitMix64 (Steele, Lea, Flood 2014), which computes its n-th number without those before it.
    """
    return (_mixed(keys + index * _GOLDEN) >> np.uint64(11)) * 2.0**-53


def _mixed(z: Keys) -> Keys:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def successes(keys: Keys, turn: int, first: int, trials: int, probability: float) -> tuple[Positions, Positions]:
    """Draw which of independent trials succeed.

    Args:
        keys: of the streams, uint64 [num_worlds].
        turn: whose random numbers are used.
        first: the first of these numbers; at most `trials + 1` more, rounded up to a block, are used.
        trials: number of trials of each world.
        probability: of the success of each trial.

    Returns:
        (world int64 [M], trial int64 [M]) of the M successes, ordered by world and trial.
    """
    if probability <= 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # Drawn from success to success, as few trials succeed: the number of failures between two is geometric.
    expected = trials * probability
    block = min(trials + 1, int(expected + 5 * math.sqrt(expected)) + 2)
    reached = np.full((len(keys), 1), -1)
    found: list[NDArray[np.int64]] = []
    while reached.min() < trials:
        u = uniforms(keys[:, None], numbers(turn, first + block * len(found), block))
        if probability >= 1:
            failures = np.zeros(u.shape, np.int64)
        else:
            failures = np.minimum(np.log1p(-u) / math.log1p(-probability), trials).astype(np.int64)
        found.append(reached + np.cumsum(failures + 1, 1))
        reached = found[-1][:, -1:]
    trial = found[0] if len(found) == 1 else np.concatenate(found, 1)
    world, column = np.nonzero(trial < trials)
    return world, trial[world, column]


def draw_distinct(keys: Keys, first: int, candidates: Positions, count: int) -> Positions:
    """Draw different candidates in each world; every choice and order is equally likely.

    Args:
        keys: of the streams, uint64 [num_worlds].
        first: the first of `count` random numbers of the reset that are used.
        candidates: int64 [num_worlds, C].
        count: number of candidates to draw, at most C.

    Returns:
        int64 [num_worlds, count].
    """
    left = candidates.copy()
    u = uniforms(keys[:, None], numbers(-1, first, count))
    world = np.arange(len(left))
    for i in range(count):  # Fisher and Yates, stopped after the first `count`
        drawn = i + (u[:, i] * (left.shape[1] - i)).astype(np.int64)
        left[world, drawn], left[:, i] = left[:, i].copy(), left[world, drawn]
    return left[:, :count]
