"""What a folder's own manifest names: the only files that a run ever deletes, whatever else lies beside them.

A file is named before it is made, by a line of FOLDER/manifest.txt with its path in the folder, so that one that a
killed process leaves is known too. The user's own files in the same folders are named nowhere, and stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

FILE = "manifest.txt"
HEAD = "# What trainer has made in this folder, and alone may delete."
PARTIAL = ".partial"  # ending of a file that is being written


def begin(folder: Path) -> None:
    """Give a folder a manifest; one that it has already forgets the files that are gone.

    Raises:
        OSError: it cannot be written.
    """
    path, left = folder / FILE, [name for name in _lines(folder) if os.path.lexists(folder / name)]
    aside = path.with_name(f".{FILE}{PARTIAL}")
    aside.write_text("\n".join([HEAD, *left]), "utf-8", errors="surrogateescape")
    os.replace(aside, path)


def named(folder: Path) -> list[Path]:
    """The files that a folder's manifest names, in the order in which they were made first."""
    return [folder / name for name in _lines(folder)]


def add(*paths: Path) -> None:
    """Name files that lie in one folder, before they are made; does nothing where no folder above has a manifest.

    Raises:
        OSError: the disk refuses.
    """
    home = _home(paths[0])
    if home is None:
        return
    known = set(_lines(home))
    lines = [line for line in (path.relative_to(home).as_posix() for path in paths) if line not in known]
    if lines:
        with open(home / FILE, "a", encoding="utf-8", errors="surrogateescape") as file:
            # A line's end stands before it: one that a full disk cut off spoils no other.
            file.write("".join(f"\n{line}" for line in lines))


def remove(*paths: Path) -> None:
    """Delete those of the files, which lie in one folder, that the manifest names."""
    home = _home(paths[0]) if paths else None
    known = set(named(home)) if home is not None else set()
    for path in paths:
        if path in known and not path.is_dir():
            path.unlink(missing_ok=True)


def remove_below(folder: Path, but: Path | None = None) -> None:
    """Delete what the manifest names in `folder`, at any depth but not in `but`, and the folders empty then."""
    home = _home(folder / FILE)
    if home is None:
        return
    below = [path for path in named(home) if folder in path.parents and but not in path.parents]
    remove(*below)
    for emptied in {path.parent for path in below}:
        while emptied != home and _remove_empty(emptied):
            emptied = emptied.parent


def remove_all(folder: Path) -> None:
    """Delete what a folder's manifest names, the manifest, and the folder if nothing else is in it."""
    if is_ours(folder):
        remove_below(folder)
        (folder / FILE).unlink(missing_ok=True)
        _remove_empty(folder)


def remove_partial(folder: Path) -> None:
    """Delete what processes that are gone were writing as they were killed."""
    remove(*(path for path in named(folder) if path.name.endswith(PARTIAL)))


def aside_of(path: Path) -> Path:
    """Where a file is written before it is renamed to `path`; it has one writer at a time."""
    return path.with_name(f".{path.name}{PARTIAL}")


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` once it is whole and on the disk; else nothing is left of it.

    Raises:
        OSError: the disk refuses.
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
    """The names in a folder's manifest, each once; one that leads out of the folder is none of ours."""
    if not is_ours(folder):
        return []
    lines = (folder / FILE).read_text("utf-8", errors="surrogateescape").split("\n")[1:]
    return list(dict.fromkeys(line for line in lines if line and not {"..", "/"} & set(PurePosixPath(line).parts)))


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # the user has put something there
        return False
    return True
