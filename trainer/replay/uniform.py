"""Uniform draws from the streams of many writers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler

from trainer.replay.streams import StreamLayout


class StreamSampler(Sampler):
    """Draws uniformly from the transitions that are published and not overwritten.

    Args:
        cursor: int64 [S], rows published in each stream; shared with the workers.
        streams: the layout.
        ahead: rows after the first one that a transition needs (n of the n-step return).
        behind: rows before the first one that a transition needs (frame stack - 1).
        seed: of the draws.
        oldest: int64 [S], time of the oldest row of each stream in a resumed run; shared.
        final: the column of this name, bool [rows]: rows that start no transition; None: there are none.
        block: rows of a stream that its writer may be overwriting at a time.
    """

    prioritized = False

    def __init__(
        self, cursor: np.ndarray, streams: StreamLayout, ahead: int = 1, behind: int = 0, seed: int = 0,
        oldest: np.ndarray | None = None, final: np.ndarray | None = None, block: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cursor, self.streams, self.ahead, self.behind = cursor, streams, ahead, behind
        self.rng, self._final, self._block = np.random.default_rng(seed), final, block
        self.oldest = np.zeros(streams.num_streams, np.int64) if oldest is None else oldest

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """For each stream the times [begin, end) at which a transition can start now, int64 [S] each."""
        cursor = self.cursor.copy()
        # The writer may be writing over the oldest block of a full ring; `behind` more for frame stacks.
        safe = cursor - self.streams.ring + self._block
        begin = np.where(safe > 0, safe + self.behind, 0)
        begin = np.maximum(begin, self.oldest + self.behind * (self.oldest > 0))
        return begin, np.maximum(begin, cursor - self.ahead)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw transitions: their first rows as (stream, time), int64 [count] each.

        Raises:
            RuntimeError: there is no complete transition yet.
        """
        stream, time = self._draw(count)
        if self._final is None:
            return stream, time
        again = np.flatnonzero(self._final[self.streams.index(stream, time)])
        while len(again):
            stream[again], time[again] = self._draw(len(again))
            again = again[self._final[self.streams.index(stream[again], time[again])]]
        return stream, time

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As `draw`, but also final rows."""
        begin, end = self.whole()
        size = end - begin
        upto = np.cumsum(size)
        if upto[-1] == 0:
            raise RuntimeError("the replay holds no whole transition yet")
        x = self.rng.integers(0, upto[-1], count)
        stream = np.searchsorted(upto, x, side="right")
        return stream, begin[stream] + x - (upto[stream] - size[stream])

    def intact(self, stream: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Whether the rows of transitions are not overwritten yet, bool [count]."""
        return np.maximum(time - self.behind, 0) >= self.cursor[stream] - self.streams.ring + self._block

    def sample(self, storage, batch_size: int) -> tuple[Tensor, dict]:
        """Draw as TorchRL's samplers: rows of the storage, and their (stream, time)."""
        return self.described(*self.draw(batch_size))

    def described(self, stream: np.ndarray, time: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """Storage rows of (stream, time), int64 [n] each, and the entries that a sample has for them."""
        info = {"stream": torch.from_numpy(stream), "time": torch.from_numpy(time)}
        return torch.from_numpy(self.streams.index(stream, time)), info

    def metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def state_dict(self) -> dict:
        """The random generator's state."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the random generator's state."""
        self.rng.bit_generator.state = state_dict["rng"]

    def _empty(self) -> None:
        """Do nothing: there is no other state than the cursors."""

    def dumps(self, path) -> None:
        """Not used: checkpoints take the state dict."""
        raise NotImplementedError

    def loads(self, path) -> None:
        """Not used: checkpoints take the state dict."""
        raise NotImplementedError
