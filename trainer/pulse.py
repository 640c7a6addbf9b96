"""Signs of life of a child process, and how long there has been none."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

START_S = 60.0  # beyond the time after which it is taken for hung, that a process may take to its first sign of life
LOOK_S = 1.0  # silence between two looks counts for no more: whoever looks may have slept, and all others with it


def new_pulse() -> Tensor:
    """float64 [2] in shared memory: ``time.monotonic()`` of the last sign of life, and 1 once the process is to end."""
    return torch.zeros(2, dtype=torch.float64).share_memory_()


def signs_of(memory: Tensor) -> tuple[Callable[[], None], Callable[[], bool]]:
    """For the process itself: what gives a sign of life, and whether it is to end."""
    words = memory.numpy()

    def beat() -> None:
        words[0] = time.monotonic()

    return beat, lambda: bool(words[1])


class Pulse:
    """How long a process has shown no sign of life, as the one that watches it counts.

    Args:
        memory: of :func:`new_pulse`; :meth:`close` asks its process to end.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self._last = float(memory[0])
        self._looked = time.monotonic()
        self._silent = -START_S

    def silent_s(self) -> float:
        """Seconds without a sign of life, of the time in which somebody looked; below 0 before the first one."""
        now, last = time.monotonic(), float(self.memory[0])
        if last != self._last:
            self._last, self._silent = last, 0.0
        else:
            self._silent += min(now - self._looked, LOOK_S)
        self._looked = now
        return self._silent

    def excuse(self) -> None:
        """Begin anew: until now nothing was expected of it."""
        self._silent, self._looked = min(self._silent, 0.0), time.monotonic()

    def close(self) -> None:
        """Ask the process to end."""
        self.memory[1] = 1.0
