"""Worlds: vector environments of one agent or several, as the trainer sees them.

A world has `agents` (names), `specs` (an `EnvSpec` for each), `num_envs`, `reset(seed) -> observations`,
`step(actions) -> steps`, `present`, `raw_rewards`, `render()` and `close()`. Observations, actions
([num_envs, *shape], as `spec.action` says) and steps are lists with an entry for each agent; an entry is what a
vector of that agent alone would give (`trainer.envs.make`): a step is `(observation, reward, terminated, truncated)`.

`present[a]` bool [num_envs]: whether agent a acts on the observation that was given last. It does not where its
episode has just ended (the observation is its final one), nor where it died or has not joined; its action there has no
effect. When all agents of a sub-environment have ended, the next step starts its next episode, whatever the actions.

A world may have `given`, a list of actions [num_envs, *shape] like `present`: those that are taken whatever the
agents choose, and `spec.action.none` where they do choose (`trainer.envs.selfplay`). An episode of such actions is
not one that the agent played.

A world whose `state()` is not None can go on elsewhere: `set_state(state, actions)` puts another one of the same
making, which was reset, where it stood, and returns what is observed there. `actions[a][i]`, [steps, *shape], are
agent a's in sub-environment i's running episode, by which environments that cannot tell their state are played up to
it; it raises ValueError where that led somewhere else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.envs.spec import EnvSpec

Observation = dict[str, np.ndarray]
Step = tuple[Observation, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]

AGENT = "agent_0"  # the name of one that is alone


class Solo:
    """A vector environment as a world of one agent.

    Args:
        vector: from `trainer.envs.make`, resetting by itself.
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
        """Start every sub-environment anew."""
        self.present[0][:] = True
        return [self._vector.reset(seed)]

    def step(self, actions: list[NDArray[Any]]) -> list[Step]:
        """One step of every sub-environment."""
        step: Step = self._vector.step(actions[0])
        np.logical_or(step[2], step[3], out=self.present[0])
        np.logical_not(self.present[0], out=self.present[0])
        return [step]

    def state(self) -> dict[str, Any] | None:
        """Where it stands, of tensors and plain values; None where that cannot be told."""
        vector = self._vector.state() if hasattr(self._vector, "state") else None
        return None if vector is None else {"vector": vector, "present": torch.from_numpy(self.present[0].copy())}

    def set_state(self, state: dict[str, Any], actions: list[list[NDArray[Any]]]) -> list[Observation]:
        """Stand where another one stood; see the file's head."""
        self.present[0][:] = state["present"].numpy()
        return [self._vector.set_state(state["vector"], actions[0])]

    def render(self) -> Any:
        """The picture of sub-environment 0."""
        return self._vector.render()

    def close(self) -> None:
        """Close the sub-environments."""
        self._vector.close()


class FirstAgent:
    """The first agent's part of a world, as a vector: what TorchRL's collector is shown."""

    def __init__(self, world: Any) -> None:
        self._world, self.spec, self.num_envs = world, world.specs[0], world.num_envs

    def reset(self, seed: int | None = None) -> Observation:
        """Start the world anew."""
        observation: Observation = self._world.reset(seed)[0]
        return observation

    def close(self) -> None:
        """Close the world."""
        self._world.close()
