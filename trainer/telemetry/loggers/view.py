"""How metrics look on the terminal: functions from rows to the live view and to plain lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainer.config.run_files import RunFolder
from trainer.telemetry.loggers.sink import RunInfo
from trainer.telemetry.rows import Row, kind, return_texts, value_of

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 14  # characters
NODES_SHOWN = 4  # most nodes with their speeds
INFO_SHOWN = 4  # most scalars of `info`
SIDE_COLOURS = {"learning": "yellow", "collection": "cyan", "balanced": "green"}


class History:
    """The course of one metric over the whole run, in at most `capacity` values: when full, every second is dropped."""

    def __init__(self, capacity: int = 256) -> None:
        self.values: list[float] = []
        self._capacity = capacity
        self._stride = 1  # one of this many values is recorded
        self._offered = 0  # number of calls of `add`, without NaN

    def add(self, value: float) -> None:
        """Take one value; NaN is ignored."""
        if math.isnan(value):
            return
        if self._offered % self._stride == 0:
            self.values.append(value)
        self._offered += 1
        if len(self.values) == self._capacity:
            self.values = self.values[::2]
            self._stride *= 2


class Newest:
    """The newest metrics of training and of evaluation, apart as their frames differ, and the course of the returns."""

    def __init__(self) -> None:
        self.training: Row = {}
        self.evaluation: Row = {}
        self.returns, self.evaluations = History(), History()

    def add(self, row: Row) -> None:
        """Take one row. Those of the final evaluation and the league are ignored: events report them."""
        if kind(row) == "training":
            self.training |= row  # a row without updates since the one before has no loss
            self.returns.add(value_of(row, "return_mean"))
        elif kind(row) == "evaluation":
            self.evaluation = row
            self.evaluations.add(value_of(row, "eval_return_mean"))


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Draw values with at most `width` block characters; the height of each is the mean of its part of the values."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((mean - low) * scale)] for mean in means)


def duration(seconds: float) -> str:
    """Seconds in the form 0:07, 12:34, 1:02:03 or 2 d 03:04; ? for NaN and infinity."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02d}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def number(row: Mapping[str, Any], key: str, form: str = ",.1f", scale: float = 1.0) -> str:
    """The value of a key times `scale`, in the given format; a dash where it is unknown."""
    value = value_of(row, key)
    return format(value * scale, form) if math.isfinite(value) else "-"


def evaluation(row: Mapping[str, Any]) -> str:
    """Describe a row of an evaluation in words."""
    mean, std = return_texts(value_of(row, "eval_return_mean"), value_of(row, "eval_return_std"))
    return f"{mean} ± {std}, {number(row, 'eval_episodes', ',.0f')} episodes, at {number(row, 'frames', ',.0f')} frames"


def info(row: Mapping[str, Any], prefix: str = "info_") -> str:
    """The first scalars of `info` in a row, as "is_success 0.8  coverage 0.31"; "" where it has none."""
    keys = [key for key in row if key.startswith(prefix)][:INFO_SHOWN]
    return "  ".join(f"{key.removeprefix(prefix)} {number(row, key, '.3g')}" for key in keys)


def nodes(row: Mapping[str, Any]) -> str:
    """The nodes of a cluster in a row, as "2 collect: 0 at 4,100, 1 at 4,090 frames/s  link 1.2 MB/s, 21 ms"."""
    keys = [key for key in row if key.startswith("node_")][:NODES_SHOWN]
    speeds = ", ".join(f"{key.split('_')[1]} at {number(row, key, ',.0f')}" for key in keys)
    told = f": {speeds} frames/s" if speeds else ""
    link = f"link {number(row, 'link_mb_per_s')} MB/s, {number(row, 'link_round_trip_ms', ',.0f')} ms"
    return f"{number(row, 'nodes', ',.0f')} collect{told}  {link}"


def panel(newest: Newest, run: RunInfo, progress: str = "") -> RenderableType:
    """The live view of the newest metrics, with the text of `Loggers.progress` if there is one."""
    lines = Table.grid(padding=(0, 1))  # every line but the last fits a terminal of 80 columns
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column()
    if newest.training:
        _add_metrics(lines, newest, run)
    if progress or not newest.training:
        lines.add_row("now", Text(progress or "starting", style="bold"))
    return Panel(
        lines,
        title=f"[bold]{run.env_id}[/bold] · {run.algorithm} · seed {run.seed}",
        title_align="left",
        subtitle=f"{run.num_workers} workers · {run.num_envs} environments · learner on {run.device}",
        subtitle_align="right",
        border_style="blue",
    )


