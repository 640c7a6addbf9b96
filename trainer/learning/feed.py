"""Batches out of a replay for an updater: several gathered at once, and more of them while it works on these."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from trainer.replay.buffer import StreamReplay
from trainer.replay.transitions import Memory

Batch = dict[str | tuple[str, str], Tensor]


def flat(sample: TensorDictBase) -> Batch:
    """The tensors of a sample under their keys, those below `next` as `("next", key)`."""
    return dict(sample.items(True, True))


def to_tensordict(batch: Batch, batch_size: int) -> TensorDict:
    """A batch as the nested TensorDict [B] that TorchRL's losses take: the inverse of `flat`."""
    following = {key[1]: tensor for key, tensor in batch.items() if isinstance(key, tuple)}
    current = {key: tensor for key, tensor in batch.items() if isinstance(key, str)}
    size = [batch_size]
    return TensorDict({**current, "next": TensorDict(following, size)}, size)


class Feed:
    """Batches of a replay on the updater's device, gathered by TorchRL's `sample` of several at once.

    While the updater works on some, a thread gathers those that it is known to need next. It does nothing else: new
    priorities are handed to the sampler before it begins, so that draws come in the order in which they are asked for.

    Args:
        replay: where batches come from.
        device: of the updater.
        ahead: gather what is needed next in a thread; else between updates.

    Attributes:
        gather: `gather(count) -> TensorDict [count * B]`, in memory that the call after the next one overwrites.
    """

    def __init__(self, replay: StreamReplay, device: torch.device, ahead: bool = False) -> None:
        self._replay, self._device, self._ahead = replay, device, ahead
        self._memory: deque[Memory] = deque([{}, {}])
        self._ready: list[Batch] = []
        self._coming: Future[list[Batch]] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.gather = self._gather

    def batches(self, count: int, then: int = 0) -> Iterator[Batch]:
        """`count` batches, one by one; each is valid until the second call from here.

        Args:
            count: that are gathered at once, those that are there already left out.
            then: how many will be asked for next, to be gathered meanwhile; 0: it is not known, or their draws depend
                on what is learned from these.
        """
        while count:
            self.wait()
            if not self._ready:
                self._replay.take_priorities()
                self._ready = self._gathered(count)
            taken, self._ready = self._ready[:count], self._ready[count:]
            count -= len(taken)
            if self._ahead and then and not count and not self._ready:
                self._replay.take_priorities()
                self._memory.rotate()
                self._thread = self._thread or ThreadPoolExecutor(1, "feed")
                self._coming = self._thread.submit(self._gathered, then)
            yield from taken

    def wait(self) -> None:
        """Until nothing is being gathered: whoever looks at the sampler calls it before."""
        if self._coming is not None:
            self._ready, self._coming = self._coming.result(), None

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _gather(self, count: int) -> TensorDictBase:
        return self._replay.sample_into(self._memory[0], count * self._replay.batch_size)

    def _gathered(self, count: int) -> list[Batch]:
        chunk = flat(self.gather(count))
        if self._device.type == "cuda":
            # Page-locked memory is copied without blocking; the next gather must not overwrite it before that is done.
            chunk = {key: tensor.to(self._device, non_blocking=True) for key, tensor in chunk.items()}
            torch.cuda.current_stream(self._device).record_event().synchronize()
        size = self._replay.batch_size
        parts = [tensor.view(count, size, *tensor.shape[1:]).unbind() for tensor in chunk.values()]
        return [dict(zip(chunk, tensors, strict=True)) for tensors in zip(*parts, strict=True)]
