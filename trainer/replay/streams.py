"""The shared replay: time-ordered streams in one memory-mapped storage, written without a lock.

Every sub-environment owns a *stream*: a ring of rows that one process writes, in time order, and whose cursor it
publishes after the rows. The learner draws published rows only (`trainer.replay.uniform`, `trainer.replay.priorities`),
gathers them with what follows them (`trainer.replay.transitions`), and draws again those that were overwritten
meanwhile (`trainer.replay.buffer`); nobody waits for anybody. As a stream is contiguous in time, n-step returns and
frame stacks are index arithmetic at sampling, and no observation is stored twice.

An episode's end takes one more row, its final observation (`final`), which is never drawn as a start: Gymnasium's
next-step autoreset yields it by itself, and it keeps the streams of a worker in step.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage

from trainer.config.fields import ConfigError
from trainer.envs import EnvSpec
from trainer.run_folder import manifest

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class StreamLayout:
    """Where a stream's rows lie in the storage.

    A worker's rows are one block, time first: what it writes in one vector step is contiguous.

    Args:
        num_workers: W.
        envs_per_worker: N; stream = worker * N + sub-environment.
        ring: rows of one stream.
    """

    num_workers: int
    envs_per_worker: int
    ring: int

    @property
    def num_streams(self) -> int:
        """S = W * N."""
        return self.num_workers * self.envs_per_worker

    @property
    def rows(self) -> int:
        """Rows of the whole storage."""
        return self.num_streams * self.ring

    @property
    def folder(self) -> str:
        """Name of the folder that holds rows which lie like this."""
        return f"{self.num_workers}x{self.envs_per_worker}x{self.ring}"

    def index(self, stream: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Storage rows of (stream, time) pairs, int64 arrays of one shape."""
        n = self.envs_per_worker
        return (stream // n * self.ring + time % self.ring) * n + stream % n

    def later(self, rows: np.ndarray, steps: np.ndarray | int) -> np.ndarray:
        """Storage rows of the same streams `steps` vector steps later, or earlier where that is below 0; int64."""
        block = self.ring * self.envs_per_worker  # of a worker
        inside = rows % block
        return rows - inside + (inside + steps * self.envs_per_worker) % block

    def streams_of(self, worker: int) -> slice:
        """The streams that a worker writes."""
        return slice(worker * self.envs_per_worker, (worker + 1) * self.envs_per_worker)


def layout(capacity_frames: int, num_workers: int, envs_per_worker: int) -> StreamLayout:
    """The layout for at most `capacity_frames` rows."""
    return StreamLayout(num_workers, envs_per_worker, capacity_frames // (num_workers * envs_per_worker))


def row_spec(spec: EnvSpec, with_values: bool = False) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and NumPy dtype of each column of a row."""
    columns = {leaf.name: (leaf.shape, leaf.dtype) for leaf in spec.leaves}
    if spec.action.has_mask:
        columns["action_mask"] = ((spec.num_actions,), "bool")
    columns |= {
        "action": (spec.action.shape, spec.action.dtype),
        "reward": ((), "float32"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
        "final": ((), "bool"),
    }
    if with_values:  # of the collector's network, for the first priority of a row
        columns |= {"value_taken": ((), "float32"), "value_best": ((), "float32")}
    if spec.stack > 1:
        columns["age"] = ((), "int32")  # steps since the episode's first observation: how far a stack may look back
    return columns


def row_bytes(spec: EnvSpec, with_values: bool = False) -> int:
    """Bytes of one row."""
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in row_spec(spec, with_values).values())


def open_storage(spec: EnvSpec, streams: StreamLayout, folder: Path, with_values: bool = False) -> LazyMemmapStorage:
    """A storage of `streams.rows` rows in `folder`, whose space on the disk is taken at once.

    Else a disk that others fill meanwhile would end the worker that writes the next row, by SIGBUS.

    Raises:
        ConfigError: there is no room for it.
    """
    storage = LazyMemmapStorage(streams.rows, scratch_dir=str(folder), auto_cleanup=False)
    columns = row_spec(spec, with_values)
    row = {name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in columns.items()}
    try:
        manifest.add(*(folder / f"{name}.memmap" for name in columns), folder / "meta.json")
        storage._init(TensorDict(row, []))  # fixes the columns before any worker exists
        for column in storage._storage.values():
            with open(column.filename, "r+b") as file:
                os.fchmod(file.fileno(), 0o600)
                os.posix_fallocate(file.fileno(), 0, column.nbytes)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else os.strerror(errno.ENOSPC)
        if str(reason) not in str(error):  # torch's errors of a file are RuntimeErrors without a number, as are others
            raise
        raise ConfigError(
            f"a replay of {streams.rows} rows finds no room in {folder} ({reason}): lower "
            "replay.capacity_frames or set replay.scratch_dir"
        ) from error
    return storage


def worker_rows(storage: LazyMemmapStorage, streams: StreamLayout, worker: int) -> dict[str, np.ndarray]:
    """A worker's block of each column as arrays [ring, N, ...] on the shared memory."""
    columns = {}
    for name, column in storage._storage.items():
        array = column.numpy()
        columns[name] = array.reshape(streams.num_workers, streams.ring, streams.envs_per_worker, *array.shape[1:])[
            worker
        ]
    return columns


def close_episodes(columns: Columns, streams: StreamLayout, stream: np.ndarray, time: np.ndarray) -> None:
    """End the episodes of streams whose writer is gone before row `time`, int64 [n] each.

    Their last row becomes the final observation of an episode that was truncated one step earlier, as what the
    environment would have shown next is not known: the newest transition of each is given up.

    Args:
        columns: of the whole storage, [rows, ...].
        streams: the layout.
        stream: whose episodes.
        time: where a new episode is to begin.
    """
    stream, time = stream[time > 0], time[time > 0]
    last, before = streams.index(stream, time - 1), streams.index(stream, np.maximum(time - 2, 0))
    going_on = ~columns["final"][last] & ~columns["final"][before] & (time > 1)
    columns["final"][last] = True
    columns["truncated"][before[going_on]] = True
