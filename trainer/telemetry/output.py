"""What environments print: each child's stdout and stderr go into a file below RUN/output, not over the live view."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

FOLDER = "output"
MOST_BYTES = 10 * 2**20  # of a file; one that has grown beyond it begins anew
SHOWN = 100  # characters of the first line that an event shows


def capture(run_dir: Path, name: str) -> None:
    """Let this process write into RUN/output/<name>.txt from now on, crash reports of C code included.

    Where the file cannot be made, everything stays as it is.
    """
    try:
        (run_dir / FOLDER).mkdir(exist_ok=True)
        file = os.open(run_dir / FOLDER / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(file, number)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    os.close(file)
    faulthandler.enable()


def news(run_dir: Path, told: set[str]) -> list[tuple[str, str]]:
    """(name, sentence) of each process whose file holds something and is not in `told`, to which it is added."""
    found = []
    for path in sorted((run_dir / FOLDER).glob("*.txt")):
        try:
            size = path.stat().st_size
            if size > MOST_BYTES:
                os.truncate(path, 0)
            if not size or path.stem in told:
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read(SHOWN * 10).split("\n")
        except OSError:  # a disk that fails; whoever saves to it says so
            continue
        told.add(path.stem)
        first = next((line.strip() for line in lines if line.strip()), "")[:SHOWN]
        found.append((path.stem.replace("_", " "), f"{path.stem.replace('_', ' ')} prints into {path}: {first}"))
    return found
