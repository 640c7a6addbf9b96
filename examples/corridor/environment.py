"""An environment: a corridor with the goal at its right end."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Walk to the right end. Observations are the position as one-hot float32 [length]; every step costs 0.01.

    Args:
        length: number of cells.
        slip: probability of a step into the other direction.
        number: of this environment among all of a run (`env.instance_key=number`), as a simulator's port would be.
        render_mode: `rgb_array` or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, length: int = 8, slip: float = 0.0, number: int = 0, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gym.spaces.Discrete(2)  # left, right
        self.length, self.slip, self.number, self.render_mode = length, slip, number, render_mode
        self.position = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin at the left end."""
        super().reset(seed=seed)
        self.position = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move one cell."""
        right = bool(action) != bool(self.np_random.random() < self.slip)
        self.position = min(self.length - 1, max(0, self.position + (1 if right else -1)))
        arrived = self.position == self.length - 1
        return self._seen(), 1.0 if arrived else -0.01, arrived, False, {}

    def render(self) -> np.ndarray:
        """The corridor in grey, the position in white, uint8 [32, 32 * length, 3]."""
        cells = np.full(self.length, 64, np.uint8)
        cells[self.position] = 255
        return np.broadcast_to(cells.repeat(32)[None, :, None], (32, 32 * self.length, 3)).copy()

    def _seen(self) -> np.ndarray:
        return np.eye(self.length, dtype=np.float32)[self.position]
