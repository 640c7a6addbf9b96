"""Backend `grid`: the worlds of `trainer.envs.worlds` (treasurehunt, cleanup, tag, iowa), many at a time.

`env.kwargs` goes to the world's constructor. All episodes end together, after a number of turns.
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.actions import DiscreteAction
from trainer.envs.import_paths import is_path
from trainer.envs.spec import EnvError, EnvSpec, Leaf
from trainer.envs.state import set_state, state_of
from trainer.envs.world import Observation, Step
from trainer.envs.wrapping import arguments, maker_of, wrapped_worlds


class GridVector:
    """Grid worlds stepped together, with the interface of `trainer.envs.world`.

    Args:
        world: an instance of one of `WORLDS`, or of a wrapper around one.
        env_id: its name.
        stack: frames that a policy sees at once.
        has_state: whether attributes of `world` are all of its state, so that it can go on in another process.
    """

    def __init__(self, world: Any, env_id: str, stack: int, has_state: bool = True) -> None:
        self._world, self.num_envs = world, world.num_worlds
        self._restorable: Any = world if has_state else None
        self.agents: tuple[str, ...] = tuple(world.agents)
        kind = "binary" if world.observation_dtype == "bool" else "vector"
        leaf = Leaf("observation", tuple(world.observation_shape), world.observation_dtype, kind, stack=stack)
        spec = EnvSpec(env_id, (leaf,), DiscreteAction(world.num_actions), max_episode_steps=world.max_turns)
        self.specs: tuple[EnvSpec, ...] = (spec,) * len(self.agents)
        n, count = self.num_envs, len(self.agents)
        present = np.ones(n, bool)
        self.present = [present] * count
        self._reward = np.zeros((count, n), np.float32)
        self.raw_rewards: list[NDArray[np.float32]] = list(self._reward)
        self._ended, self._never = np.zeros(n, bool), np.zeros(n, bool)
        self._seed, self._episode = 0, 0

    def reset(self, seed: int | None = None) -> list[Observation]:
        """Reset all worlds; without a seed to the next episode of the last seed."""
        self._seed, self._episode = (self._seed, self._episode + 1) if seed is None else (seed, 0)
        self.present[0][:], self._ended[:], self._reward[:] = True, False, 0
        # Episodes are far apart, so that a later one here never has a seed of another worker.
        return self._observations(self._world.reset(self._seed + (self._episode << 32)))

    def step(self, actions: list[NDArray[np.int64]]) -> list[Step]:
        """Step every world by one turn; after the last turn of an episode, reset all."""
        if self._ended[0]:
            seen = self.reset()
        else:
            observation, reward = self._world.step(np.stack(actions, 1))
            self._reward[:] = reward.T
            seen = self._observations(observation)
            if self._world.turn >= self._world.max_turns:
                self._ended[:], self.present[0][:] = True, False
        return [(seen[a], self._reward[a], self._never, self._ended) for a in range(len(self.agents))]

    def state(self) -> dict[str, Any] | None:
        """The state of all worlds, as tensors and plain values; None within a wrapper, whose state is not known."""
        if self._restorable is None:
            return None
        return {"own": state_of(self), "world": state_of(self._restorable)}

    def set_state(self, state: dict[str, Any], actions: Any) -> list[Observation]:
        """Restore the `state` of another one, and return the observation there."""
        set_state(self, state["own"])
        set_state(self._world, state["world"])
        return self._observations(self._world.observe())

    def render(self) -> Any:
        """The picture of world 0, uint8 [height, width, 3]."""
        return self._world.render(0)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _observations(self, observation: np.ndarray) -> list[Observation]:
        return [{"observation": observation[:, a]} for a in range(len(self.agents))]


def make(env: Any, num_envs: int, render_mode: str | None = None) -> GridVector:
    """A world of `num_envs` sub-environments; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: there is no such world, it does not take `env.kwargs`, or a window was asked for.
    """
    from trainer.envs.worlds import WORLDS  # only where they are played

    if env.id not in WORLDS and not is_path(env.id):
        near = difflib.get_close_matches(env.id, WORLDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise EnvError(f"{env.id}: env.backend=grid has {', '.join(WORLDS)}{hint}")
    if render_mode == "human":
        raise EnvError(f"{env.id}: a grid world has no window; let it write a video instead.")
    try:
        maker = maker_of(env, ("num_worlds",)) if is_path(env.id) else WORLDS[env.id]
        world = maker(num_envs, **arguments(env))
    except (TypeError, ValueError) as error:
        raise EnvError(f"{env.id}: env.kwargs={env.kwargs} do not fit: {error}") from error
    return GridVector(wrapped_worlds(world, env), env.id, env.frame_stack, has_state=not env.wrappers)
