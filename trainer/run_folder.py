"""The folder that a run leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from trainer.config import Config, ConfigError, available_cores, to_yaml

PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "numpy", "hydra-core", "wandb", "ale-py", "box2d", "envpool")
PARTIAL = ".partial"  # ending of a file that is being written


@contextmanager
def opened(config: Config, command: list[str]) -> Iterator[tuple[Path, Config]]:
    """Make the run's folder, or open that of the run that goes on, for this process alone.

    Gives the folder, and the config that names it; what describes the run is written there.

    Raises:
        ConfigError: the folder holds a run already, or one that is going on, or cannot be written.
    """
    path = Path(config.run_dir) if config.run_dir else _default(config)
    config = replace(config, run_dir=str(path))
    if config.resume is None and (path / "config.yaml").exists():
        raise ConfigError(
            f"run_dir={path} holds a run already: go on with it by resume={path}, choose another folder, or delete it"
        )
    try:
        for folder in ("checkpoints", "best", "scratch"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        lock = open(path / "lock", "a+")
    except OSError as error:
        raise ConfigError(f"run_dir={path} cannot be written ({error.strerror}): choose another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the process ends, however it does
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
def scratch_folder(base: Path) -> Iterator[Path]:
    """A folder of this process's own in ``base``, removed afterwards; those whose process is gone are swept.

    A lock tells: it goes with its process, on this node and on others that share the disk.

    Raises:
        ConfigError: it cannot be made.
    """
    name = f"{platform.node()}_{os.getpid()}"
    path, made = base / f"replay_{name}", base / f"new_{name}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        for left in base.glob("replay_*"):
            _sweep(left)
        made.mkdir(exist_ok=True)
        lock = open(made / "lock", "w")
    except OSError as error:
        raise ConfigError(
            f"the scratch folder {base} cannot be written ({error.strerror}): choose another one"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.rename(path)  # only now another one's sweep sees it
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _sweep(folder: Path) -> None:
    try:
        with open(folder / "lock", "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return  # its process lives
    except (FileNotFoundError, PermissionError):
        return  # another one sweeps it; it is another user's


def _describe(path: Path, config: Config, command: list[str], lock: TextIO) -> None:
    """Write what the run is into its folder, and sweep what a killed process left there."""
    lock.truncate(0)
    lock.write(f"pid {os.getpid()} on {platform.node()}\n")
    lock.flush()
    remove_partial(path)
    (path / "summary.json").unlink(missing_ok=True)  # of a run that was given more budget: it is not finished now
    write_text(path / "config.yaml", to_yaml(replace(config, resume=None)))
    with open(path / "command.txt", "a") as commands:
        commands.write(shlex.join(command) + "\n")
    write_json(path / "versions.json", versions(config.seed))


def versions(seed: int) -> dict[str, Any]:
    """What the run was made with: versions, commit, machine and seed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": available_cores(),
        "packages": found,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
        "seed": seed,
    }


def aside_of(path: Path) -> Path:
    """Where a file is written before it is renamed to ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")


def remove_partial(folder: Path) -> None:
    """Remove what processes that are gone were writing anywhere in ``folder`` as they were killed."""
    for path in folder.rglob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write aside and rename."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write aside and rename."""
    aside = aside_of(path)
    with open(aside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _default(config: Config) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", config.env.id).strip("-")
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{name}_{config.algorithm.name}_{config.seed}"
    path, count = Path("runs") / stem, 1
    while path.exists():  # two runs started within one second
        count += 1
        path = Path("runs") / f"{stem}_{count}"
    return path


def _git(*arguments: str) -> str | None:
    """Output of git about the trainer's own checkout; None outside one or without git."""
    root = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
