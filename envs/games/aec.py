"""Each game as a PettingZoo turn-based environment (AEC). No other file of the games imports PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trainer.envs.games import GAMES
from trainer.envs.games.rows import choice, require
from trainer.envs.spec import EnvError

try:
    from pettingzoo import AECEnv
except ImportError as error:
    raise EnvError("trainer.envs.games.aec needs PettingZoo: pip install pettingzoo.") from error


def aec_env(name: str, render_mode: str | None = None, **kwargs: Any) -> GameEnv:
    """A game as a PettingZoo AEC environment.

    Args:
        name: one of `GAMES`.
        render_mode: None or `rgb_array`.
        kwargs: of the game's class, without `num_games`.

    Raises:
        EnvError: there is no such game or render mode, or the settings are impossible.
    """
    return GameEnv(name, render_mode, **kwargs)


class GameEnv(AECEnv):  # type: ignore[misc]
    """One game; `player_0` has seat 0, and so on.

    Observations are dicts of `observation` and `action_mask` (int8). When the game is over all players are terminated
    at once, and `last()` returns for each of them, also for losers, the rewards since its own last move. `reset(seed)`
    starts the same game as `reset(seed)` of the game's class; without a seed, a seed is drawn.
    """

    def __init__(self, name: str, render_mode: str | None = None, **kwargs: Any) -> None:
        """Create it; `aec_env` describes the arguments."""
        super().__init__()
        choice("trainer.envs.games", "name", name, GAMES)
        choice(name, "render_mode", render_mode, (None, "rgb_array"))
        self.metadata = {
            "name": f"{name}_v0",
            "render_modes": ["rgb_array"],
            "render_fps": 4,
            "is_parallelizable": False,
        }
        self.render_mode = render_mode
        self.game: Any = GAMES[name](num_games=1, **kwargs)
        self.possible_agents = [f"player_{seat}" for seat in range(self.game.num_players)]
        self.agents: list[str] = []
        leaf, actions = self.game.spec.leaves[0], self.game.num_actions
        # All numbers are in 0 .. 1, except those that are summed over opponents.
        high, dtype = (1, np.bool_) if leaf.dtype == "bool" else (self.game.num_players - 1, np.float32)
        # Each player has spaces of its own, as users seed them separately.
        self.observation_spaces = {
            agent: gym.spaces.Dict(
                {
                    "observation": gym.spaces.Box(0, high, leaf.shape, dtype),
                    "action_mask": gym.spaces.Box(0, 1, (actions,), np.int8),
                }
            )
            for agent in self.possible_agents
        }
        self.action_spaces = {agent: gym.spaces.Discrete(actions) for agent in self.possible_agents}
        self._seeds = np.random.default_rng()

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """The space of a player, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """The space of a player, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game; `options` are not used."""
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        self.game.reset(int(self._seeds.integers(2**62)) if seed is None else seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.possible_agents[self.game.to_move[0]]

    def observe(self, agent: str) -> dict[str, NDArray[Any]]:
        """The observation of a player; one that is not to move sees no dice and a mask of all ones."""
        seat = self.possible_agents.index(agent)
        seen = self.game.observe(seats=np.array([seat]))
        return {
            "observation": seen["observation"][0].copy(),
            "action_mask": seen["action_mask"][0].astype(np.int8),
        }

    def step(self, action: int | None) -> None:
        """Take the action of `agent_selection`, or None if that agent is terminated, which removes it.

        Raises:
            EnvError: the action is illegal, or the game has not begun.
        """
        name = self.metadata["name"]
        require(bool(self.agents), f"{name}: the game is over, or has not begun; reset comes before the next step.")
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if action is None:
            raise EnvError(f"{name}: {agent} was given no action.")
        self._cumulative_rewards[agent] = 0.0
        self.game.step(np.array([int(action)]))
        self.rewards = {a: float(x) for a, x in zip(self.possible_agents, self.game.rewards[0], strict=True)}
        self._accumulate_rewards()
        if self.game.over[0]:
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.possible_agents[self.game.to_move[0]]

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, rgb uint8; None without a render mode."""
        picture: NDArray[np.uint8] | None = self.game.render() if self.render_mode == "rgb_array" else None
        return picture

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