def _add_metrics(lines: Table, newest: Newest, run: RunInfo) -> None:
    row = newest.training
    lines.add_row("progress", _progress(row, run))
    mean, low, high = return_texts(*(value_of(row, f"return_{key}") for key in ("mean", "min", "max")))
    return_line = Text.assemble(
        (mean, "bold"),
        f" ({low} to {high}), {number(row, 'episodes', ',.0f')} episodes,"
        f" {number(row, 'length_mean_frames', ',.0f')} frames",
    )
    lines.add_row("return", _beside(_spark(newest.returns), return_line))
    if newest.evaluation:
        told = Text(evaluation(newest.evaluation), style="bold")
        lines.add_row("evaluation", _beside(_spark(newest.evaluations), told))
    if told_info := info(row):
        greedy = info(newest.evaluation, "eval_info_")
        lines.add_row("info", f"{told_info}{f'  (evaluation: {greedy})' if greedy else ''}")
    speed = Text.assemble(
        (number(row, "frames_per_s", ",.0f"), "bold"),
        " frames/s  ",
        (number(row, "updates_per_s", ",.0f"), "bold"),
        f" updates/s  running {duration(value_of(row, 'wall_s'))}",
    )
    lines.add_row("speed", speed)
    flow = (
        f"replay ratio {number(row, 'replay_ratio', ',.3g')}"
        f"  policy lag {number(row, 'policy_lag_updates', ',.0f')} updates"
        f"  replay {number(row, 'replay_fill', '.0f', 100)} % full"
    )
    lines.add_row("flow", flow)
    if "nodes" in row:
        lines.add_row("nodes", nodes(row))
    learner = (
        f"epsilon {number(row, 'epsilon_mean', '.3f')}  loss {number(row, 'loss', '.3g')}"
        f"  q {number(row, 'q_mean', '.3g')}  gradient norm {number(row, 'grad_norm', '.3g')}"
    )
    lines.add_row("learning", learner)
    side = str(row.get("bottleneck", "-"))
    reason = f": {row['bottleneck_reason']}" if row.get("bottleneck_reason") else ""
    lines.add_row("bottleneck", Text.assemble((side, f"bold {SIDE_COLOURS.get(side, 'dim')}"), reason))


def plain_line(newest: Newest, run: RunInfo) -> str:
    """One line of metrics, for an output that is no terminal."""
    row = newest.training
    parts = [
        f"{number(row, 'frames', ',.0f')}/{run.budget_frames:,} frames",
        f"{duration(value_of(row, 'eta_s'))} left",
        f"{number(row, 'frames_per_s', ',.0f')} frames/s",
        f"{number(row, 'updates_per_s', ',.0f')} updates/s",
        f"return {return_texts(value_of(row, 'return_mean'))[0]}",
    ]
    if told := info(row):
        parts.append(told)
    if newest.evaluation:
        mean = return_texts(value_of(newest.evaluation, "eval_return_mean"))[0]
        parts.append("  ".join(part for part in (f"evaluation {mean}", info(newest.evaluation, "eval_info_")) if part))
    parts += [
        f"epsilon {number(row, 'epsilon_mean', '.3f')}",
        f"replay {number(row, 'replay_fill', '.0f', 100)} %",
        f"replay ratio {number(row, 'replay_ratio', ',.3g')}",
        f"lag {number(row, 'policy_lag_updates', ',.0f')}",
        f"bottleneck {row.get('bottleneck', '-')}",
    ]
    if "nodes" in row:
        parts.append(f"nodes {nodes(row)}")
    return " | ".join(parts)


def closing_lines(run: RunInfo, summary: Mapping[str, Any]) -> list[str]:
    """How the run ended, in two or three lines; `summary` is the content of summary.json."""
    status, reason = summary.get("status", "ended"), summary.get("reason")
    lines = [
        f"{status}{f' ({reason})' if reason else ''}: {number(summary, 'frames', ',.0f')} frames and"
        f" {number(summary, 'updates', ',.0f')} updates in {duration(value_of(summary, 'wall_s'))},"
        f" {number(summary, 'frames_per_s', ',.0f')} frames/s, {number(summary, 'updates_per_s', ',.0f')} updates/s"
    ]
    if number(summary, "eval_return_mean") != "-":
        mean, std = return_texts(value_of(summary, "eval_return_mean"), value_of(summary, "eval_return_std"))
        lines.append(f"evaluation: {mean} ± {std} over {number(summary, 'eval_episodes', ',.0f')} episodes")
    picture = RunFolder(run.run_dir).curve
    lines.append(f"run folder: {run.run_dir}" + (f"  learning curve: {picture}" if picture.exists() else ""))
    return lines


def _progress(row: Mapping[str, Any], run: RunInfo) -> RenderableType:
    frames = value_of(row, "frames")
    share = min(1.0, frames / run.budget_frames) if run.budget_frames > 0 else 0.0
    text = Text.assemble(
        (f"{100 * share:.0f} %", "bold"),
        f", {frames:,.0f} of {run.budget_frames:,} frames, ",
        (duration(value_of(row, "eta_s")), "bold"),
        " left",
    )
    return _beside(ProgressBar(total=1.0, completed=share, width=SPARK_WIDTH), text)


def _spark(history: History) -> Text:
    return Text(sparkline(history.values).ljust(SPARK_WIDTH), style="magenta", no_wrap=True)


def _beside(left: RenderableType, right: RenderableType) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=SPARK_WIDTH)
    line.add_row(left, right)
    return line
