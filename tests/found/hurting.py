"""Small environments that do what real ones do and that failed; each file of tests adds its own kinds here."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Plain(gym.Env[np.ndarray, int]):
    """Five steps of zeros, action 1 pays 1; the others change one thing."""

    observation_space: gym.Space[Any] = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length = 5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observe(), float(action), self.t >= self.length, False, {}

    def observe(self) -> Any:
        return np.zeros(2, np.float32)


class Telling(Plain):
    """Says in `info` how far it is, and in every second episode that it has succeeded."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *found, info = super().step(action)
        info = {"is_success": self.episodes % 2 == 0, "share": np.float32(self.t / 10), "robot": {"x": self.t}}
        return *found, info | {"episode": {"r": 1.0, "l": 5}, "note": "text", "TimeLimit.truncated": False}  # type: ignore[return-value]


for kind in (Plain, Telling):
    gym.register(f"Hurting/{kind.__name__}-v0", kind)
