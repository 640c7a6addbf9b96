"""Draw the curves of groups of runs, a panel for each environment."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from trainer.comparing.groups import Group, environments
from trainer.comparing.profiles import Profiles
from trainer.comparing.statistics import NAMES, STATISTICS, Curve, curve, score_of
from trainer.telemetry.plot import COLOURS

MOST_LINES = len(COLOURS)  # more would not be told apart
COLUMNS = 3
WIDTH = 60  # characters of a label's line


def drawn(groups: Sequence[Group], statistic: str) -> list[Group]:
    """The groups that fit into one picture: all, or those with the highest scores, in their order."""
    if len(groups) <= MOST_LINES:
        return list(groups)
    scores = [score_of(group.runs, STATISTICS[statistic]) for group in groups]
    best = sorted(range(len(groups)), key=lambda i: -np.inf if (score := scores[i]) is None else score[0])
    return [groups[i] for i in sorted(best[-MOST_LINES:])]


def draw_curves(groups: Sequence[Group], statistic: str) -> tuple[Figure, list[str]]:
    """Draw the average return of each group over the frames, with its 95 % interval.

    Args:
        groups: of which at most `MOST_LINES` are drawn.
        statistic: a key of `STATISTICS`.

    Returns:
        The picture, and one sentence about each curve that ends early or leaves a run out.
    """
    shown, envs = drawn(groups, statistic), environments([run for group in groups for run in group.runs])
    columns = min(COLUMNS, len(envs))
    lines = -(-len(envs) // columns)
    picture = Figure(figsize=(9 if columns == 1 else 5.2 * columns, 5 if lines == 1 else 3.8 * lines), dpi=110)
    picture.set_layout_engine("constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(lines, columns, squeeze=False).ravel()
    notes = []
    for axes, env_id in zip(panels, envs, strict=False):
        for index, group in enumerate(shown):
            if runs := [run for run in group.runs if run.env_id == env_id]:
                found = curve(runs, STATISTICS[statistic])
                _draw(axes, found, f"{_wrapped(group.label)} ({found.runs})", COLOURS[index])
                notes += [f"{env_id}, {group.label}: {found.note}"] if found.note else []
        axes.set_title(env_id, loc="left", fontweight="bold")
        _label(axes, "return")
    for axes in panels[len(envs) :]:
        axes.set_visible(False)
    left_out = f", the best {len(shown)} of {len(groups)} groups" if len(shown) < len(groups) else ""
    text = f"{NAMES[statistic]} of the evaluations of (n) runs and 95 % stratified bootstrap interval{left_out}"
    picture.suptitle(text, fontsize="small", color="dimgrey")
    return picture, notes


def draw_profiles(profiles: Profiles) -> Figure:
    """Draw for each group the share of its runs with a score above a threshold, over the threshold."""
    picture = Figure(figsize=(9, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for index, (label, share) in enumerate(profiles.shares.items()):
        low, high = profiles.intervals[label]
        axes.plot(profiles.thresholds, share, color=COLOURS[index], linewidth=1.8, label=_wrapped(label))
        axes.fill_between(profiles.thresholds, low, high, color=COLOURS[index], alpha=0.2, linewidth=0)
    axes.set(xlabel=profiles.unit, ylabel="share of runs above it", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small").set_in_layout(False)
    return picture


def _draw(axes: Axes, found: Curve, label: str, colour: str) -> None:
    marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(found.frames) < 40 else {}
    axes.plot(found.frames, found.centre, color=colour, linewidth=1.8, label=label, **marker)
    axes.fill_between(found.frames, found.low, found.high, color=colour, alpha=0.2, linewidth=0)


def _label(axes: Axes, what: str) -> None:
    axes.set(xlabel="frames", ylabel=what)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    if axes.lines:  # else the groups of this environment are not among those that are drawn
        axes.legend(fontsize="small", framealpha=0.8).set_in_layout(False)  # a long one takes no room from the axes


def _wrapped(label: str) -> str:
    """A group's label on at most three lines; the tables have all of it."""
    return "\n".join(textwrap.wrap(label, WIDTH, max_lines=3, placeholder=" ..."))
