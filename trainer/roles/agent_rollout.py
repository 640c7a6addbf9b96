"""One agent's part of a rollout: observations, exploration, and episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from trainer.acting.acting import Acting
from trainer.acting.exploration import Explored, RandomAtFirst
from trainer.acting.multi_agent import Seen
from trainer.acting.stacks import FrameStacks
from trainer.envs.info import scalars_of
from trainer.envs.world import Observation, Step
from trainer.host import seeds
from trainer.roles.agents import AgentPlan
from trainer.roles.link import AgentLink


class AgentRollout:
    """One agent in a worker's world of N sub-environments.

    Args:
        plan: of the agent.
        acting: how it explores.
        link: to the agent's learner.
        worker: number of the worker.
        start: as in `CollectorPlan`, for the seed: a restarted worker explores in another way.

    Attributes:
        observation: on which the agent acts next, arrays [N, ...].
        present: bool [N], whether the next row starts a transition.
        age: int32 [N], steps since the episode's first observation.
        given: [N, *shape], actions of the world that replace the agent's; None in most worlds.
        info_of: the last `info` of a sub-environment.
        episodes: number of finished episodes.
    """

    def __init__(self, plan: AgentPlan, acting: Acting, link: AgentLink, worker: int, start: int = 0) -> None:
        self.link, config = link, plan.config.collector
        assert config.num_workers is not None  # a run's configuration is resolved
        n = self.num_envs = config.envs_per_worker
        streams = slice(worker * n, (worker + 1) * n)
        seed = seeds.of_exploration(plan.seed, worker, start)
        explored = Explored(config, plan.spec.action, config.num_workers * n, streams, seed)
        self.explorer = acting.explorer(explored)
        if config.random_frames:
            at_first = seeds.of_random_actions(plan.seed, worker, start)
            self.explorer = RandomAtFirst(explored, self.explorer, at_first)
        self.stacks, self.action = FrameStacks(plan.spec, n), plan.spec.action
        self.observation: Observation = {}
        self.present = np.ones(n, bool)
        self.num_absent = 0
        self.age = np.zeros(n, np.int32)
        self.returns = np.zeros(n)
        self.given: np.ndarray | None = None
        self.info_of: Callable[[int], Mapping[Any, Any]] = lambda index: {}
        self._info_keys = plan.config.logger.info_keys
        self.counted = np.ones(n, bool)  # whether an episode that ends counts: not if it was given
        self.episodes = 0

    def begin(self, observation: Observation, present: np.ndarray) -> None:
        """Take the first observation of all episodes."""
        self.observation = observation
        self.present[:] = present
        self.num_absent = self.num_envs - int(np.count_nonzero(present))
        self.stacks.push(observation, np.ones(self.num_envs, bool))

    def state_dict(self) -> dict[str, Any]:
        """The state between two steps."""
        return {
            "explorer": self.explorer.state_dict(),
            "stacks": self.stacks.state_dict(),
            "present": torch.from_numpy(self.present.copy()),
            "age": torch.from_numpy(self.age.copy()),
            "returns": torch.from_numpy(self.returns.copy()),
            "time": self.link.time,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; the observation comes from the world."""
        self.explorer.load_state_dict(state["explorer"])
        self.stacks.load_state_dict(state["stacks"])
        for name in ("present", "age", "returns"):
            getattr(self, name)[:] = state[name].numpy()
        self.num_absent = self.num_envs - int(np.count_nonzero(self.present))

    def seen(self) -> Seen:
        """The network's inputs: leaves and mask."""
        observation = self.observation
        return self.stacks.seen(observation), observation.get("action_mask")

    def explore(self, action: np.ndarray, values: np.ndarray, frames: int) -> np.ndarray:
        """Replace some actions of the policy, [N, *shape], by exploring ones, and write them into the row.

        Actions that the world gives (`trainer.envs.world`) replace both.

        Args:
            action: of the policy.
            values: of all actions, float32 [N, A].
            frames: collected so far.
        """
        action, epsilon = self.explorer(action, self.observation.get("action_mask"), frames)
        if self.given is not None:
            given = self.action.given(self.given)
            action = np.where(given.reshape(-1, *[1] * (action.ndim - 1)), self.given, action)
            self.counted = ~given
        self.link.write_action(action, values, epsilon)
        return action

    def conclude(self, step: Step, present: np.ndarray, raw_reward: np.ndarray) -> None:
        """Complete the row, and report the episodes that have ended."""
        self.observation, reward, terminated, truncated = step
        self.link.write_step(reward, terminated, truncated, self.num_envs - self.num_absent)
        self.age += 1
        self.returns += raw_reward
        ended = terminated | truncated
        if self.num_absent or not present.all():
            if ended.any():
                self._finish_episodes(ended)
            fresh = present & ~self.present
            self.age[fresh] = 0
            self.present[:] = present
            self.num_absent = self.num_envs - int(np.count_nonzero(present))
        else:
            fresh = ended  # all False, as an agent that ends is not present
        self.stacks.push(self.observation, fresh)

    def _finish_episodes(self, ended: np.ndarray) -> None:
        done = np.flatnonzero(ended & self.counted)
        info = [scalars_of(self.info_of(index), self._info_keys) for index in done.tolist()]
        self.link.write_episodes(self.returns[done], self.age[done], info)
        self.episodes += len(done)
        self.returns[ended] = 0
