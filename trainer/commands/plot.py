"""Draw the learning curve of one run or several: `python -m trainer.plot RUN [RUN ...] [--out FILE]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainer.config.run_files import RunFolder
from trainer.reading import ReadError
from trainer.telemetry import pictures
from trainer.telemetry.plot import draw, read_runs


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the runs that the arguments name, and print the path of the picture.

    Args:
        argv: arguments of the command line; None: those of this process.

    Returns:
        The exit code 0.

    Raises:
        SystemExit: with 2, if there is nothing to draw; stderr says why.
    """
    parser = argparse.ArgumentParser(prog="python -m trainer.plot", description="Draw the learning curve of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", type=Path, help="picture to write (default: RUN/curve.png; several runs: curves.png)")
    arguments = parser.parse_args(argv)
    out = arguments.out or (Path("curves.png") if len(arguments.runs) > 1 else RunFolder(arguments.runs[0]).curve)
    try:
        pictures.save(draw(read_runs(arguments.runs)), out)
    except (ReadError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    print(out)
    return 0
