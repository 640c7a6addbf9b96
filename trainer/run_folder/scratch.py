"""The scratch folder of a run, for its replay: on the disk of its node, with a random name, private to its user."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainer.config.fields import ConfigError
from trainer.run_folder import manifest

PREFIX, LOCK = "trainer_", "lock"


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Create a folder for this process in `base`, remove it at the end, and remove those of processes that have ended.

    A lock on a file in the folder tells whether its process lives, also on other nodes that share the disk. Only files
    in the folder's manifest are deleted.

    Raises:
        ConfigError: the folder could not be made, or `base` is a symbolic link of another user.
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
    """Create a folder in `base` that only this user may read; returns it and the descriptor of its locked file.

    Raises:
        OSError: it could not be made; nothing is left.
    """
    with ExitStack() as undo:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        undo.callback(path.rmdir)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        undo.callback(os.close, lock)
        undo.callback((path / LOCK).unlink)
        fcntl.flock(lock, fcntl.LOCK_EX)
        undo.callback(manifest.remove_all, path)
        manifest.begin(path)  # after the lock, as `_sweep` removes only folders with a manifest
        manifest.add(path / LOCK)
        undo.pop_all()
    return path, lock


def _sweep(folder: Path) -> None:
    """Remove a scratch folder whose process has ended; folders of other users, or of another kind, stay."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not manifest.is_ours(folder):
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return  # another run removes it at the same time
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        manifest.remove_all(folder)
    except BlockingIOError:
        return  # its process is alive
    finally:
        os.close(lock)
