"""Averages over runs, with stratified bootstrap intervals.

Agarwal et al., Deep RL at the edge of the statistical precipice, 2021 (arXiv 2108.13264). A curve has
hundreds of points, and rliable resamples each of them in Python, which takes minutes; here they are resampled by NumPy.
`profiles` compares groups with each other, by rliable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.comparing.runs import Run
from trainer.telemetry.plot import drawable
from trainer.telemetry.rows import of_kind, value_of

Statistic = Callable[[np.ndarray], np.ndarray]
REPETITIONS = 2_000  # of the bootstrap
PERCENTILES = (2.5, 97.5)
MOST_POINTS = 200  # of a curve


@dataclass(frozen=True)
class Curve:
    """The average of a group over the frames.

    Args:
        frames: float64 [n].
        centre: the statistic over the runs, float64 [n].
        low: lower end of the 95 % interval, float64 [n].
        high: its upper end, float64 [n].
        runs: how many have a point everywhere.
        note: one sentence where the curve ends before its longest run does, or leaves a run out; else "".
    """

    frames: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int
    note: str = ""


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean over the runs: float64 [..., runs] -> [...]."""
    return np.asarray(scores.mean(-1))


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean over the runs, as rliable's: float64 [..., runs] -> [...].

    The quarter with the lowest and the quarter with the highest scores are left out, each rounded down.
    """
    cut = scores.shape[-1] // 4
    return np.asarray(np.sort(scores, -1)[..., cut : scores.shape[-1] - cut].mean(-1))


STATISTICS: dict[str, Statistic] = {"iqm": iqm, "mean": mean}
NAMES = {"iqm": "IQM", "mean": "mean"}


def interval(scores: np.ndarray, statistic: Statistic, seed: int = 0) -> np.ndarray:
    """95 % bootstrap interval of a statistic over runs; the same runs are drawn for all points.

    Args:
        scores: float64 [points, runs].
        statistic: of `STATISTICS`.
        seed: of the draws.

    Returns:
        Lower and upper ends, float64 [2, points].
    """
    runs = scores.shape[1]
    drawn = np.random.default_rng(seed).integers(runs, size=(REPETITIONS, runs))
    ends = [np.percentile(statistic(point[drawn]), PERCENTILES) for point in scores]
    return np.array(ends, dtype=np.float64).reshape(-1, 2).T


def evaluations(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Frames and mean returns of a run's evaluations, float64 [n] each, in the order of the frames.

    Without evaluations they are those of its training, where the policy explores.
    """
    points: dict[float, float] = {}
    for kind, key in (("evaluation", "eval_return_mean"), ("training", "return_mean")):
        for row in of_kind(run.rows, kind):
            frames, value = drawable(value_of(row, "frames")), drawable(value_of(row, key))
            if frames == frames and value == value:
                points[frames] = value
        if points:
            break
    table = np.array(sorted(points.items()), dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def curve(runs: Sequence[Run], statistic: Statistic) -> Curve:
    """The average of several runs of one environment over the frames.

    Each run's evaluations are joined by straight lines. The curve has a point wherever a run has an evaluation and all
    runs have a value. A run that reached `evaluator.stop_at_return` keeps its last value; the end of any other run ends
    the curve.
    """
    known = [(run, *evaluations(run)) for run in runs]
    drawn = [(run, frames, values) for run, frames, values in known if len(frames)]
    if not drawn:
        return _nothing(0, "no evaluation and no episode has ended yet")
    solved = [run.summary.get("solved_frames") is not None for run, _, _ in drawn]
    lasts = [frames[-1] for _, frames, _ in drawn]
    open_ends = [last for last, done in zip(lasts, solved, strict=True) if not done]
    start, end = max(frames[0] for _, frames, _ in drawn), min(open_ends, default=max(lasts))
    grid = np.unique(np.concatenate([frames for _, frames, _ in drawn]))
    grid = grid[(grid >= start) & (grid <= end)]
    grid = grid[::-1][:: -(-len(grid) // MOST_POINTS) or 1][::-1]
    notes = []
    if len(drawn) < len(runs):
        notes.append(f"{len(runs) - len(drawn)} of {len(runs)} runs have no evaluation yet and are left out")
    if not len(grid):
        return _nothing(len(drawn), "its runs have no frames in common")
    if end < 0.95 * max(lasts):
        shortest = drawn[lasts.index(end)][0]
        notes.append(f"it ends at {end:.0f} frames, the last evaluation of {shortest.folder.name} ({shortest.status})")
    scores = np.stack([np.interp(grid, frames, values) for _, frames, values in drawn], axis=1)
    low, high = interval(scores, statistic)
    return Curve(grid, statistic(scores), low, high, len(drawn), "; ".join(notes))


def _nothing(runs: int, note: str) -> Curve:
    nowhere = np.empty(0)
    return Curve(nowhere, nowhere, nowhere, nowhere, runs, note)


def score_of(runs: Sequence[Run], statistic: Statistic) -> tuple[float, float, float, int] | None:
    """Statistic of the runs' scores, both ends of its 95 % interval, and the number of scores; None without any."""
    scores = np.array([run.score for run in runs if run.score is not None], dtype=np.float64)
    if not len(scores):
        return None
    low, high = interval(scores[None], statistic)[:, 0]
    return float(statistic(scores)), float(low), float(high), len(scores)
