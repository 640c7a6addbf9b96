"""The learning curve of a run, or of several."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from trainer.config.run_files import RunFolder
from trainer.reading import ReadError, read_text
from trainer.telemetry import pictures
from trainer.telemetry.rows import Row, of_kind, read, value_of

LARGEST = 1e100
MAX_POINTS = 2_000  # more would not be visible in the picture
TRAINED, EVALUATED, FINAL = "tab:blue", "tab:orange", {"last": "tab:brown", "best": "tab:red"}
HOW_SEVERAL = "evaluations; thin: training; star and square: best and last policy at the end"
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:cyan")


def series(rows: Sequence[Row], x: str, *ys: str) -> list[np.ndarray]:
    """Columns `x` and `ys` of the rows that have x and the first y.

    Values too large to be drawn count as missing. Of more than `MAX_POINTS` rows every k-th is taken, the last one
    always.

    Returns:
        float64 [n] for each column, n at most `MAX_POINTS`; NaN where a row lacks a further y.
    """
    points = [[drawable(value_of(row, key)) for key in (x, *ys)] for row in rows]
    points = [point for point in points if not math.isnan(point[0] + point[1])]
    stride = -(-len(points) // MAX_POINTS) or 1
    table = np.array(points[::-1][::stride][::-1], dtype=np.float64).reshape(-1, 1 + len(ys))
    return list(table.T)


def drawable(value: float) -> float:
    """The value, or NaN where sums within matplotlib would overflow."""
    return value if abs(value) < LARGEST else math.nan


def run_title(run_dir: Path) -> str:
    """Environment, algorithm and seed from RUN/config.yaml; the folder's name if that file is not readable."""
    try:
        config = yaml.safe_load(read_text(RunFolder(run_dir).config))
        return f"{config['env']['id']} · {config['algorithm']['name']} · seed {config['seed']}"
    except (ReadError, yaml.YAMLError, LookupError, TypeError, ValueError, RecursionError):
        return run_dir.resolve().name


def draw(runs: Mapping[Path, Sequence[Row]]) -> Figure:
    """Draw returns over frames (above) and speeds over time in training (below).

    Args:
        runs: rows of each run folder; several runs get a colour each.
    """
    picture = Figure(figsize=(9, 6.5), dpi=110, layout="constrained")
    FigureCanvasAgg(picture)
    returns, frames_speed = picture.subplots(2, 1, height_ratios=[3, 1])
    updates_speed = frames_speed.twinx()
    several = len(runs) > 1
    for index, (run_dir, rows) in enumerate(runs.items()):
        colour = COLOURS[index % len(COLOURS)]
        name = f"{run_title(run_dir)}  ({run_dir.resolve().name})" if several else ""
        _draw_returns(returns, rows, colour if several else EVALUATED, colour if several else TRAINED, name)
        training = of_kind(rows, "training")
        _draw_speed(frames_speed, training, "frames_per_s", colour, "-")
        _draw_speed(updates_speed, training, "updates_per_s", colour if several else EVALUATED, ":" if several else "-")
    returns.set_title(
        "Learning curves" if several else run_title(next(iter(runs))), loc="left", fontweight="bold", pad=10
    )
    returns.set(xlabel="frames", ylabel="return")
    returns.xaxis.set_major_formatter(EngFormatter(sep=""))
    returns.set_xlim(left=0)
    returns.grid(alpha=0.3)
    if returns.get_legend_handles_labels()[0]:
        returns.legend(loc="best", fontsize="small", framealpha=0.8, title=HOW_SEVERAL if several else None)
    else:
        returns.text(0.5, 0.5, "no episode has ended yet", transform=returns.transAxes, ha="center", color="grey")
    for axis, label, colour in ((frames_speed, "frames/s", TRAINED), (updates_speed, "updates/s", EVALUATED)):
        axis.set_ylabel(f"{label} ({'solid' if axis is frames_speed else 'dotted'})" if several else label)
        if not several:
            axis.yaxis.label.set_color(colour)
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
    frames_speed.set_xlabel("time in training in s")
    frames_speed.grid(alpha=0.3)
    return picture


