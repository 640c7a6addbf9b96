"""Environments of the tests of evaluations, of what is done at a run's end, and of the schedules of rounds."""

from __future__ import annotations

import multiprocessing
from typing import Any

import gymnasium as gym
import torch
from hurting import Plain


class Deterministic(Plain):
    """Fails where it shares a process with a learner whose operations need not be deterministic."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if multiprocessing.current_process().name in ("MainProcess", "local_0", "local_1"):
            assert torch.are_deterministic_algorithms_enabled(), "not deterministic"
        return super().step(action)


for kind in (Deterministic,):
    gym.register(f"Hurting/{kind.__name__}-v0", kind)
