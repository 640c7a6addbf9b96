"""Checkpoints: tensors and plain values in one file, written whole or not at all, loaded without running pickled code.

A file is a zip archive from `torch.save`, with the CRC-32 of all bytes before it as the archive's comment: `torch.load`
can read it, and any damage is noticed. Files of format 1 have no CRC.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line
from trainer.config.run_files import RunFolder
from trainer.reading import ReadError, read_bytes
from trainer.run_folder import manifest, policy_file

FORMAT = 2
KNOWN = (1, FORMAT)
MARK = b"trainer crc32 "  # beginning of the archive's comment
COMMENT = len(MARK) + 8  # length of the comment in bytes
END = (
    b"PK\x05\x06"  # begins the last 22 bytes of a zip archive; their last two are the length of the comment after them
)
NAME = re.compile(r"frames_\d{12}\.pt")


def write_aside(state: dict[str, Any], path: Path) -> None:
    """As `torch.save`, but whole or not at all: written into another file, flushed to the disk, then renamed.

    Args:
        state: tensors and plain values.
        path: of the file.

    Raises:
        OSError: it could not be written; an older file at `path` is still there.
    """
    made = io.BytesIO()  # in memory first, as torch reports a full disk as a RuntimeError without an errno
    torch.save({**state, "format": FORMAT}, made)
    whole = made.getbuffer()
    tail = COMMENT.to_bytes(2, "little") + MARK
    checksum = zlib.crc32(tail, zlib.crc32(whole[:-2]))
    path.parent.mkdir(exist_ok=True)  # without parents: a run folder that was removed is not made again
    with manifest.written(path) as file:
        for part in (whole[:-2], tail, f"{checksum:08x}".encode()):
            file.write(part)


def save(folder: Path, state: dict[str, Any], frames: int, keep_last: int) -> Path:
    """Save a checkpoint as `folder/frames_<frames>.pt`, and delete all but the newest `keep_last` of this run.

    Raises:
        OSError: it could not be written.
    """
    path = folder / f"frames_{frames:012d}.pt"
    write_aside(state, path)
    manifest.remove(*(old for old in numbered(folder)[:-keep_last] if old != path))
    return path


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("frames_*.pt") if NAME.fullmatch(path.name))


def newest(
    folder: Path, torn: Callable[[Path, str], None] = lambda path, why: None, *needed: str
) -> dict[str, Any] | None:
    """Load the newest undamaged checkpoint of a run.

    Args:
        folder: of the checkpoints.
        torn: called with the path of each damaged one, and a sentence.
        needed: keys that a checkpoint must have.

    Returns:
        The checkpoint; None if there is no undamaged one.

    Raises:
        ConfigError: its format is unknown.
    """
    for path in reversed(numbered(folder)):
        try:
            return load(path, *needed)
        except ReadError as error:
            torn(path, str(error))
    return None


def whole(path: Path, tell: Callable[[str], None], *needed: str) -> dict[str, Any] | None:
    """Load a file by `load`, if it is there and undamaged.

    Args:
        path: of the file.
        tell: takes a sentence about a damaged file, which is then renamed.
        needed: keys that it must have.

    Returns:
        The content; None if there is no file, or a damaged one.

    Raises:
        ConfigError: its format is unknown.
    """
    if not path.exists():
        return None
    try:
        return load(path, *needed)
    except ReadError as error:
        aside = path.with_name(f"torn_{path.name}")
        path.rename(aside)
        tell(f"warning: {error}; it is now {aside.name}, and the run goes on without it")
        return None


def load(path: Path, *needed: str) -> dict[str, Any]:
    """Load a file that `save` or `write_aside` wrote, or a policy file; its tensors are on the CPU.

    Args:
        path: of the file.
        needed: keys that it must have.

    Raises:
        ReadError: there is no such file; it is damaged, lacks a key, or holds more than tensors and plain values.
        ConfigError: its format is unknown.
    """
    if not path.is_file():
        raise ReadError(f"there is no checkpoint {path}: is the run's folder right, and did it train at all?")
    data = read_bytes(path)
    if not data.startswith(b"PK") and (path.suffix == policy_file.SUFFIX or policy_file.is_policy_file(data)):
        return _with(path, policy_file.state_of(path, data), needed)
    sealed = _is_whole(path, data)
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ReadError(
            f"checkpoint {path} is torn, or it holds more than tensors and plain values, which is not loaded, as it "
            "could run code: use another"
        ) from error
    # All that torch and its unpickler may raise for damaged bytes.
    except (
        RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError, ImportError,
        AssertionError, OverflowError, MemoryError, struct.error,
    ) as error:  # fmt: skip
        raise ReadError(
            f"checkpoint {path} is torn or no checkpoint ({first_line(error)}): delete it or use another"
        ) from error
    found = state.get("format", 1) if isinstance(state, dict) else 1
    if found not in KNOWN:
        raise ConfigError(
            f"checkpoint {path} has format {found}, and this trainer knows {' and '.join(map(str, KNOWN))}: use the "
            "trainer that wrote it, or another checkpoint"
        )
    if found != 1 and not sealed:
        raise ReadError(f"checkpoint {path} is torn (its checksum is gone): delete it or use another")
    return _with(path, state, needed)


def _with(path: Path, state: Any, needed: Sequence[str]) -> dict[str, Any]:
    """The state that was read, if it has the needed keys."""
    missing = [key for key in needed if not isinstance(state, dict) or key not in state]
    if missing or not isinstance(state, dict):
        what = f"has no {missing[0]}" if missing else f"is a {type(state).__name__}"
        raise ReadError(f"{path} is another kind of checkpoint (it {what}): name the file that is meant")
    return state


def _is_whole(path: Path, data: bytes) -> bool:
    """Check the checksum of a file; False if it has none, as files of format 1.

    Raises:
        ReadError: the checksum is wrong, or the file was cut off.
    """
    if data[-COMMENT:-8] == MARK:
        if data[-8:] == f"{zlib.crc32(data[:-8]):08x}".encode():
            return True
        raise ReadError(f"checkpoint {path} is torn or damaged (its checksum is wrong): delete it or use another")
    if data.startswith(b"PK") and not (data[-22:].startswith(END) and data.endswith(b"\0\0")):
        raise ReadError(f"checkpoint {path} is torn (its end is missing): delete it or use another")
    return False


def best_policy(folder: RunFolder) -> Path:
    """The file of a run's best policy, which older versions of the trainer wrote in another format."""
    return _there(folder.best_policy, folder.older_best_policy)


