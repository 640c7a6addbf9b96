"""Batches from a replay for an updater: several are gathered at once, and the next ones during the updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from trainer.replay.buffer import Memory, StreamReplay

Batch = dict[str | tuple[str, str], Tensor]


def flat(sample: TensorDictBase) -> Batch:
    """The tensors of a sample by key; those under `next` have the key `("next", key)`."""
    return dict(sample.items(True, True))


def to_tensordict(batch: Batch, batch_size: int) -> TensorDict:
    """A batch as a nested TensorDict [B], for TorchRL's losses; the inverse of `flat`."""
    following = {key[1]: tensor for key, tensor in batch.items() if isinstance(key, tuple)}
    current = {key: tensor for key, tensor in batch.items() if isinstance(key, str)}
    size = [batch_size]
    return TensorDict({**current, "next": TensorDict(following, size)}, size)


class Feed:
    """Batches of a replay on the updater's device; TorchRL's `sample` gathers several at once.

    During the updates on some batches a thread gathers the next ones, if their number is known. New priorities are
    handed to the sampler before the thread begins, so the draws are in the same order as without it.

    Args:
        replay: to sample from.
        device: of the updater.
        ahead: whether a thread gathers the next batches; else they are gathered between updates.

    """

    def __init__(self, replay: StreamReplay, device: torch.device, ahead: bool = False) -> None:
        self._replay, self._device, self._ahead = replay, device, ahead
        self._memory: deque[Memory] = deque([{}, {}])
        self._ready: list[Batch] = []
        self._coming: Future[list[Batch]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def batches(self, count: int, then: int = 0) -> Iterator[Batch]:
        """Yield batches; each is valid until the next call but one.

        Args:
            count: number of batches; those that are not gathered yet are gathered at once.
            then: number of batches of the next call, to be gathered meanwhile; 0: it is not known, or their draws must
                come after these updates.
        """
        while count:
            self.wait()
            if not self._ready:
                self._replay.take_priorities()
                self._ready = self.gather(count)
            taken, self._ready = self._ready[:count], self._ready[count:]
            count -= len(taken)
            if self._ahead and then and not count and not self._ready:
                self._replay.take_priorities()
                self._memory.rotate()
                self._thread = self._thread or ThreadPoolExecutor(1, "feed")
                self._coming = self._thread.submit(self.gather, then)
            yield from taken

    def wait(self) -> None:
        """Wait until the thread gathers nothing; to be called before the sampler is read."""
        if self._coming is not None:
            self._ready, self._coming = self._coming.result(), None

    def close(self) -> None:
        """End the thread. Safe to call twice; nothing may be asked for afterwards."""
        if self._thread is not None:
            self._thread.shutdown()

    def gather(self, count: int) -> list[Batch]:
        """Sample batches at once, into memory that the next call but one overwrites."""
        with self._replay.into(self._memory[0]):
            chunk = flat(self._replay.sample(count * self._replay.batch_size))
        if self._device.type == "cuda":
            # Page-locked memory is copied asynchronously; wait, as the next gathering overwrites it.
            chunk = {key: tensor.to(self._device, non_blocking=True) for key, tensor in chunk.items()}
            torch.cuda.current_stream(self._device).record_event().synchronize()
        size = self._replay.batch_size
        parts = [tensor.view(count, size, *tensor.shape[1:]).unbind() for tensor in chunk.values()]
        return [dict(zip(chunk, tensors, strict=True)) for tensors in zip(*parts, strict=True)]
