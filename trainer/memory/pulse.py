"""Signs of life: how a process that answers through a pipe gives them, and how its watcher counts its silence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.memory.boards import START_S

FILMING = 2  # index of what is 1 while an evaluator makes a video


def new_pulse() -> Tensor:
    """Shared memory of one process, made before it is started: it may take `START_S` besides to its first sign of life.

    Returns:
        float64 [3], `time.monotonic()` of the last sign of life, 1 once the process is to end, and 1 while it films.
    """
    return torch.tensor([time.monotonic() + START_S, 0.0, 0.0], dtype=torch.float64).share_memory_()


def signs_of(memory: Tensor) -> tuple[Callable[[], None], Callable[[], bool]]:
    """For the process itself: what gives a sign of life, and whether it is to end."""
    words = memory.numpy()

    def beat() -> None:
        words[0] = time.monotonic()

    return beat, lambda: bool(words[1])


class Silence:
    """A process's silence, as far as it was watched.

    A run that is stopped and goes on (Ctrl-Z, `scontrol suspend`, a freezer) finds old signs of life from everyone;
    what passed while the watcher slept counts for a quarter of the limit at most, however long it was.

    Args:
        limit_s: seconds after which the process is taken for hung.
        ends: it is to end, and a sign of life that lies ahead gives it no time besides.
    """

    def __init__(self, limit_s: float, ends: bool = False) -> None:
        self.limit_s, self._ends = limit_s, ends
        self._heard, self._looked, self.silent_s = math.nan, time.monotonic(), 0.0

    def too_long(self, heartbeat: float) -> bool:
        """Look at a process whose last sign of life is of `heartbeat`, in seconds of `time.monotonic`.

        One that lies ahead gives it so much time besides, unless it is to end.
        """
        now = time.monotonic()
        awake, self._looked = min(now - self._looked, self.limit_s / 4), now
        if heartbeat != self._heard:
            self._heard, self.silent_s = heartbeat, min(now - heartbeat, awake)
            if self._ends:
                self.silent_s = max(self.silent_s, 0.0)
        else:
            self.silent_s += awake
        return self.silent_s > self.limit_s