def last_policy(folder: RunFolder) -> Path:
    """The file of a run's last policy, which older versions of the trainer wrote in another format."""
    return _there(folder.last_policy, folder.older_last_policy)


def progress(folder: RunFolder) -> Path:
    """The file with what a run's newest checkpoint holds of no single agent."""
    return _there(folder.progress, folder.older_last_policy)


def series(folder: RunFolder) -> dict[int, Path]:
    """The policies that a run has kept for good, by their frames; older versions of the trainer wrote another format.

    Those of newer versions have precedence.
    """
    older, newer = numbered(folder.policies), sorted(folder.policies.glob("frames_*.safetensors"))
    found = [(path.stem.removeprefix("frames_"), path) for path in (*older, *newer)]
    return dict(sorted((int(frames), path) for frames, path in found if frames.isdecimal()))


def _there(path: Path, older: Path) -> Path:
    return older if older.exists() and not path.exists() else path


def policy_weights(path: Path, numel: int) -> torch.Tensor:
    """Load the weights of a policy file or a snapshot of any run.

    Args:
        path: of the file.
        numel: number of weights of the network that takes them.

    Returns:
        float32 [numel].

    Raises:
        ReadError: the file could not be read, is of another kind, or of another network.
    """
    flat = load(path).get("weights")
    if not isinstance(flat, torch.Tensor):
        raise ReadError(f"{path} holds no policy: name a policy.safetensors or a snapshot_*.pt")
    if flat.numel() != numel:
        raise ReadError(
            f"{path} has {flat.numel()} weights where the agent's network has {numel}: name a policy of the same "
            "environment and algorithm, with the same layers"
        )
    return flat.float().flatten()


def named_weights(path: Path, numel: int, key: str) -> torch.Tensor:
    """As `policy_weights`, for a file that is named by a key of the configuration.

    Raises:
        ConfigError: in the cases of `ReadError` there; the sentence begins with `key`.
    """
    try:
        return policy_weights(path, numel)
    except ReadError as error:
        raise ConfigError(f"{key}: {error}") from error
