"""A run's folder for the bytes of one node, as its replay; nobody else can foresee its name, or look into it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainer.config.sections import ConfigError
from trainer.run_folder import manifest

PREFIX, LOCK = "trainer_", "lock"


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """A folder of this process's own in `base`, removed afterwards; those whose process is gone are swept.

    A lock tells: it goes with its process, on this node and on others that share the disk. Of either only what its
    manifest names is deleted.

    Raises:
        ConfigError: it cannot be made, or `base` is another user's link to somewhere else.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        if base.is_symlink() and base.lstat().st_uid not in (0, os.geteuid()):
            raise ConfigError(f"the scratch folder {base} is a link that another user made: choose another one")
        for left in base.glob(f"{PREFIX}*"):
            _sweep(left)
        path, lock = _made(base)
    except OSError as error:
        raise ConfigError(
            f"the scratch folder {base} cannot be written ({error.strerror}): choose another one"
        ) from error
    try:
        yield path
    finally:
        manifest.remove_all(path)
        os.close(lock)


def _made(base: Path) -> tuple[Path, int]:
    """A new folder in `base`, for this user alone, and the open file that locks it.

    Raises:
        OSError: the disk refuses; nothing is left.
    """
    with ExitStack() as undo:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        undo.callback(path.rmdir)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        undo.callback(os.close, lock)
        undo.callback((path / LOCK).unlink)
        fcntl.flock(lock, fcntl.LOCK_EX)
        undo.callback(manifest.remove_all, path)
        manifest.begin(path)  # only now another one's sweep takes it for one of ours
        manifest.add(path / LOCK)
        undo.pop_all()
    return path, lock


def _sweep(folder: Path) -> None:
    """Remove a folder of ours whose process is gone; one of another user, or of another kind, is left alone."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not manifest.is_ours(folder):
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return  # another one sweeps it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        manifest.remove_all(folder)
    except BlockingIOError:
        return  # its process lives
    finally:
        os.close(lock)
