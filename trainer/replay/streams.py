"""The shared replay: time-ordered streams in one memory-mapped storage, written without a lock.

Every sub-environment has a *stream*: a ring of rows that one process writes in time order; after the rows it publishes
the stream's cursor. The learner draws only published rows (`trainer.replay.uniform`, `trainer.replay.priorities`),
gathers the transitions that start there (`trainer.replay.buffer`), and draws again those that were overwritten
during this (`trainer.replay.buffer`); no process waits for another. As a stream is contiguous in time, n-step returns
and frame stacks are computed by indices at sampling, and each observation is stored once.

The end of an episode takes one more row with its final observation (`final`), at which no transition starts. With
Gymnasium's next-step autoreset it is a step of its own, so the streams of a worker stay in step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
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
    """The places of the streams' rows in the storage.

    A worker's rows are one block, ordered by time, so the rows of one vector step are contiguous.

    Args:
        num_workers: W.
        envs_per_worker: N; stream = worker * N + sub-environment.
        ring: number of rows of one stream.
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
        """Number of rows of the storage."""
        return self.num_streams * self.ring

    @property
    def folder(self) -> str:
        """Name of the folder for rows with this layout."""
        return f"{self.num_workers}x{self.envs_per_worker}x{self.ring}"

    def index(self, stream: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Storage rows of pairs (stream, time), int64 arrays of one shape."""
        n = self.envs_per_worker
        return (stream // n * self.ring + time % self.ring) * n + stream % n

    def later(self, rows: np.ndarray, steps: np.ndarray | int) -> np.ndarray:
        """Storage rows, int64, of the same streams `steps` vector steps later; negative steps are earlier."""
        block = self.ring * self.envs_per_worker  # of a worker
        inside = rows % block
        return rows - inside + (inside + steps * self.envs_per_worker) % block

    def streams_of(self, worker: int) -> slice:
        """The streams that a worker writes."""
        return slice(worker * self.envs_per_worker, (worker + 1) * self.envs_per_worker)


def layout(capacity_frames: int, num_workers: int, envs_per_worker: int) -> StreamLayout:
    """The layout with at most `capacity_frames` rows."""
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
        columns["age"] = ((), "int32")  # steps since the episode's first observation, which limits frame stacks
    return columns


def row_bytes(spec: EnvSpec, with_values: bool = False) -> int:
    """Bytes of one row."""
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in row_spec(spec, with_values).values())


def open_storage(
    spec: EnvSpec, streams: StreamLayout, folder: Path, with_values: bool = False, workers: Sequence[int] | None = None
) -> LazyMemmapStorage:
    """Create a storage of `streams.rows` rows in `folder`, and allocate the disk space of these workers (None: of all).

    Without that, a worker that writes a row would be killed by SIGBUS if the disk was full.

    Raises:
        ConfigError: there is not enough disk space.
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
                part = column.nbytes // streams.num_workers
                for worker in range(streams.num_workers) if workers is None else workers:
                    os.posix_fallocate(file.fileno(), worker * part, part)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else os.strerror(errno.ENOSPC)
        if str(reason) not in str(error):  # torch reports errors of files, and others, as RuntimeError without an errno
            raise
        raise ConfigError(
            f"a replay of {streams.rows} rows finds no room in {folder} ({reason}): lower "
            "replay.capacity_frames or set replay.scratch_dir"
        ) from error
    return storage


def worker_rows(storage: LazyMemmapStorage, streams: StreamLayout, worker: int) -> dict[str, np.ndarray]:
    """A worker's block of each column, arrays [ring, N, ...] in the shared memory."""
    columns = {}
    for name, column in storage._storage.items():
        array = column.numpy()
        columns[name] = array.reshape(streams.num_workers, streams.ring, streams.envs_per_worker, *array.shape[1:])[
            worker
        ]
    return columns


def close_episodes(columns: Columns, streams: StreamLayout, stream: np.ndarray, time: np.ndarray) -> None:
    """End the running episodes of streams whose worker has died.

    The next observation is not known. So the last row of each becomes the final observation of an episode that was
    truncated one step earlier, and its newest transition is lost.

    Args:
        columns: of the whole storage, [rows, ...].
        streams: the layout.
        stream: the streams, int64 [n].
        time: at which a new episode will begin in each, int64 [n].
    """
    stream, time = stream[time > 0], time[time > 0]
    last, before = streams.index(stream, time - 1), streams.index(stream, np.maximum(time - 2, 0))
    going_on = ~columns["final"][last] & ~columns["final"][before] & (time > 1)
    columns["final"][last] = True
    columns["truncated"][before[going_on]] = True
