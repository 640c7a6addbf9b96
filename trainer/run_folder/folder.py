"""Create or open the run folder, and describe the run in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from trainer.config.fields import ConfigError
from trainer.config.machine import available_cores
from trainer.config.run_config import to_yaml
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.reading import ReadError, read_json
from trainer.run_folder import manifest

PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "numpy", "hydra-core", "wandb", "ale-py", "box2d", "envpool")


@contextmanager
def opened(config: Config, command: list[str], here: Path | None = None) -> Iterator[tuple[Path, Config]]:
    """Create the run folder, or open that of a run to resume, for this process alone; write there what the run is.

    Args:
        config: of the run.
        command: the command line.
        here: parent of the folder `runs`, for a run without `run_dir`; None: the working folder.

    Yields:
        The run folder, and the configuration with its `run_dir`.

    Raises:
        ConfigError: the folder has a run already, or one that is going on, or other files; or it is not writable.
    """
    path = Path(config.run_dir).absolute() if config.run_dir else _default(config, here or Path.cwd())
    config = replace(config, run_dir=str(path))
    if config.resume is None and RunFolder(path).config.exists() and not _never_began(path):
        raise ConfigError(
            f"run_dir={path} holds a run already: go on with it by {shlex.quote(f'resume={path}')}, choose another "
            "folder, or delete it"
        )
    _refuse_others(path)
    try:
        for folder in ("checkpoints", "best", "scratch"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        lock = open(RunFolder(path).lock, "a+", errors="replace")
    except OSError as error:
        raise ConfigError(f"run_dir={path} cannot be written ({error.strerror}): choose another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends, even if killed
        except BlockingIOError as error:
            lock.seek(0)
            raise ConfigError(
                f"a run is going on in {path} ({lock.read().strip()}): wait for it, or stop it"
            ) from error
        try:
            _describe(path, config, command, lock)
        except OSError as error:
            raise ConfigError(f"run_dir={path} cannot be written ({error.strerror}): choose another folder") from error
        yield path, config


@contextmanager
def watched(path: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that returns a sentence once the run folder was moved or removed, and "" until then."""
    folder, lock = os.open(path, os.O_PATH | os.O_DIRECTORY), os.open(RunFolder(path).lock, os.O_PATH)

    def gone() -> str:
        try:
            if os.path.samestat(os.stat(RunFolder(path).lock), os.fstat(lock)):
                return ""
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return ""  # the disk does not answer; it may later
        now = Path(os.readlink(f"/proc/self/fd/{folder}"))
        if now == path or not RunFolder(now).lock.exists():
            return f"the run's folder {path} was removed while the run went on: what was in it is lost, start it again"
        return (
            f"the run's folder {path} was moved to {now} while the run went on: its newest checkpoint there is whole, "
            f"go on by {shlex.quote(f'resume={now}')}"
        )

    try:
        yield gone
    finally:
        os.close(folder)
        os.close(lock)


def _refuse_others(path: Path) -> None:
    """Refuse a folder with files that are not of a run.

    Empty folders are allowed, and so is the file into which the user's shell redirects this command's output.

    Raises:
        ConfigError: there is another file; the sentence names it.
    """
    if manifest.is_ours(path) or RunFolder(path).config.exists():
        return
    shell = [os.fstat(number) for number in (1, 2) if _is_open(number)]
    for folder, _, files in os.walk(path, followlinks=True):
        for file in files:
            found = Path(folder) / file
            if not any(os.path.samestat(found.lstat(), output) for output in shell):
                raise ConfigError(
                    f"run_dir={path} holds {found.relative_to(path)} and no run: choose another folder, or an empty one"
                )


def _never_began(path: Path) -> bool:
    """Whether the run in a folder failed before its first frame; then a corrected command may use the folder again."""
    try:
        summary = read_json(RunFolder(path).summary)
    except ReadError:
        return False
    nothing = summary.get("status") == "failed" and summary.get("frames") == 0
    kept = any(file.suffix in (".pt", ".safetensors") for file in path.rglob("*"))
    return nothing and manifest.is_ours(path) and not kept


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _describe(path: Path, config: Config, command: list[str], lock: TextIO) -> None:
    """Write into the run folder what the run is, and remove unfinished files of a killed process."""
    lock.truncate(0)
    lock.write(f"pid {os.getpid()} on {platform.node()}\n")
    lock.flush()
    manifest.begin(path)
    manifest.remove_partial(path)
    summary = RunFolder(path).summary
    if summary.exists():
        try:  # a resumed run is not finished any more
            write_json(summary, {**read_json(summary), "status": "running"})
        except ReadError:  # `compose.load` has reported it
            summary.rename(RunFolder(path).damaged_summary)
    write_text(RunFolder(path).config, to_yaml(replace(config, resume=None)))
    with open(RunFolder(path).command, "a") as commands:
        commands.write(shlex.join(command) + "\n")
    write_json(RunFolder(path).versions, versions(config.seed))


def versions(seed: int) -> dict[str, Any]:
    """Versions of Python and packages, git commit, machine and seed."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": available_cores(),
        "packages": package_versions(PACKAGES),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
        "seed": seed,
    }


def package_versions(packages: Sequence[str] = ("trainer", "torch", "torchrl")) -> dict[str, str | None]:
    """Versions of installed packages; None for those that are not."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        OSError: it could not be written.
    """
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OSError: it could not be written.
    """
    with manifest.written(path) as file:
        file.write(text.encode())


def _default(config: Config, here: Path) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", config.env.id).strip("-")
    algorithm = config.algorithm.name.replace(":", "-")  # of an import path
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{name}_{algorithm}_{config.seed}"
    path, count = here / "runs" / stem, 1
    while path.exists():  # two runs started within one second
        count += 1
        path = here / "runs" / f"{stem}_{count}"
    return path


def _git(*arguments: str) -> str | None:
    """Output of git in the trainer's checkout; None outside a checkout or without git."""
    root = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
