"""Backend `counting_agents`: several agents, each of which has a counting vector (`trainer.envs.counting`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.counting import CountingVector, make
from trainer.envs.spec import EnvError
from trainer.envs.state import set_state, state_of
from trainer.envs.vector import Observation, Step

AGENT_STREAMS = 100_000  # difference between the streams of two agents


def make_world(env: Any, num_envs: int, render_mode: str | None = None) -> CountingWorld:
    """A world of `env.kwargs.num_agents` (2) agents, each with streams of its own.

    Agent a of a world reset with `seed` counts the streams `seed + a * AGENT_STREAMS + i`, so every row shows to which
    agent it belongs. The agents' episodes end at different times. The other keys are those of `make`.

    Raises:
        EnvError: as `make`.
    """
    kwargs = dict(env.kwargs)
    count = kwargs.pop("num_agents", 2)
    if not isinstance(count, int) or count < 1:
        raise EnvError(f"{env.id}: env.kwargs.num_agents={count} must be a whole number of at least 1.")
    vectors = [make(_WithKwargs(env, kwargs), num_envs, render_mode=render_mode) for _ in range(count)]
    return CountingWorld(vectors)


class _WithKwargs:
    """An EnvConfig with other `kwargs`."""

    def __init__(self, env: Any, kwargs: dict[str, Any]) -> None:
        self._env, self.kwargs = env, kwargs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class CountingWorld:
    """Counting vectors side by side, one for each agent; see `trainer.envs.world`."""

    def __init__(self, vectors: list[CountingVector]) -> None:
        self._vectors, self.num_envs = vectors, vectors[0].num_envs
        self.agents = tuple(f"agent_{a}" for a in range(len(vectors)))
        self.specs = tuple(vector.spec for vector in vectors)
        self.raw_rewards = [vector.raw_reward for vector in vectors]
        self.present = [np.ones(vector.num_envs, bool) for vector in vectors]

    def reset(self, seed: int | None = None) -> list[Observation]:
        """Start every stream of every agent."""
        for present in self.present:
            present[:] = True
        return [
            vector.reset(None if seed is None else seed + a * AGENT_STREAMS) for a, vector in enumerate(self._vectors)
        ]

    def step(self, actions: list[NDArray[np.int64]]) -> list[Step]:
        """One step of every stream."""
        steps = [vector.step(action) for vector, action in zip(self._vectors, actions, strict=True)]
        for present, (_, _, terminated, truncated) in zip(self.present, steps, strict=True):
            np.logical_not(terminated | truncated, out=present)
        return steps

    def state(self) -> dict[str, Any]:
        """The state of all streams, as tensors and plain values."""
        return {"vectors": [vector.state() for vector in self._vectors], "own": state_of(self)}

    def set_state(self, state: dict[str, Any], actions: Any) -> list[Observation]:
        """Restore the `state` of another one, and return the observation there."""
        set_state(self, state["own"])
        return [
            vector.set_state(its_state, None) for vector, its_state in zip(self._vectors, state["vectors"], strict=True)
        ]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
