"""Two agents for five turns; one part, `what`, gives `value`, what it makes of the right one, or raises it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Parallel:
    """A PettingZoo parallel environment."""

    def __init__(self, what: str = "", value: Any = None, render_mode: str | None = None) -> None:
        self.what, self.value = what, value
        self.possible_agents, self.agents = ["a", "b"], ["a", "b"]
        self.given("constructor", None)

    def given(self, what: str, right: Any) -> Any:
        if what != self.what:
            return right
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value(right) if callable(self.value) else self.value

    def observation_space(self, agent: str) -> Any:
        return self.given("observation_space", gym.spaces.Box(-1, 1, (2,)))

    def action_space(self, agent: str) -> Any:
        return self.given("action_space", gym.spaces.Discrete(2))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, list(self.possible_agents)
        return self.given("reset", (dict.fromkeys(self.agents, np.zeros(2, np.float32)), {}))

    def step(self, actions: dict[str, int]) -> Any:
        self.t += 1
        agents, self.agents = self.agents, [] if self.t == 5 else self.agents
        every, seen = dict.fromkeys, np.zeros(2, np.float32)
        observations, rewards = every(agents, seen), self.given("rewards", every(agents, 1.0))
        observations = self.given("observations", observations)
        right = (observations, rewards, every(agents, self.t == 5), every(agents, False), {})
        return self.given("step", right)

    def render(self) -> Any:
        return self.given("render", np.zeros((8, 8, 3), np.uint8))

    def close(self) -> None:
        self.given("close", None)


parallel_env = Parallel
