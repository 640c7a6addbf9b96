"""What environments do to files and working folders; also the plain ones, slowly enough to be struck meanwhile."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import gymnasium as gym
import numpy as np
from hurting import Plain


class Wanders(Plain):
    """Changes the working folder in its constructor, at every reset, and now and then in step."""

    def __init__(self) -> None:
        os.chdir(tempfile.gettempdir())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        os.chdir("/")
        return super().reset(seed=seed)


class Slow(Plain):
    """Plain, with 5 ms for each step."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.005)
        return super().step(action)


class Wide(Plain):
    """Observations of 4,000 numbers, all of them the time within the episode."""

    observation_space = gym.spaces.Box(-10, 10, (4_000,), np.float32)

    def observe(self) -> Any:
        return np.full(4_000, self.t, np.float32)


class Maps(Plain):
    """Writes down how many columns of replays its process has mapped when it is made."""

    def __init__(self, out: str) -> None:
        with open("/proc/self/maps") as maps, open(out, "a") as file:
            file.write(f"{sum('.memmap' in line for line in maps)}\n")


for kind in (Wanders, Slow, Wide, Maps):
    gym.register(f"Hurting/{kind.__name__}-v0", kind)
