"""TorchRL's replay buffer over the streams of many writers."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from trainer.config.algorithms import AlgorithmConfig
from trainer.config.sections import ReplayConfig
from trainer.envs import EnvSpec
from trainer.replay.priorities import PrioritizedStreamSampler
from trainer.replay.streams import Columns, StreamLayout
from trainer.replay.transitions import FirstPriority, Memory, Transitions
from trainer.replay.uniform import StreamSampler


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

    def sample_into(self, memory: Memory, batch_size: int) -> TensorDictBase:
        """As `sample`, into memory that is used again, as new memory costs more than filling it."""
        with self._replay_lock:
            self._storage.memory = memory
            try:
                return self.sample(batch_size)
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
    first_priority: FirstPriority | None = None,
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
    """
    columns = {name: column.numpy() for name, column in storage._storage.items()}
    return replay_of(
        spec, columns, streams, cursor, oldest, algorithm, section, batch_size, seed, pin_memory, first_priority
    )


def replay_of(
    spec: EnvSpec, columns: Columns, streams: StreamLayout, cursor: np.ndarray, oldest: np.ndarray,
    algorithm: AlgorithmConfig, section: ReplayConfig, batch_size: int, seed: int, pin_memory: bool = False,
    first_priority: FirstPriority | None = None,
) -> StreamReplay:  # fmt: skip
    """As `open_replay`, over columns of rows, [rows, ...]."""
    transitions = Transitions(spec, columns, streams, cursor, algorithm.gamma, algorithm.n_step, pin_memory)
    sampler: StreamSampler | PrioritizedStreamSampler
    sampler = StreamSampler(cursor, streams, algorithm.n_step, spec.stack - 1, seed, oldest, columns["final"])
    if algorithm.prioritized:
        sampler = PrioritizedStreamSampler(
            sampler, section.priority_alpha, section.priority_beta, section.priority_eps, columns["final"], batch_size
        )
        if section.initial_priority == "collector" and first_priority is not None:
            sampler.first = partial(transitions.first_priorities, priority=first_priority)
    return StreamReplay(transitions, sampler, batch_size)
