"""The shared replay: time-ordered streams in one memory-mapped storage, written without a lock.

Every sub-environment owns a *stream*: a ring of rows that one process writes, in time order, and whose cursor it
publishes after the rows. The learner draws published rows only, gathers them with what follows them, and draws again
those that were overwritten meanwhile; nobody waits for anybody. As a stream is contiguous in time, n-step returns and
frame stacks are index arithmetic at sampling, and no observation is stored twice.

An episode's end takes one more row, its final observation (`final`), which is never drawn as a start: Gymnasium's
next-step autoreset yields it by itself, and it keeps the streams of a worker in step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler

from trainer.config.sections import ConfigError
from trainer.envs import EnvSpec
from trainer.run_folder import manifest

Batch = dict[str | tuple[str, str], Tensor]
Columns = dict[str, np.ndarray]
FirstPriority = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


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


class StreamSampler(Sampler):
    """Draws uniformly over published transitions that are still whole.

    Args:
        cursor: int64 [S], rows published in each stream; shared with the workers.
        streams: the layout.
        ahead: rows after a start that must be published (n of the n-step return).
        behind: rows before a start that must still be there (frame stack - 1).
        seed: of the draws.
        oldest: int64 [S], time of the oldest row of each stream that a resumed run has; shared.
    """

    prioritized = False

    def __init__(
        self, cursor: np.ndarray, streams: StreamLayout, ahead: int = 1, behind: int = 0, seed: int = 0,
        oldest: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cursor, self.streams, self.ahead, self.behind = cursor, streams, ahead, behind
        self.rng = np.random.default_rng(seed)
        self.oldest = np.zeros(streams.num_streams, np.int64) if oldest is None else oldest

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """For each stream the times [begin, end) at which a transition may start now, int64 [S] each."""
        cursor = self.cursor.copy()
        # A full ring's oldest row may be under the writer's pen, hence + 1; a stack needs the rows behind a start too.
        begin = np.where(cursor >= self.streams.ring, cursor - self.streams.ring + 1 + self.behind, 0)
        begin = np.maximum(begin, self.oldest + self.behind * (self.oldest > 0))
        return begin, np.maximum(begin, cursor - self.ahead)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` pairs (stream, time), int64 [count] each, some of which may be final rows.

        Raises:
            RuntimeError: no stream holds a whole transition yet.
        """
        begin, end = self.whole()
        size = end - begin
        upto = np.cumsum(size)
        if upto[-1] == 0:
            raise RuntimeError("the replay holds no whole transition yet")
        x = self.rng.integers(0, upto[-1], count)
        stream = np.searchsorted(upto, x, side="right")
        return stream, begin[stream] + x - (upto[stream] - size[stream])

    def intact(self, stream: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Bool [count]: the rows that a start needs were not overwritten until now."""
        return np.maximum(time - self.behind, 0) > self.cursor[stream] - self.streams.ring

    def sample(self, storage, batch_size: int) -> tuple[Tensor, dict]:
        """TorchRL's interface: rows of the storage, and the pairs they stand for."""
        stream, time = self.draw(batch_size)
        info = {"stream": torch.from_numpy(stream), "time": torch.from_numpy(time)}
        return torch.from_numpy(self.streams.index(stream, time)), info

    def metrics(self) -> dict[str, float]:
        """Nothing to log."""
        return {}

    def state_dict(self) -> dict:
        """The random generator's state."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on with the draws of a checkpoint."""
        self.rng.bit_generator.state = state_dict["rng"]

    def _empty(self) -> None:
        """Nothing is kept besides the cursors, which the workers own."""

    def dumps(self, path) -> None:
        """Not used: checkpoints take the state dict."""
        raise NotImplementedError

    def loads(self, path) -> None:
        """Not used: checkpoints take the state dict."""
        raise NotImplementedError


class StreamReplay(TensorDictReplayBuffer):
    """TorchRL replay buffer whose samples are whole n-step transitions out of streams.

    Args:
        spec: the environment.
        storage: from :func:`open_storage`.
        sampler: draws the starts.
        gamma: discount within an n-step return.
        n_step: n.
        batch_size: B.
        pin_memory: keep gathered batches in page-locked memory, for copies to a GPU that overlap with its work.
    """

    def __init__(
        self,
        spec: EnvSpec,
        storage: LazyMemmapStorage,
        sampler: StreamSampler,
        gamma: float,
        n_step: int,
        batch_size: int,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(storage=storage, sampler=sampler, batch_size=batch_size, shared=True)
        self.spec, self.gamma, self.n_step = spec, gamma, n_step
        self.redrawn = 0
        self._pinned = pin_memory
        self._returned: list[tuple[Tensor, Tensor, Tensor]] = []  # priorities that the sampler has not taken yet
        self._open()

    def _open(self) -> None:
        self._columns = {name: column.numpy() for name, column in self._storage._storage.items()}
        self._buffers: dict[str, np.ndarray] = {}

    def __getstate__(self):
        state = super().__getstate__()
        # Workers write into the storage and never sample: neither the views nor the learner's draws go to them.
        return {k: v for k, v in state.items() if k not in ("_columns", "_buffers")}

    def batches(self, count: int) -> Batch:
        """`count` batches gathered at once, which costs little more than one; tensors [count, B, ...].

        Keys: `action` as the spec says, the observation's leaves, `("next", leaf)` the same leaves n steps later,
        `("next", "reward")` float32 [1] (the discounted sum of up to n rewards), `("next", "terminated")`,
        `("next", "truncated")` and `("next", "done")` bool [1], `index`, `stream` and `time` int64 [],
        `priority_weight` float32 [] of prioritized draws, and with n > 1 `steps_to_next_obs` int64 [1]. The tensors
        are overwritten by the next call.
        """
        whole = self._gather(count * self._batch_size, self._batch_size)
        return {key: tensor.view(count, self._batch_size, *tensor.shape[1:]) for key, tensor in whole.items()}

    def example(self) -> Batch:
        """A batch [B, ...] of the form that :meth:`batches` gives, out of rows that need not be written yet."""
        start = np.zeros(self._batch_size, np.int64)
        return self._weighted(self._read(start, start), start, start, self._batch_size)

    def sample(self, batch_size: int | None = None, return_info: bool = False):
        """TorchRL's interface: one batch as a TensorDict [B] with keys as in :meth:`batches`."""
        size = batch_size or self._batch_size
        own, self._buffers = self._buffers, {}  # a caller of this interface keeps what it gets
        sample = to_tensordict(self._gather(size, size), size)
        self._buffers = own
        return (sample, {}) if return_info else sample

    def reprioritize(self, batch: Batch, priority: Tensor) -> None:
        """Take the new priorities float [B] of a batch; they count from the next gathering on."""
        if self._sampler.prioritized:
            self._returned.append((batch["stream"], batch["time"], priority))

    def take_priorities(self) -> None:
        """Hand what :meth:`reprioritize` was given to the sampler; on a GPU this waits for the last update."""
        if self._returned:
            parts = [torch.cat(tensors).cpu().numpy() for tensors in zip(*self._returned, strict=True)]
            self._sampler.update(*parts)
            self._returned.clear()

    def _weighted(self, batch: Batch, stream: np.ndarray, time: np.ndarray, batch_size: int) -> Batch:
        if self._sampler.prioritized:
            batch["priority_weight"] = torch.from_numpy(self._sampler.weights(stream, time, batch_size))
        return batch

    def first_priorities(self, stream: np.ndarray, time: np.ndarray, priority: FirstPriority) -> np.ndarray:
        """Priorities float64 [n] of new transitions by the values that the collectors acted by.

        Args:
            stream: of their starts, int64 [n].
            time: likewise.
            priority: of the algorithm; see :class:`trainer.algorithms.Algorithm`.
        """
        index = self._sampler.streams.index
        rows = index(stream, time)
        returns, steps = self._returns(stream, time, rows)
        going_on = ~self._columns["terminated"][index(stream, time + steps - 1)]
        following = self._columns["value_best"][index(stream, time + steps)]
        going_on &= np.isfinite(following)  # infinite: no action was legal
        following = np.where(going_on, following, 0.0)
        values = (self.gamma**steps * going_on, following, self._columns["value_taken"][rows])
        return priority(returns[:, 0], *map(torch.from_numpy, values)).double().numpy()

    def _gather(self, count: int, batch_size: int) -> Batch:
        self.take_priorities()
        stream, time = self._draw_starts(count)
        while True:
            batch = self._read(stream, time)
            bad = np.flatnonzero(~self._sampler.intact(stream, time))
            if not len(bad):
                return self._weighted(batch, stream, time, batch_size)
            self.redrawn += len(bad)
            stream[bad], time[bad] = self._draw_starts(len(bad))

    def _draw_starts(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (stream, time) that start a transition: a final row starts none."""
        stream, time = self._sampler.draw(count)
        bad = np.flatnonzero(self._columns["final"][self._sampler.streams.index(stream, time)])
        while len(bad):
            stream[bad], time[bad] = self._sampler.draw(len(bad))
            still = self._columns["final"][self._sampler.streams.index(stream[bad], time[bad])]
            bad = bad[still]
        return stream, time

    def _read(self, stream: np.ndarray, time: np.ndarray) -> Batch:
        index = self._sampler.streams.index
        rows = index(stream, time)
        returns, steps = self._returns(stream, time, rows)
        last = rows if self.n_step == 1 else index(stream, time + steps - 1)
        following = index(stream, time + steps)
        terminated, truncated = self._take("terminated", last), self._take("truncated", last)
        batch: Batch = {"action": self._take("action", rows)}
        if self.spec.action.has_mask:
            batch["action_mask"] = self._take("action_mask", rows)
            batch["next", "action_mask"] = self._take("action_mask", following, "next")
        for leaf in self.spec.leaves:
            if leaf.stack > 1:
                batch[leaf.name] = self._take_stack(leaf.name, leaf.stack, stream, time, rows)
                batch["next", leaf.name] = self._take_stack(
                    leaf.name, leaf.stack, stream, time + steps, following, "next"
                )
            else:
                batch[leaf.name] = self._take(leaf.name, rows)
                batch["next", leaf.name] = self._take(leaf.name, following, "next")
        batch["next", "reward"] = returns
        batch["next", "terminated"] = terminated.unsqueeze(-1)
        batch["next", "truncated"] = truncated.unsqueeze(-1)
        batch["next", "done"] = (terminated | truncated).unsqueeze(-1)
        if self.n_step > 1:
            batch["steps_to_next_obs"] = torch.from_numpy(steps).unsqueeze(-1)
        batch["index"] = torch.from_numpy(rows)
        batch["stream"], batch["time"] = torch.from_numpy(stream), torch.from_numpy(time)
        return batch

    def _returns(self, stream: np.ndarray, time: np.ndarray, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """n-step returns float32 [count, 1] and their lengths int64 [count] (Sutton and Barto 2018, eq. 12.1).

        R = sum_{k < m} gamma^k r_{t+k}, where m is n, or less when the episode ends before.
        """
        if self.n_step == 1:
            return self._take("reward", rows).unsqueeze(-1), np.ones(len(time), np.int64)
        window = self._sampler.streams.index(stream[:, None], time[:, None] + np.arange(self.n_step))
        ended = self._columns["terminated"][window] | self._columns["truncated"][window]
        before = np.cumsum(ended, axis=1) - ended  # ends strictly before step k
        alive = before == 0
        discounts = self.gamma ** np.arange(self.n_step)
        returns = (self._columns["reward"][window] * alive * discounts).sum(1, dtype=np.float64)
        return torch.from_numpy(returns.astype(np.float32)).unsqueeze(-1), alive.sum(1)

    def _take(self, name: str, rows: np.ndarray, role: str = "") -> Tensor:
        column = self._columns[name]
        buffer = self._buffer(role + name, (*rows.shape, *column.shape[1:]), column.dtype)
        np.take(column, rows, axis=0, out=buffer, mode="clip")  # clip: the other modes copy once more
        return torch.from_numpy(buffer)

    def _take_stack(
        self, name: str, stack: int, stream: np.ndarray, time: np.ndarray, rows: np.ndarray, role: str = ""
    ) -> Tensor:
        """Frames time - stack + 1 .. time, [count, stack, ...]; before the episode's first frame that one repeats."""
        age = self._columns["age"][rows]
        back = np.minimum(np.arange(stack - 1, -1, -1), age[:, None])
        return self._take(name, self._sampler.streams.index(stream[:, None], time[:, None] - back), role)

    def _buffer(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < shape[0] or buffer.shape[1:] != shape[1:]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=self._pinned)
            buffer = self._buffers[key] = tensor.numpy()
        return buffer[: shape[0]]  # chunks of many sizes share one buffer: new memory costs more than filling it


def to_tensordict(batch: Batch, batch_size: int) -> TensorDict:
    """A batch as the nested TensorDict [B] that TorchRL's losses take."""
    following = {key[1]: tensor for key, tensor in batch.items() if isinstance(key, tuple)}
    current = {key: tensor for key, tensor in batch.items() if isinstance(key, str)}
    size = [batch_size]
    return TensorDict({**current, "next": TensorDict(following, size)}, size)