def _draw_returns(axes: Axes, rows: Sequence[Row], evaluated: str, trained: str, name: str) -> None:
    """Evaluations are the main line; the returns of training, where the agent explores, are a thin line behind it."""
    label = (lambda text: None) if name else (lambda text: text)
    x, mean, low, high = series(of_kind(rows, "training"), "frames", "return_mean", "return_min", "return_max")
    if len(x):
        axes.plot(
            x, mean, color=trained, linewidth=0.9, alpha=0.7, marker="." if len(x) == 1 else None, zorder=2,
            label=label("training, mean of the last 100 episodes"),
        )  # fmt: skip
        if not name:
            axes.fill_between(x, low, high, color=trained, alpha=0.1, linewidth=0, label="their range")
    x, mean, std = series(of_kind(rows, "evaluation"), "frames", "eval_return_mean", "eval_return_std")
    if len(x):
        axes.errorbar(
            x, mean, spread(std), color=evaluated, fmt="o-", markersize=4, linewidth=1.8, elinewidth=0.8,
            capsize=2, zorder=3, label=name or "greedy evaluation, mean ± std",
        )  # fmt: skip
    elif name:
        axes.plot([], [], color=trained, label=name)
    final = {policy: series(of_kind(rows, "final"), *_final_keys(policy)) for policy in FINAL}
    for policy, (x, mean, std, episodes) in final.items():
        if not len(x) or (policy == "last" and np.array_equal(x[-1:], final["best"][0][-1:])):
            continue
        axes.errorbar(  # the newest one: a run that was resumed has several
            x[-1:], mean[-1:], spread(std[-1:]), color=evaluated if name else FINAL[policy],
            fmt="*" if policy == "best" else "s", markersize=13 if policy == "best" else 6, markeredgecolor="white",
            capsize=3, zorder=4,
            label=label(f"{policy} policy at the end: {mean[-1]:.5g} ± {std[-1]:.3g}, {episodes[-1]:.0f} episodes"),
        )  # fmt: skip


def spread(std: np.ndarray) -> np.ndarray:
    """Half-lengths of error bars, float64 [n]; 0 where the standard deviation is unknown."""
    return np.maximum(np.nan_to_num(std), 0)


def _final_keys(policy: str) -> list[str]:
    return [f"final_{policy}_{what}" for what in ("frames", "return_mean", "return_std", "episodes")]


def _draw_speed(axes: Axes, rows: Sequence[Row], key: str, colour: str, style: str) -> None:
    x, rate = series(rows, "wall_s", key)
    if len(x):
        axes.plot(x, rate, color=colour, linestyle=style, linewidth=1.2, marker="." if len(x) == 1 else None)


def curve(run_dir: Path | str) -> str:
    """Draw the rows of RUN/metrics.jsonl into RUN/curve.png, even if there are none.

    Returns:
        One sentence about damaged rows, or "".

    Raises:
        OSError: the picture could not be written.
        ReadError: the rows could not be read.
    """
    run_dir = Path(run_dir)
    rows, problem = read(run_dir)
    pictures.save(draw({run_dir: rows}), RunFolder(run_dir).curve)
    return problem


def read_runs(folders: Sequence[Path]) -> dict[Path, list[Row]]:
    """The rows of each run; stderr gets a warning about damaged ones.

    Raises:
        ReadError: a folder holds no run, or one without rows.
    """
    runs = {}
    for run_dir in folders:
        if not run_dir.is_dir():
            raise ReadError(f"{run_dir} is no folder: give that of a run")
        if not RunFolder(run_dir).metrics.exists():
            begun = RunFolder(run_dir).config.exists()
            why = "ended before its training began" if begun else "is no run"
            raise ReadError(f"{run_dir} {why}: it has no {RunFolder(run_dir).metrics.name}")
        runs[run_dir], problem = read(run_dir)
        if not runs[run_dir]:
            raise ReadError(problem or f"{RunFolder(run_dir).metrics} has no rows yet: there is nothing to draw")
        if problem:
            print(f"warning: {problem}", file=sys.stderr)
    return runs
