"""What processes leave on their node when all are killed at once: called after their owner, and swept by the next run.

Semaphores lie in /dev/shm by name, sockets in a folder for temporary files; both outlive whoever made them.
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
    """Let what multiprocessing makes by name, here and in its children, be called after it; sweep what is nobody's.

    Raises:
        ConfigError: the folder for temporary files cannot be written.
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
    # Python offers no other way to say either; children take both over.
    names = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    names["semprefix"] = f"/{PREFIX}{this_process()}"
    if "tempdir" not in names:
        made = Path(tempfile.mkdtemp(prefix=PREFIX))
        (made / "owner").write_text(this_process())
        names["tempdir"] = str(made)
        util.Finalize(None, _remove, args=(made,), exitpriority=-100)


def this_process() -> str:
    """A name that no other process has or will have on this node: its namespace, its number, and when it began."""
    return f"{os.stat('/proc/self/ns/pid').st_ino:x}-{os.getpid()}-{_began(os.getpid())}"


def is_gone(process: str) -> bool:
    """Whether a process, by the name that it gave itself, has ended; of other namespaces nobody knows."""
    try:
        namespace, pid, began = process.split("-")
        return namespace == f"{os.stat('/proc/self/ns/pid').st_ino:x}" and _began(int(pid)) != int(began)
    except ValueError:
        return False  # not one of our names


def _began(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 where there is none, or it has ended."""
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
        return  # it has no owner's name, or another run sweeps it


def _remove(folder: Path) -> None:
    """A folder of temporary files and what is in it: nobody else may write there."""
    for path in folder.iterdir():
        if not path.is_dir():
            path.unlink(missing_ok=True)
    folder.rmdir()


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # another run sweeps it too
        return False
