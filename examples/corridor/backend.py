"""A backend: many corridors in one array, stepped together. `env.backend=corridor.backend:make`."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.envs import DiscreteAction, EnvSpec, Leaf


class Corridors:
    """`num_envs` corridors without slipping; see `corridor.environment.Corridor`.

    Args:
        num_envs: N.
        autoreset: whether the step after an episode's end begins the next one.
        length: number of cells.
        limit: steps after which an episode is truncated.
    """

    def __init__(self, num_envs: int, autoreset: bool, length: int = 8, limit: int = 50) -> None:
        leaf = Leaf("observation", (length,), "float32", "vector", low=(0.0,) * length, high=(1.0,) * length)
        self.spec = EnvSpec("Corridors", (leaf,), DiscreteAction(2), max_episode_steps=limit)
        self.num_envs, self.length, self.limit, self.autoreset = num_envs, length, limit, autoreset
        self.position, self.age = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, bool)
        self.raw_reward = np.zeros(num_envs, np.float32)

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes; nothing is random, so the seed has no effect."""
        return self.reset_where(np.ones(self.num_envs, bool))

    def reset_where(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Begin the episodes of a bool mask [N]."""
        self.position[mask], self.age[mask], self.over[mask] = 0, 0, False
        return self._seen()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
        """Move all, int64 [N]. Where an episode has ended, the step begins the next one with reward 0."""
        fresh = self.over & self.autoreset
        moved = np.clip(self.position + np.where(action == 1, 1, -1), 0, self.length - 1)
        self.position = np.where(fresh, 0, moved)
        self.age = np.where(fresh, 0, self.age + 1)
        arrived = ~fresh & (self.position == self.length - 1)
        truncated = ~fresh & ~arrived & (self.age >= self.limit)
        self.raw_reward[:] = np.where(arrived, 1.0, np.where(fresh, 0.0, -0.01))
        self.over = arrived | truncated
        return self._seen(), self.raw_reward, arrived, truncated

    def close(self) -> None:
        """Nothing is to be released."""

    def _seen(self) -> dict[str, np.ndarray]:
        return {"observation": np.eye(self.length, dtype=np.float32)[self.position]}


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> Corridors:
    """The vector; `env` is the section `env` of the configuration."""
    return Corridors(num_envs, autoreset, **env.kwargs)
