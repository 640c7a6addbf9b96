"""TorchRL's replay buffer over the streams of many writers, and its storage, whose items are n-step transitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from trainer.config.algorithms import AlgorithmConfig
from trainer.config.sections import ReplayConfig
from trainer.envs import EnvSpec
from trainer.replay.priorities import PrioritizedStreamSampler
from trainer.replay.streams import Columns, StreamLayout
from trainer.replay.uniform import StreamSampler

Memory = dict[str, np.ndarray]  # arrays for gathered rows, used again in the next call
FirstPriority = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Transitions(Storage):
    """A TorchRL storage whose item at a row is the n-step transition that starts there; collectors write the rows.

    Args:
        spec: the environment.
        columns: of the rows, [rows, ...], in the memory that the collectors write.
        streams: the layout.
        cursor: int64 [S], rows published in each stream; shared with the collectors.
        gamma: discount within an n-step return.
        n_step: n.
        pin_memory: whether `memory` is page-locked, so that copies to a GPU overlap with its work.

    Attributes:
        memory: arrays for the next transitions; None: each call allocates new ones.
        normalized: mean and scale, float32 [*leaf.shape] each, of the leaves that are returned as (x - mean) * scale.
        reward_scale: what each reward is multiplied by; None: nothing.
        reward_clip: largest absolute value of a reward that is scaled.
    """

    device = torch.device("cpu")

    def __init__(
        self, spec: EnvSpec, columns: Columns, streams: StreamLayout, cursor: np.ndarray, gamma: float, n_step: int,
        pin_memory: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(streams.rows, compilable=True)  # else it allocates shared memory to count its writes
        self.spec, self.streams, self.gamma, self.n_step = spec, streams, gamma, n_step
        self.memory: Memory | None = None
        self.normalized: dict[str, tuple[Tensor, Tensor]] = {}
        self.reward_scale: float | None = None
        self.reward_clip = np.inf
        self.columns, self._cursor, self._pinned = columns, cursor, pin_memory

    def __len__(self) -> int:
        """Number of rows that are published and not overwritten."""
        return int(np.minimum(self._cursor, self.streams.ring).sum())

    def get(self, index: Tensor | np.ndarray | slice | int) -> TensorDict:
        """Gather the transitions that start at storage rows.

        Args:
            index: the rows, int64 [B], a slice, or one row (B = 1).

        Returns:
            TensorDict [B] with `action`, of the shape and dtype of `spec.action`; the observation's leaves;
            `action_mask`, bool [A], if there are masks; and with n > 1 `steps_to_next_obs`, int64 [1]. Under `next`:
            leaves and mask up to n steps later, `reward`, float32 [1], the discounted sum of up to n rewards;
            `terminated`, `truncated` and `done`, bool [1].
        """
        rows = index.numpy() if isinstance(index, Tensor) else np.atleast_1d(np.arange(self.max_size)[index])
        returns, steps = self._returns(rows)
        last = rows if self.n_step == 1 else self.streams.later(rows, steps - 1)
        following = self.streams.later(rows, steps)
        terminated, truncated = self._take("terminated", last), self._take("truncated", last)
        now, then = self._observed(rows), self._observed(following, "next")
        then |= {
            "reward": returns,
            "terminated": terminated.unsqueeze(-1),
            "truncated": truncated.unsqueeze(-1),
            "done": (terminated | truncated).unsqueeze(-1),
        }
        if self.n_step > 1:
            now["steps_to_next_obs"] = torch.from_numpy(steps).unsqueeze(-1)
        size = [len(rows)]
        return TensorDict({"action": self._take("action", rows), **now, "next": TensorDict(then, size)}, size)

    def first_priorities(self, rows: np.ndarray, priority: FirstPriority) -> np.ndarray:
        """Priorities, float64 [n], of new transitions, from the values that the collectors acted by.

        Args:
            rows: at which the transitions start, int64 [n].
            priority: `first_priority` of `trainer.algorithms.Algorithm`.
        """
        returns, steps = self._returns(rows)
        going_on = ~self.columns["terminated"][self.streams.later(rows, steps - 1)]
        following = self.columns["value_best"][self.streams.later(rows, steps)]
        going_on &= np.isfinite(following)  # infinite if no action was legal
        following = np.where(going_on, following, 0.0)
        values = (self.gamma**steps * going_on, following, self.columns["value_taken"][rows])
        return priority(returns[:, 0], *map(torch.from_numpy, values)).double().numpy()

    def _returns(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """n-step returns, float32 [B, 1], and their lengths m, int64 [B] (Sutton and Barto 2018, eq. 12.1).

        `R = sum_{k < m} gamma^k r_{t+k}`, where m is n, or less if the episode ends before.
        """
        if self.n_step == 1:
            reward = self._take("reward", rows)
            if self.reward_scale is not None:
                reward.mul_(self.reward_scale).clamp_(-self.reward_clip, self.reward_clip)
            return reward.unsqueeze(-1), np.ones(len(rows), np.int64)
        window = self.streams.later(rows[:, None], np.arange(self.n_step))
        ended = self.columns["terminated"][window] | self.columns["truncated"][window]
        before = np.cumsum(ended, axis=1) - ended  # ends strictly before step k
        alive = before == 0
        discounts = self.gamma ** np.arange(self.n_step)
        rewards = self.columns["reward"][window]
        if self.reward_scale is not None:
            rewards = np.clip(rewards * np.float32(self.reward_scale), -self.reward_clip, self.reward_clip)
        returns = (rewards * alive * discounts).sum(1, dtype=np.float64)
        return torch.from_numpy(returns.astype(np.float32)).unsqueeze(-1), alive.sum(1)

    def _observed(self, rows: np.ndarray, role: str = "") -> dict[str, Tensor]:
        """Mask and leaves at `rows`, with frame stacks; `role` distinguishes the arrays in `memory`."""
        found = {"action_mask": self._take("action_mask", rows, role)} if self.spec.action.has_mask else {}
        for leaf in self.spec.leaves:
            if leaf.stack == 1:
                found[leaf.name] = self._leaf(leaf.name, rows, role)
            else:  # frames t - stack + 1 .. t; before the episode's first frame that one repeats
                age = self.columns["age"][rows]
                back = np.minimum(np.arange(leaf.stack - 1, -1, -1), age[:, None])
                found[leaf.name] = self._leaf(leaf.name, self.streams.later(rows[:, None], -back), role)
        return found

    def _leaf(self, name: str, rows: np.ndarray, role: str) -> Tensor:
        taken = self._take(name, rows, role)
        if name not in self.normalized:
            return taken
        mean, scale = self.normalized[name]
        return taken.float().sub_(mean).mul_(scale)  # in place for float32

    def _take(self, name: str, rows: np.ndarray, role: str = "") -> Tensor:
        column = self.columns[name]
        out = self._buffer(role + name, (*rows.shape, *column.shape[1:]), column.dtype)
        np.take(column, rows, axis=0, out=out, mode="clip")  # clip: the other modes copy once more
        return torch.from_numpy(out)

    def _buffer(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self.memory is None:
            return np.empty(shape, dtype)
        buffer = self.memory.get(key)
        if buffer is None or len(buffer) < shape[0] or buffer.shape[1:] != shape[1:]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=self._pinned)
            buffer = self.memory[key] = tensor.numpy()
        return buffer[: shape[0]]  # one buffer for chunks of all sizes, as new memory costs more than filling it

    def set(self, *_: Any, **__: Any) -> None:
        """Not used: the collectors write the rows."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Nothing: `trainer.replay.on_disk` saves the rows."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing: `trainer.replay.on_disk` loads the rows."""

    def contains(self, item: int) -> bool:
        """Whether a row is published."""
        block = self.streams.ring * self.streams.envs_per_worker
        stream = item // block * self.streams.envs_per_worker + item % self.streams.envs_per_worker
        return item % block // self.streams.envs_per_worker < self._cursor[stream]

    def _empty(self) -> None:
        """Do nothing: there is no other state than the rows."""


class StreamReplay(TensorDictReplayBuffer):
    """TorchRL's replay buffer, whose samples are n-step transitions from the streams.

    The sampler draws the rows at which transitions start, and the storage gathers the transitions. A transition whose
    rows were overwritten during this is drawn again.

    Args:
        transitions: gathers transitions.
        sampler: draws the rows at which they start.
        batch_size: B.
    """

    def __init__(
        self, transitions: Transitions, sampler: StreamSampler | PrioritizedStreamSampler, batch_size: int
    ) -> None:
        super().__init__(
            storage=transitions, sampler=sampler, writer=ImmutableDatasetWriter(), collate_fn=lambda data: data,
            batch_size=batch_size,
        )  # fmt: skip
        self._warned_batch_size_conflict = True  # no warning, as a learner samples several batches at once
        self.redrawn = 0
        self._returned: list[tuple[Tensor, Tensor, Tensor]] = []  # priorities that the sampler has not got yet

    def _sample(self, batch_size: int) -> tuple[TensorDict, dict[str, Tensor]]:
        """Draw and gather as TorchRL does, until no row was overwritten.

        The keys are those of `Transitions.get`, `index`, `stream` and `time`, int64 [], of the first row, and for
        prioritized draws `priority_weight`, float32 [].
        """
        data, info = super()._sample(batch_size)
        stream, time = info["stream"].numpy(), info["time"].numpy()
        while len(lost := np.flatnonzero(~self._sampler.intact(stream, time))):
            self.redrawn += len(lost)
            stream[lost], time[lost] = self._sampler.draw(len(lost))
            index, again = self._sampler.described(stream, time)
            info |= {**again, "index": index}
            data = self._storage.get(index)
            if self._transform is not None and len(self._transform):
                data = self._transform(data)
        return data, info

    @contextmanager
    def into(self, memory: Memory) -> Iterator[None]:
        """Let `sample` use this memory again within the context, as new memory costs more than filling it."""
        with self._replay_lock:
            self._storage.memory = memory
            try:
                yield
            finally:
                self._storage.memory = None

    def example(self) -> TensorDict:
        """A batch [B] like those of `sample`, from rows that need not be written yet."""
        start = np.zeros(self._batch_size, np.int64)
        index, info = self._sampler.described(start, start)
        return self._storage.get(index).update({**info, "index": index})

    def reprioritize(self, stream: Tensor, time: Tensor, priority: Tensor) -> None:
        """Take new priorities, float [B], of the transitions (stream, time), int64 [B] each.

        They count after the next `take_priorities`.
        """
        if self._sampler.prioritized:
            self._returned.append((stream, time, priority))

    def take_priorities(self) -> None:
        """Hand the priorities of `reprioritize` to the sampler; on a GPU this waits for the last update."""
        if self._returned:
            parts = [torch.cat(tensors).cpu().numpy() for tensors in zip(*self._returned, strict=True)]
            self._sampler.update(*parts)
            self._returned.clear()


def open_replay(
    spec: EnvSpec, storage: LazyMemmapStorage, streams: StreamLayout, cursor: np.ndarray, oldest: np.ndarray,
    algorithm: AlgorithmConfig, section: ReplayConfig, batch_size: int, seed: int, pin_memory: bool = False,
    first_priority: FirstPriority | None = None, block: int = 1,
) -> StreamReplay:  # fmt: skip
    """A replay to sample from, by priorities where the algorithm wants them.

    Args:
        spec: the environment.
        storage: of the rows.
        streams: their layout.
        cursor: int64 [S], rows published in each stream; shared.
        oldest: int64 [S], time of the oldest row of each stream that a resumed run has; shared.
        algorithm: its section: n, gamma, and whether draws are prioritized.
        section: the exponents of priorities, and which one a new row has.
        batch_size: B.
        seed: of the draws.
        pin_memory: for copies to a GPU.
        first_priority: of the algorithm; see `trainer.algorithms.Algorithm`.
        block: rows of a stream that its writer may be overwriting at a time.
    """
    columns = {name: column.numpy() for name, column in storage._storage.items()}
    return replay_of(
        spec, columns, streams, cursor, oldest, algorithm, section, batch_size, seed, pin_memory, first_priority, block
    )


def replay_of(
    spec: EnvSpec, columns: Columns, streams: StreamLayout, cursor: np.ndarray, oldest: np.ndarray,
    algorithm: AlgorithmConfig, section: ReplayConfig, batch_size: int, seed: int, pin_memory: bool = False,
    first_priority: FirstPriority | None = None, block: int = 1,
) -> StreamReplay:  # fmt: skip
    """As `open_replay`, over columns of rows, [rows, ...]."""
    transitions = Transitions(spec, columns, streams, cursor, algorithm.gamma, algorithm.n_step, pin_memory)
    sampler: StreamSampler | PrioritizedStreamSampler
    sampler = StreamSampler(cursor, streams, algorithm.n_step, spec.stack - 1, seed, oldest, columns["final"], block)
    if algorithm.prioritized:
        sampler = PrioritizedStreamSampler(
            sampler, section.priority_alpha, section.priority_beta, section.priority_eps, columns["final"], batch_size
        )
        if section.initial_priority == "collector" and first_priority is not None:
            sampler.first = partial(transitions.first_priorities, priority=first_priority)
    return StreamReplay(transitions, sampler, batch_size)
