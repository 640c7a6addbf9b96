"""How a program is called, for its help and for a run's command.txt."""

from __future__ import annotations

import sys
from pathlib import Path

CONSOLE = "trainer"  # the console script that an installation makes


def program(command: str) -> str:
    """The words by which this process was started: `trainer eval`, or `python -m trainer.eval`."""
    return f"{CONSOLE} {command}" if is_console() else f"python -m trainer.{command}"


def is_console() -> bool:
    """Whether this process is the console script."""
    return Path(sys.argv[0]).name == CONSOLE
