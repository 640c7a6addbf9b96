"""The pulse of a child that answers through a pipe: signs of life, and whether it is to end, in shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.memory.boards import START_S
from trainer.memory.silence import Silence


def signs_of(memory: Tensor) -> tuple[Callable[[], None], Callable[[], bool]]:
    """For the process itself: what gives a sign of life, and whether it is to end."""
    words = memory.numpy()

    def beat() -> None:
        words[0] = time.monotonic()

    return beat, lambda: bool(words[1])


class Pulse:
    """The same for the one that watches it; made before the process is started.

    Args:
        limit_s: of silence after which it is taken for hung; it may take `START_S` besides to its first sign of life.

    Attributes:
        memory: float64 [2], `time.monotonic()` of the last sign of life, and 1 once the process is to end.
        silence: as `Silence` counts it.
    """

    def __init__(self, limit_s: float) -> None:
        self.memory = torch.tensor([time.monotonic() + START_S, 0.0], dtype=torch.float64).share_memory_()
        self.silence = Silence(limit_s)

    def hung(self) -> bool:
        """Whether it has shown no sign of life for too long."""
        return self.silence.too_long(float(self.memory[0]))

    def expect(self) -> None:
        """Something is asked of it now: its silence begins here."""
        self.memory[0] = max(time.monotonic(), float(self.memory[0]))

    def close(self) -> None:
        """Ask the process to end."""
        self.memory[1] = 1.0
