"""Compare the scores of groups with each other: performance profiles and probability of improvement.

Agarwal et al., Deep RL at the edge of the statistical precipice, 2021 (arXiv 2108.13264), sections 4.2 and 4.3. The
measures are rliable's; the stratified bootstrap is NumPy's, as rliable's needs a package (arch < 8) that cannot be
imported beside pandas 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from trainer.comparing.groups import Group, environments
from trainer.comparing.statistics import PERCENTILES, REPETITIONS
from trainer.config.fields import ConfigError

THRESHOLDS = 41
PAIR_REPETITIONS = 500  # each pair takes about a millisecond a repetition


@dataclass(frozen=True)
class Profiles:
    """How the scores of groups compare.

    Args:
        thresholds: float64 [k].
        shares: label -> share of runs with a score above the threshold, float64 [k].
        intervals: label -> 95 % interval of that share, float64 [2, k].
        pairs: for labels x and y: the probability that a run of x has a higher score than one of y, a draw counting as
            half, and both ends of its 95 % interval.
        unit: of the thresholds, in words.
        note: one sentence about groups or runs that are left out, or "".
    """

    thresholds: np.ndarray
    shares: dict[str, np.ndarray]
    intervals: dict[str, np.ndarray]
    pairs: dict[tuple[str, str], tuple[float, float, float]]
    unit: str
    note: str


def profiles(groups: Sequence[Group]) -> Profiles | None:
    """Performance profiles of the groups, and the probability of improvement of each pair (Agarwal et al. 2021).

    With several environments the scores of each one are scaled to 0 (lowest of all runs) .. 1 (highest), and groups
    without a score in all of them are left out.

    Returns:
        None where no two groups have scores that can be compared.

    Raises:
        ConfigError: rliable is not installed.
    """
    tables, note = _tables(groups)
    if len(tables) < 2:
        return None
    metrics, rng = _rliable(), np.random.default_rng(0)
    low, high = min(table.min() for table in tables.values()), max(table.max() for table in tables.values())
    margin = 0.02 * (high - low) or 0.5
    thresholds = np.linspace(low - margin, high + margin, THRESHOLDS)
    shares = {label: share_above(table[None], thresholds)[0] for label, table in tables.items()}
    again = {label: resampled(table, rng, REPETITIONS) for label, table in tables.items()}
    intervals = {
        label: np.percentile(share_above(some, thresholds), PERCENTILES, axis=0) for label, some in again.items()
    }
    pairs = {}
    for x, y in itertools.combinations(tables, 2):
        drawn = zip(again[x][:PAIR_REPETITIONS], again[y][:PAIR_REPETITIONS], strict=True)
        ends = np.percentile([metrics.probability_of_improvement(*both) for both in drawn], PERCENTILES)
        pairs[x, y] = (float(metrics.probability_of_improvement(tables[x], tables[y])), float(ends[0]), float(ends[1]))
    several = next(iter(tables.values())).shape[1] > 1
    unit = "score, scaled to 0 .. 1 in each environment" if several else "score (return)"
    return Profiles(thresholds, shares, intervals, pairs, unit, note)


def share_above(tables: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of scores above each threshold: float64 [n, runs, environments], [k] -> [n, k]."""
    return np.stack([(tables > threshold).mean((1, 2)) for threshold in thresholds], axis=1)


def resampled(table: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Scores with the runs of each environment drawn again: float64 [runs, envs] -> [count, runs, envs]."""
    drawn = rng.integers(len(table), size=(count, *table.shape))
    return np.asarray(table[drawn, np.arange(table.shape[1])])


def _tables(groups: Sequence[Group]) -> tuple[dict[str, np.ndarray], str]:
    """Scores of each group, float64 [runs, environments], and a sentence about what is left out."""
    envs = environments([run for group in groups for run in group.runs])
    found: dict[str, list[list[float]]] = {}
    without, fewer = [], []
    for group in groups:
        scores = [[run.score for run in group.runs if run.env_id == env and run.score is not None] for env in envs]
        rows = min(map(len, scores))
        if not rows:
            without.append(group.label)
            continue
        if rows < max(map(len, scores)):
            fewer.append(group.label)
        found[group.label] = [some[:rows] for some in scores]
    tables = {label: np.array(scores, dtype=np.float64).T for label, scores in found.items()}
    if tables and len(envs) > 1:
        every = np.concatenate(list(tables.values()))
        low, span = every.min(0), np.ptp(every, axis=0)
        tables = {label: (table - low) / np.where(span > 0, span, 1) for label, table in tables.items()}
    notes = []
    if without:
        notes.append(f"without a score in every environment, so left out: {'; '.join(without)}")
    if fewer:
        notes.append(f"as many runs as the environment with the fewest has: {'; '.join(fewer)}")
    return tables, "; ".join(notes)


def _rliable() -> ModuleType:
    try:
        from rliable import metrics
    except ImportError as error:
        raise ConfigError(
            "performance profiles and the probability of improvement are left out, as they need rliable: pip install "
            "rliable, and write the page again"
        ) from error
    return metrics
