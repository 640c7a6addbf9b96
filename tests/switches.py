"""Environments whose actions are several choices at once, far more combinations than a network could have outputs.

Each of D dials, of `SIZES` positions, has one right position, which the shown number says. A step pays 1 for each dial
that is right, and an episode has eight steps: its best return is 8 D.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZES = (2, 3, 5) * 6  # 30 ** 6 combinations, 729 million
SHOWN, STEPS = 3, 8


class Dials(gym.Env):
    """Dials are MultiDiscrete, counted from 1, in a table of two rows; or MultiBinary."""

    def __init__(self, binary: bool = False) -> None:
        self.sizes = np.full(40, 2) if binary else np.reshape(SIZES, (2, -1))
        self.start = 0 if binary else 1
        start = np.ones_like(self.sizes)
        self.action_space = spaces.MultiBinary(40) if binary else spaces.MultiDiscrete(self.sizes, start=start)
        self.observation_space = spaces.Discrete(SHOWN)
        self.shown = self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.shown = 0, int(self.np_random.integers(SHOWN))
        return self.shown, {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        pay = float((action == self.right()).sum())
        self.time, self.shown = self.time + 1, int(self.np_random.integers(SHOWN))
        return self.shown, pay, self.time == STEPS, False, {}

    def right(self) -> np.ndarray:
        places = np.arange(self.sizes.size).reshape(self.sizes.shape)
        return (places + self.shown) % self.sizes + self.start


class TwoAtDials:
    """The same for two agents, each with dials and a number of its own (PettingZoo's parallel interface)."""

    metadata: dict[str, Any] = {}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self.envs = {name: Dials() for name in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.envs[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        seeds = {name: None if seed is None else seed + number for number, name in enumerate(self.agents)}
        return {name: self.envs[name].reset(seed=seeds[name])[0] for name in self.agents}, {}

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict[str, Any], ...]:
        found = {name: self.envs[name].step(action) for name, action in actions.items()}
        seen, rewards, terminated, truncated, infos = (
            {name: step[part] for name, step in found.items()} for part in range(5)
        )
        self.agents = [name for name in self.agents if not terminated[name]]
        return seen, rewards, terminated, truncated, infos

    def close(self) -> None:
        pass


parallel_env = TwoAtDials
gym.register("Dials-v0", Dials)
gym.register("Switches-v0", Dials, kwargs={"binary": True})
