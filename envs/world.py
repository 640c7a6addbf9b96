"""Worlds: vector environments of one agent or several, as the trainer sees them.

A world has `agents` (names), `specs` (an `EnvSpec` for each), `num_envs`, `reset(seed) -> observations`,
`step(actions) -> steps`, `present`, `raw_rewards`, `render()` and `close()`. Observations, actions
([num_envs, *spec.action.shape]) and steps are lists with an entry for each agent. An entry is what a vector with that
agent alone would return (`trainer.envs.make`): a step is `(observation, reward, terminated, truncated)`.

`present[a]`, bool [num_envs], tells whether agent a acts on the last observation. It does not where its episode has
just ended (the observation is its final one), and where it died or has not joined; its action there has no effect. When
all agents of a sub-environment have ended, the next step resets it and ignores the actions.

A world may have `given`, a list of actions [num_envs, *shape] for each agent: actions that are taken whatever the agent
chooses, and `spec.action.none` where it does choose (`trainer.envs.selfplay`). An episode of given actions does not
count as played by the agent.

A world may have `info_of(a, i)`, the `info` that sub-environment i returned last for agent a.

A world whose `state()` is not None can go on in another process: `set_state(state, actions)` restores that state in a
world that was made alike and reset, and returns the observations there. `actions[a][i]`, [steps, *shape], are those of
agent a in the running episode of sub-environment i: environments without a state of their own are played up to it. It
raises ValueError if that led to other observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.envs.spec import EnvSpec

Observation = dict[str, np.ndarray]
Step = tuple[Observation, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]

AGENT = "agent_0"  # name of the agent where there is only one


class Solo:
    """A vector environment as a world of one agent.

    Args:
        vector: from `trainer.envs.make`, with `autoreset=True`.
    """

    agents: tuple[str, ...] = (AGENT,)

    def __init__(self, vector: Any) -> None:
        self._vector = vector
        self.specs: tuple[EnvSpec, ...] = (vector.spec,)
        self.num_envs: int = vector.num_envs
        self.present = [np.ones(vector.num_envs, bool)]

    @property
    def raw_rewards(self) -> list[NDArray[np.float32]]:
        """Unclipped rewards of the last step."""
        return [self._vector.raw_reward]

    def reset(self, seed: int | None = None) -> list[Observation]:
        """Reset every sub-environment."""
        self.present[0][:] = True
        return [self._vector.reset(seed)]

    def step(self, actions: list[NDArray[Any]]) -> list[Step]:
        """Step every sub-environment."""
        step: Step = self._vector.step(actions[0])
        np.logical_or(step[2], step[3], out=self.present[0])
        np.logical_not(self.present[0], out=self.present[0])
        return [step]

    def info_of(self, agent: int, index: int) -> Mapping[Any, Any]:
        """The last `info` of a sub-environment; {} where the vector has none."""
        return self._vector.info_of(index) if hasattr(self._vector, "info_of") else {}

    def state(self) -> dict[str, Any] | None:
        """The state, as tensors and plain values; None if the vector has none."""
        vector = self._vector.state() if hasattr(self._vector, "state") else None
        return None if vector is None else {"vector": vector, "present": torch.from_numpy(self.present[0].copy())}

    def set_state(self, state: dict[str, Any], actions: list[list[NDArray[Any]]]) -> list[Observation]:
        """Restore the `state` of another one; see the beginning of this file."""
        self.present[0][:] = state["present"].numpy()
        return [self._vector.set_state(state["vector"], actions[0])]

    def render(self) -> Any:
        """The picture of sub-environment 0."""
        return self._vector.render()

    def close(self) -> None:
        """Close the sub-environments."""
        self._vector.close()


class FirstAgent:
    """The first agent of a world as a vector, for TorchRL's collector."""

    def __init__(self, world: Any) -> None:
        self._world, self.spec, self.num_envs = world, world.specs[0], world.num_envs

    def reset(self, seed: int | None = None) -> Observation:
        """Reset the world."""
        observation: Observation = self._world.reset(seed)[0]
        return observation

    def close(self) -> None:
        """Close the world."""
        self._world.close()
