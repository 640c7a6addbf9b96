"""Draw a run's trace: `python -m trainer.timeline RUN [--seconds S] [--start S] [--out FILE]`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.names import program
from trainer.config.run_files import RunFolder
from trainer.reading import ReadError
from trainer.telemetry import pictures
from trainer.telemetry.timeline import draw, middle, read_spans


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the trace of the run that the arguments name, and print the path of the picture.

    Args:
        argv: arguments of the command line; None: those of this process.

    Returns:
        The exit code 0.

    Raises:
        SystemExit: with 2, if there is nothing to draw; stderr says why.
    """
    parser = argparse.ArgumentParser(prog=program("timeline"), description="Draw what every process of a run did when.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run with telemetry.trace=true")
    parser.add_argument("--seconds", type=float, default=2.0, help="that are shown (default: 2)")
    parser.add_argument("--start", type=float, help="of them (default: in the middle of what every process recorded)")
    parser.add_argument("--out", type=Path, help="picture to write (default: RUN/trace.png)")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.run / "trace.png"
    try:
        if not RunFolder(arguments.run).trace.exists():
            raise ReadError(f"{arguments.run} has no trace: train with telemetry.trace=true")
        if not 0 < arguments.seconds < math.inf or not math.isfinite(arguments.start or 0.0):
            raise ReadError(f"--seconds {arguments.seconds:g} --start {arguments.start}: give a span of time")
        spans = read_spans(arguments.run)
        if not spans:
            raise ReadError(f"{RunFolder(arguments.run).trace} has no spans: there is nothing to draw")
        start = middle(spans, arguments.seconds) if arguments.start is None else arguments.start
        pictures.save(draw(spans, start, arguments.seconds), out)
    except (ReadError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    print(out)
    return 0
