"""The learning curve of a run, or of several: `python -m trainer.plot RUN [RUN ...] [--out FILE]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from trainer.reading import read_jsonl

MAX_POINTS = 2_000  # more cannot be told apart in the picture
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:cyan")


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of RUN/metrics.jsonl, oldest first; none when there is no file.

    An unfinished last line is left out. Rows that a resumed run went through again are taken from its later attempt.
    """
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    rows, _ = read_jsonl(path)
    kept: list[dict[str, Any]] = []
    earliest = float("inf")
    for row in reversed(rows):
        if row.get("frames", 0) <= earliest:
            kept.append(row)
            earliest = row.get("frames", earliest)
    return kept[::-1]


def series(rows: Sequence[dict[str, Any]], x: str, *ys: str) -> list[np.ndarray]:
    """Columns `x`, `*ys` as float64 [n] over the rows that have x and the first y; a missing further y is NaN.

    Rows that repeat the x of the row before are left out (an evaluation told twice); n is at most MAX_POINTS.
    """
    points: list[list[float]] = []
    for row in rows:
        if row.get(x) is None or row.get(ys[0]) is None or (points and points[-1][0] == row[x]):
            continue
        points.append([row[key] if row.get(key) is not None else np.nan for key in (x, *ys)])
    stride = -(-len(points) // MAX_POINTS) or 1
    table = np.array(points[::-1][::stride][::-1], dtype=np.float64).reshape(-1, 1 + len(ys))  # keeps the last point
    return list(table.T)


def run_title(run_dir: Path) -> str:
    """Environment, algorithm and seed from RUN/config.yaml; the folder's name when there is none."""
    path = run_dir / "config.yaml"
    if not path.exists():
        return run_dir.resolve().name
    config = yaml.safe_load(path.read_text()) or {}
    algorithm = config.get("algorithm", {})
    name = algorithm.get("name", "?") if isinstance(algorithm, dict) else algorithm
    return f"{config.get('env', {}).get('id', '?')} · {name} · seed {config.get('seed', '?')}"


def draw(run_dirs: Sequence[Path]) -> Figure:
    """Returns over frames above, speed over wall time below; one colour a run when there are several."""
    figure = Figure(figsize=(9, 6.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    returns, frames_speed = figure.subplots(2, 1, height_ratios=[3, 1])
    updates_speed = frames_speed.twinx()
    several = len(run_dirs) > 1
    for index, run_dir in enumerate(run_dirs):
        rows = read_rows(run_dir)
        training, evaluated = COLOURS[index % len(COLOURS)], "tab:orange"
        name = f"{run_title(run_dir)}  ({run_dir.resolve().name})" if several else ""
        _draw_returns(returns, rows, training, training if several else evaluated, name)
        _draw_speed(frames_speed, rows, "frames_per_s", training, "-")
        _draw_speed(updates_speed, rows, "updates_per_s", training if several else evaluated, ":" if several else "-")
    returns.set_title("Learning curves" if several else run_title(run_dirs[0]), loc="left", fontweight="bold", pad=10)
    returns.set(xlabel="frames", ylabel="return")
    returns.xaxis.set_major_formatter(EngFormatter(sep=""))
    returns.set_xlim(left=0)
    returns.grid(alpha=0.3)
    if returns.get_legend_handles_labels()[0]:
        returns.legend(loc="best", fontsize="small", framealpha=0.8)
    else:
        returns.text(0.5, 0.5, "no episode has ended yet", transform=returns.transAxes, ha="center", color="grey")
    for axis, label, colour in ((frames_speed, "frames/s", COLOURS[0]), (updates_speed, "updates/s", COLOURS[1])):
        axis.set_ylabel(f"{label} ({'solid' if axis is frames_speed else 'dotted'})" if several else label)
        if not several:
            axis.yaxis.label.set_color(colour)
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
    frames_speed.set_xlabel("wall time in s")
    frames_speed.grid(alpha=0.3)
    return figure


def _draw_returns(axes: Axes, rows: list[dict[str, Any]], training: str, evaluated: str, name: str) -> None:
    x, mean, low, high = series(rows, "frames", "return_mean", "return_min", "return_max")
    if len(x):
        label = name or "training, mean of the last 100 episodes"
        axes.plot(x, mean, color=training, linewidth=1.5, label=label, marker="." if len(x) == 1 else None)
        label = "" if name else "their range, lowest to highest"
        axes.fill_between(x, low, high, color=training, alpha=0.12, linewidth=0, label=label or None)
    x, mean, std = series(rows, "eval_frames", "eval_return_mean", "eval_return_std")
    if len(x):
        label = "" if name else "greedy evaluation, mean ± std"
        axes.errorbar(
            x, mean, np.nan_to_num(std), color=evaluated, fmt="o--" if name else "o-", markersize=4, linewidth=1.2,
            elinewidth=0.8, capsize=2, label=label or None,
        )  # fmt: skip


def _draw_speed(axes: Axes, rows: list[dict[str, Any]], key: str, colour: str, style: str) -> None:
    x, rate = series(rows, "wall_s", key)
    if len(x):
        axes.plot(x, rate, color=colour, linestyle=style, linewidth=1.2, marker="." if len(x) == 1 else None)


def curve(run_dir: Path | str) -> Path:
    """Draw RUN/metrics.jsonl into RUN/curve.png; works with few rows or none. Returns the picture's path."""
    run_dir = Path(run_dir)
    picture = run_dir / "curve.png"
    draw([run_dir]).savefig(picture)
    return picture


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.plot", description="Draw the learning curve of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", type=Path, help="picture to write (default: RUN/curve.png; several runs: curves.png)")
    arguments = parser.parse_args(argv)
    for run_dir in arguments.runs:
        if not (run_dir / "metrics.jsonl").exists():
            parser.error(f"{run_dir} is no run: it has no metrics.jsonl")
    out = arguments.out or (Path("curves.png") if len(arguments.runs) > 1 else arguments.runs[0] / "curve.png")
    draw(arguments.runs).savefig(out)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
