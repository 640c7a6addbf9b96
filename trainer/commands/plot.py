"""Draw the learning curve of one run, or compare several: `python -m trainer.plot RUN [RUN ...] [--out FILE]`.

Several runs are grouped by what differs in their configurations; each group is one line, with a band.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.names import program
from trainer.comparing import groups, runs
from trainer.comparing.picture import draw_curves
from trainer.comparing.statistics import STATISTICS
from trainer.config.fields import ConfigError
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
    parser = argparse.ArgumentParser(
        prog=program("plot"), description="Draw the learning curve of a run, or compare several runs."
    )
    add_arguments(parser)
    parser.add_argument("--each", action="store_true", help="a line for each run, with its training and speed")
    parser.add_argument("--out", type=Path, help="picture to write (default: RUN/curve.png; several runs: curves.png)")
    arguments = parser.parse_args(argv)
    try:
        found = runs.found_below(arguments.runs)
        single = len(found) == 1 and arguments.group is None
        out = arguments.out or (RunFolder(found[0]).curve if single else Path("curves.png"))
        notes: list[str] = []
        if single or arguments.each:
            picture = draw(read_runs(found))
        else:
            picture, notes = draw_curves(groups.groups(runs.read(found), arguments.group), arguments.statistic)
        pictures.save(picture, out)
    except (ConfigError, ReadError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(out)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that plot and report share."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or a folder of runs")
    parser.add_argument(
        "--group", type=lambda text: [key for key in text.split(",") if key], metavar="KEY,...",
        help="keys of the configuration that make groups (default: as few as tell the runs apart, but for the seed)",
    )  # fmt: skip
    parser.add_argument(
        "--statistic", choices=STATISTICS, default="iqm", help="over the runs of a group (default: iqm)"
    )
