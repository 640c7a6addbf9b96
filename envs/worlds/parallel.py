"""Each world as a PettingZoo parallel environment. No other file of the worlds imports PettingZoo."""

from __future__ import annotations

import difflib
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainer.envs.spec import EnvError
from trainer.envs.worlds import WORLDS

try:
    import pettingzoo
except ImportError as error:
    raise EnvError("trainer.envs.worlds.parallel needs PettingZoo: pip install pettingzoo.") from error

# Looked up by name, which tests/test_layers.py forbids in envs: TorchRL's class of the same name starts processes.
_Base: Any = vars(pettingzoo)["ParallelEnv"]


def parallel_env(name: str, render_mode: str | None = None, **kwargs: Any) -> WorldEnv:
    """A world as a PettingZoo parallel environment.

    Args:
        name: one of `WORLDS`.
        render_mode: None or `rgb_array`.
        kwargs: of the world's class, without `num_worlds`.

    Raises:
        EnvError: there is no such world or render mode, or the settings are impossible.
    """
    return WorldEnv(name, render_mode, **kwargs)


class WorldEnv(_Base):  # type: ignore[misc]
    """One world; all agents are truncated together after `max_turns`, and none ends before.

    `reset(seed)` starts the same episode as `reset(seed)` of the world; without a seed, a seed is drawn.
    """

    def __init__(self, name: str, render_mode: str | None = None, **kwargs: Any) -> None:
        """Create it; `parallel_env` describes the arguments."""
        if name not in WORLDS:
            near = difflib.get_close_matches(name, WORLDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(WORLDS)}."
            raise EnvError(f"there is no world {name}{hint}")
        if render_mode not in (None, "rgb_array"):
            raise EnvError(f"{name}: render_mode={render_mode} is neither None nor rgb_array.")
        self.metadata = {"name": f"{name}_v0", "render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode
        self.world: Any = WORLDS[name](num_worlds=1, **kwargs)
        self.possible_agents = list(self.world.agents)
        self.agents: list[str] = []
        dtype: Any = np.dtype(self.world.observation_dtype)
        low = 0 if dtype.kind == "b" else -1
        # Each agent has a space of its own, as users seed them separately.
        self.observation_spaces = {
            agent: gym.spaces.Box(low, 1, self.world.observation_shape, dtype) for agent in self.possible_agents
        }
        self.action_spaces = {agent: gym.spaces.Discrete(self.world.num_actions) for agent in self.possible_agents}
        self._seeds = np.random.default_rng()

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """The space of an agent, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """The space of an agent, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
        """Start an episode; `options` are not used."""
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        observation = self.world.reset(int(self._seeds.integers(2**62)) if seed is None else seed)
        self.agents = list(self.possible_agents)
        return self._by_agent(observation), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Step by one turn.

        Raises:
            EnvError: an agent has no action, an action does not exist, or the episode is over.
        """
        name = self.metadata["name"]
        if not self.agents:
            raise EnvError(f"{name}: the episode is over, or has not begun; reset comes before the next step.")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise EnvError(f"{name}: {missing[0]} was given no action.")
        observation, reward = self.world.step(np.array([[int(actions[agent]) for agent in self.agents]]))
        over = self.world.turn >= self.world.max_turns
        agents, self.agents = self.agents, [] if over else self.agents
        return (
            self._by_agent(observation),
            {agent: float(x) for agent, x in zip(agents, reward[0], strict=True)},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {} for agent in agents},
        )

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, rgb uint8 [16 * height, 16 * width, 3]; None without a render mode."""
        return self.world.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _by_agent(self, observation: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return dict(zip(self.possible_agents, observation[0], strict=True))
