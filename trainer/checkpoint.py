"""Checkpoints: tensors and plain values in one file, written aside and renamed, loaded without running pickled code."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer.config import ConfigError, first_line
from trainer.reading import ReadError
from trainer.run_folder import aside_of

FORMAT = 1


def write_aside(state: dict[str, Any], path: Path) -> None:
    """``torch.save`` that leaves either the whole file or none: written beside it, flushed to the disk, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(path)
    try:
        with open(aside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def save(folder: Path, state: dict[str, Any], frames: int, keep_last: int) -> Path:
    """Save ``state`` as ``folder/frames_<frames>.pt`` and delete all but the newest ``keep_last``."""
    path = folder / f"frames_{frames:012d}.pt"
    write_aside({"format": FORMAT, **state}, path)
    for old in numbered(folder)[:-keep_last]:
        if old != path:
            old.unlink()
    return path


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("frames_*.pt"))


def newest(folder: Path, torn: Callable[[Path, str], None] = lambda path, why: None) -> dict[str, Any] | None:
    """The newest whole checkpoint of a run, or None where there is none; ``torn`` is told of those that are not."""
    for path in reversed(numbered(folder)):
        try:
            return load(path)
        except ReadError as error:
            torn(path, str(error))
    return None


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` or :func:`write_aside` wrote, on the CPU.

    Raises:
        ReadError: no such file, not a whole checkpoint, or one that holds more than tensors and plain values.
    """
    if not path.is_file():
        raise ReadError(f"there is no checkpoint {path}: is the run's folder right, and did it train at all?")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ReadError(
            f"checkpoint {path} is torn, or it holds more than tensors and plain values, which is not loaded, as it "
            "could run code: use another"
        ) from error
    # What else torch and its unpickler raise over damaged bytes.
    except (RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError, ImportError) as error:
        raise ReadError(
            f"checkpoint {path} is torn or no checkpoint ({first_line(error)}): delete it or use another"
        ) from error


def policy_weights(path: Path, numel: int) -> torch.Tensor:
    """Weights, float32 [numel], of a policy.pt or a snapshot of any run.

    Args:
        path: of the file.
        numel: of the network that is to take them.

    Raises:
        ReadError: it cannot be read, is none of these, or is of another network.
    """
    kept = load(path)
    flat = kept.get("weights") if isinstance(kept, dict) else None
    if not isinstance(flat, torch.Tensor):
        raise ReadError(f"{path} holds no policy: name a policy.pt or a snapshot_*.pt")
    if flat.numel() != numel:
        raise ReadError(
            f"{path} has {flat.numel()} weights where the agent's network has {numel}: name a policy of the same "
            "environment and algorithm, with the same layers"
        )
    return flat.float()


def named_weights(path: Path, numel: int, key: str) -> torch.Tensor:
    """As :func:`policy_weights`, of a file that the configuration names by ``key``.

    Raises:
        ConfigError: as `ReadError` there.
    """
    try:
        return policy_weights(path, numel)
    except ReadError as error:
        raise ConfigError(f"{key}: {error}") from error
