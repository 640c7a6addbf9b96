"""Compare runs on one HTML page: `python -m trainer.report RUN [RUN ...] [--out FILE]`.

The page has curves, scores, performance profiles, what differs in the configurations, videos and commands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.names import program
from trainer.commands.plot import add_arguments
from trainer.comparing import groups, runs
from trainer.comparing.page import page
from trainer.config.fields import ConfigError
from trainer.reading import ReadError
from trainer.run_folder.folder import write_text


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page about the runs that the arguments name, and print its path.

    Args:
        argv: arguments of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the page could not be written; stderr says why.
    """
    parser = argparse.ArgumentParser(prog=program("report"), description="Compare runs on one HTML page.")
    add_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="page to write (default: report.html)")
    arguments = parser.parse_args(argv)
    try:
        text, notes = page(groups.groups(runs.read(arguments.runs), arguments.group), arguments.statistic)
    except (ConfigError, ReadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        write_text(arguments.out, text)
    except OSError as error:
        print(f"error: {arguments.out} cannot be written ({error.strerror}): choose another place", file=sys.stderr)
        return 2
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(arguments.out)
    return 0
