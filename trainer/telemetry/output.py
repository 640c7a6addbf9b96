"""Output of child processes (of environments mostly): stdout and stderr of each go into a file in RUN/output.

On the terminal they would disturb the live view.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

FOLDER = "output"
MOST_BYTES = 10 * 2**20  # a larger file is emptied
SHOWN = 100  # characters of the first line that an event shows


def capture(run_dir: Path, name: str) -> None:
    """Redirect stdout and stderr of this process into RUN/output/<name>.txt, with crash reports of C code.

    Nothing is redirected if the file cannot be created.
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
    """Find processes that have printed something for the first time.

    Args:
        run_dir: the run folder.
        told: names of the files that were found before; those found now are added.

    Returns:
        (process, sentence for an event) for each.
    """
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
        except OSError:  # the disk fails; the next checkpoint reports it
            continue
        told.add(path.stem)
        first = next((line.strip() for line in lines if line.strip()), "")[:SHOWN]
        found.append((path.stem.replace("_", " "), f"{path.stem.replace('_', ' ')} prints into {path}: {first}"))
    return found
