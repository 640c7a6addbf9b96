"""Files that processes leave on their node when all are killed at once; the next run removes them.

These are named semaphores in /dev/shm, and sockets in a folder for temporary files. Their names contain the process
that made them, so that the next run can tell whether it is still alive.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from multiprocessing import util
from pathlib import Path

from trainer.config.fields import ConfigError

PREFIX = "trainer-"
SHARED = Path("/dev/shm")


def claim() -> None:
    """Name what multiprocessing makes, here and in children, after this process; remove what ended processes left.

    Raises:
        ConfigError: the folder for temporary files is not writable.
    """
    try:
        _claim()
    except OSError as error:
        raise ConfigError(
            f"the folder for temporary files cannot be written ({error}): make room there, or set TMPDIR to another one"
        ) from error


def _claim() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _sweep_folder(path)
    for path in SHARED.glob(f"sem.{PREFIX}*"):
        if is_gone(path.name.removeprefix(f"sem.{PREFIX}").rpartition("-")[0]) and _is_mine(path):
            path.unlink(missing_ok=True)
    # Python has no public way to set either; children inherit both.
    names = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    names["semprefix"] = f"/{PREFIX}{this_process()}"
    if "tempdir" not in names:
        made = Path(tempfile.mkdtemp(prefix=PREFIX))
        (made / "owner").write_text(this_process())
        names["tempdir"] = str(made)
        util.Finalize(None, _remove, args=(made,), exitpriority=-100)


def this_process() -> str:
    """A name that is unique on this node for all time: `<pid namespace>-<pid>-<start time>`."""
    return f"{os.stat('/proc/self/ns/pid').st_ino:x}-{os.getpid()}-{_began(os.getpid())}"


def is_gone(process: str) -> bool:
    """Whether a process has ended, by its name from `this_process`; False where it is of another pid namespace."""
    try:
        namespace, pid, began = process.split("-")
        return namespace == f"{os.stat('/proc/self/ns/pid').st_ino:x}" and _began(int(pid)) != int(began)
    except ValueError:
        return False  # not a name from `this_process`


def _began(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if there is no such process, or it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state in "ZX" else int(fields[18])


def _sweep_folder(path: Path) -> None:
    try:
        if not path.is_symlink() and path.is_dir() and _is_mine(path) and is_gone((path / "owner").read_text()):
            _remove(path)
    except OSError:
        return  # it has no file `owner`, or another run removes it at the same time


def _remove(folder: Path) -> None:
    """Remove a folder of temporary files that only this user may write, with its files."""
    for path in folder.iterdir():
        if not path.is_dir():
            path.unlink(missing_ok=True)
    folder.rmdir()


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # another run removes it at the same time
        return False
