"""The manifest of a folder: a list of the files that the trainer has made there. A run deletes no other files.

FOLDER/manifest.txt has a line for each file, with its path in the folder. The line is written before the file, so a
file that a killed process left is listed too. A user's files in the same folder are not listed, and stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

FILE = "manifest.txt"
HEAD = "# What trainer has made in this folder, and alone may delete."
PARTIAL = ".partial"  # suffix of a file that is being written


def begin(folder: Path) -> None:
    """Give a folder a manifest; if it has one, remove the lines of files that are gone.

    Raises:
        OSError: it could not be written.
    """
    path, left = folder / FILE, [name for name in _lines(folder) if os.path.lexists(folder / name)]
    aside = path.with_name(f".{FILE}{PARTIAL}")
    aside.write_text("\n".join([HEAD, *left]), "utf-8", errors="surrogateescape")
    os.replace(aside, path)


def named(folder: Path) -> list[Path]:
    """The files in a folder's manifest, in the order in which they were added."""
    return [folder / name for name in _lines(folder)]


def add(*paths: Path) -> None:
    """Add files, before they are made, to the manifest of the nearest folder above; does nothing if none has one.

    Args:
        paths: files that lie in one folder.

    Raises:
        OSError: the manifest could not be written.
    """
    home = _home(paths[0])
    if home is None:
        return
    known = set(_lines(home))
    lines = [line for line in (path.relative_to(home).as_posix() for path in paths) if line not in known]
    if lines:
        with open(home / FILE, "a", encoding="utf-8", errors="surrogateescape") as file:
            # The line break comes first: so a line that a full disk cut off does not join the next one.
            file.write("".join(f"\n{line}" for line in lines))


def remove(*paths: Path) -> None:
    """Delete those of the files that the manifest lists; all must lie in one folder."""
    home = _home(paths[0]) if paths else None
    known = set(named(home)) if home is not None else set()
    for path in paths:
        if path in known and not path.is_dir():
            path.unlink(missing_ok=True)


def remove_below(folder: Path, but: Path | None = None) -> None:
    """Delete the listed files in `folder` and below, but not those below `but`, and folders that are then empty."""
    home = _home(folder / FILE)
    if home is None:
        return
    below = [path for path in named(home) if folder in path.parents and but not in path.parents]
    remove(*below)
    for emptied in {path.parent for path in below}:
        while emptied != home and _remove_empty(emptied):
            emptied = emptied.parent


def remove_all(folder: Path) -> None:
    """Delete the files in a folder's manifest, the manifest, and the folder if nothing else is in it."""
    if is_ours(folder):
        remove_below(folder)
        (folder / FILE).unlink(missing_ok=True)
        _remove_empty(folder)


def remove_partial(folder: Path) -> None:
    """Delete unfinished files, which processes were writing when they were killed."""
    remove(*(path for path in named(folder) if path.name.endswith(PARTIAL)))


def aside_of(path: Path) -> Path:
    """The path at which a file is written before it is renamed to `path`; only one process may write it at a time."""
    return path.with_name(f".{path.name}{PARTIAL}")


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears at `path` at the end of the context, and not at all if it raises.

    Raises:
        OSError: it could not be written.
    """
    aside = aside_of(path)
    add(path, aside)
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def is_ours(folder: Path) -> bool:
    """Whether a folder has a manifest."""
    try:
        with open(folder / FILE, "rb") as file:
            return file.read(len(HEAD)) == HEAD.encode()
    except OSError:
        return False


def _home(path: Path) -> Path | None:
    """The nearest folder above a file that has a manifest."""
    return next((folder for folder in path.parents if is_ours(folder)), None)


def _lines(folder: Path) -> list[str]:
    """The paths in a folder's manifest, each once, without any that leads out of the folder."""
    if not is_ours(folder):
        return []
    lines = (folder / FILE).read_text("utf-8", errors="surrogateescape").split("\n")[1:]
    return list(dict.fromkeys(line for line in lines if line and not {"..", "/"} & set(PurePosixPath(line).parts)))


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # it has files of the user
        return False
    return True
