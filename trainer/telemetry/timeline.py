"""Draw a run's trace: what each process did when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from trainer.config.run_config import first_line
from trainer.config.run_files import RunFolder
from trainer.reading import RESTORE, ReadError, read_json

DETAIL = 0.01  # share of the upper panel's time that the lower one shows
COLOURS = {  # in the order of the legend
    "env step": "tab:green", "inference": "tab:blue", "write": "tab:cyan", "wait": "lightgrey", "sample": "tab:orange",
    "update": "tab:red", "publish": "tab:purple", "idle": "gainsboro", "evaluate": "tab:olive", "log": "tab:brown",
    "checkpoint": "black",
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """One stretch of time in which a process did one thing.

    Args:
        track: role and number of the process, as `collector 0`.
        kind: what it did, a key of `COLOURS`.
        start: in seconds since the first span of the run.
        end: in seconds since the first span of the run.
    """

    track: str
    kind: str
    start: float
    end: float


def read_spans(run_dir: Path) -> list[Span]:
    """Read the spans of RUN/trace.json; a restarted process goes on in its track.

    Raises:
        ReadError: the file could not be read, or holds no trace of a run.
    """
    path = RunFolder(run_dir).trace
    try:
        spans = [
            Span(str(event["args"]["role"]), event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
            for event in read_json(path)["traceEvents"]
            if event["ph"] == "X"
        ]
    except (LookupError, TypeError) as error:
        raise ReadError(f"{path} holds no trace of a run ({first_line(error)}): {RESTORE}") from error
    if not spans:
        raise ReadError(f"{path} holds no span: train with telemetry.trace=true for longer")
    return spans


def middle(spans: Sequence[Span], seconds: float) -> float:
    """Start of a window of `seconds` in the middle of the time in which all tracks have spans.

    The evaluator does not count, as it works only now and then.
    """
    busy = [span for span in spans if not span.track.startswith("evaluator")] or list(spans)
    tracks = {span.track for span in busy}
    first = max(min(span.start for span in busy if span.track == track) for track in tracks)
    last = min(max(span.end for span in busy if span.track == track) for track in tracks)
    return max(min(first, last), (first + last - seconds) / 2)


def draw(spans: Sequence[Span], start: float, seconds: float) -> Figure:
    """Draw one line for each process, and below it a hundredth of the time, from the middle, in detail.

    Args:
        spans: of the trace.
        start: of the upper panel, in seconds since the first span.
        seconds: length of the upper panel.
    """
    tracks = sorted({span.track for span in spans})
    figure = Figure(figsize=(10, 1.6 + 2 * (0.35 + 0.32 * len(tracks))), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1)
    detail = seconds * DETAIL
    where = start + (seconds - detail) / 2
    _draw_window(upper, spans, tracks, start, start + seconds, 1, "s since the first span")
    upper.axvspan(where, where + detail, color="black", linewidth=0.8, zorder=3)
    _draw_window(lower, spans, tracks, where, where + detail, 1e3, f"ms since {where:.3f} s (the black line above)")
    seen = {span.kind for span in spans}
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in seen]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(6, len(handles)), fontsize="small", frameon=False
    )
    return figure


def _draw_window(
    axes: Axes, spans: Sequence[Span], tracks: list[str], start: float, end: float, scale: float, label: str
) -> None:
    shown = [span for span in spans if span.end > start and span.start < end]
    zero = start if scale > 1 else 0.0
    boxes = [
        [((x - zero) * scale, tracks.index(span.track) + y) for x, y in _corners(span, start, end)] for span in shown
    ]
    colours = [COLOURS.get(span.kind, "tab:pink") for span in shown]
    axes.add_collection(PolyCollection(boxes, facecolors=colours, linewidths=0))
    axes.set_xlim((start - zero) * scale, (end - zero) * scale)
    axes.set_ylim(len(tracks) - 0.5, -0.5)
    axes.set_yticks(range(len(tracks)), tracks)
    axes.set_xlabel(label, fontsize="small")


def _corners(span: Span, start: float, end: float) -> list[tuple[float, float]]:
    left, right = max(span.start, start), min(span.end, end)
    return [(left, -0.4), (right, -0.4), (right, 0.4), (left, 0.4)]
