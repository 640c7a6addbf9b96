"""One agent's place in a worker: what it sees, how it explores, its rows and counters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trainer.acting.exploration import EXPLORATIONS, EpsilonGreedy
from trainer.acting.stacks import FrameStacks
from trainer.envs.world import Observation, Step
from trainer.host import seeds
from trainer.memory.weights import WeightsReader
from trainer.roles.agents import AgentPlan


class Seat:
    """One agent in a worker's world: what it sees, how it explores, and its own rows and counters.

    Args:
        plan: the agent.
        worker: whose rows it writes.
        rows: the worker's columns [ring, N, ...] of the agent's replay, from `trainer.replay.streams.worker_rows`.
        start: as in `CollectorPlan`; a worker that is started anew draws other numbers.
    """

    def __init__(self, plan: AgentPlan, worker: int, rows: dict[str, np.ndarray], start: int = 0) -> None:
        self.config, self.board, self.worker, self.rows = plan.config.collector, plan.board, worker, rows
        n, own = plan.streams.envs_per_worker, plan.streams.streams_of(worker)
        self.num_envs, self.ring = n, plan.streams.ring
        self.cursor = self.board.cursor[own]
        self.time = int(self.cursor[0])
        self.reader: WeightsReader = plan.weights.reader()
        self.explorer = EpsilonGreedy(n, plan.spec.action, seeds.of_exploration(plan.seed, worker, start))
        self.epsilon = EXPLORATIONS[self.config.exploration](self.config, plan.streams.num_streams, own)
        self.noisy = plan.config.algorithm.noisy  # noise explores in place of epsilon
        self.stacks, self.action = FrameStacks(plan.spec, n), plan.spec.action
        self.observation: Observation = {}
        self.present = np.ones(n, bool)  # whether the row to be written starts a transition
        self.num_absent = 0
        self.age = np.zeros(n, np.int32)  # steps since the episode's first observation
        self.returns = np.zeros(n)
        self.given: np.ndarray | None = None  # [N, *shape], actions that a world gives
        self.counted = np.ones(n, bool)  # of an episode that ends, whether the agent played it

    def begin(self, observation: Observation, present: np.ndarray) -> None:
        """Take the first observation of all episodes."""
        self.observation = observation
        self.present[:] = present
        self.num_absent = self.num_envs - int(np.count_nonzero(present))
        self.stacks.push(observation, np.ones(self.num_envs, bool))

    def state_dict(self) -> dict[str, Any]:
        """Where it stands between two steps."""
        return {
            "explorer": self.explorer.state_dict(),
            "stacks": self.stacks.state_dict(),
            "present": torch.from_numpy(self.present.copy()),
            "age": torch.from_numpy(self.age.copy()),
            "returns": torch.from_numpy(self.returns.copy()),
            "time": self.time,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; the observation is the world's affair."""
        self.explorer.load_state_dict(state["explorer"])
        self.stacks.load_state_dict(state["stacks"])
        for name in ("present", "age", "returns"):
            getattr(self, name)[:] = state[name].numpy()
        self.num_absent = self.num_envs - int(np.count_nonzero(self.present))

    def write_seen(self) -> None:
        """The first half of a row: what the agent acts on."""
        rows, i = self.rows, self.time % self.ring
        for name, array in self.observation.items():
            rows[name][i] = array
        np.logical_not(self.present, out=rows["final"][i])
        if "age" in rows:
            rows["age"][i] = self.age

    def explore(self, action: np.ndarray, values: np.ndarray, frames: int) -> np.ndarray:
        """Exploring actions int64 [N] out of the greedy ones, after `frames` frames; written into the row.

        Where the world gives an action (`trainer.envs.world`), it is that one.
        """
        rows, i = self.rows, self.time % self.ring
        if not self.noisy:
            rates, self.board.epsilon[self.worker] = self.epsilon(frames)
            action = self.explorer(action, rates, self.observation.get("action_mask"))
        if self.given is not None:
            given = self.action.given(self.given)
            action = np.where(given.reshape(-1, *[1] * (action.ndim - 1)), self.given, action)
            self.counted = ~given
        rows["action"][i] = action
        if "value_best" in rows:
            rows["value_taken"][i] = values[np.arange(self.num_envs), action]
            rows["value_best"][i] = values.max(1)
        return action

    def conclude(self, step: Step, present: np.ndarray, raw_reward: np.ndarray) -> None:
        """The second half of a row, then the cursor; counters and finished episodes."""
        rows, i = self.rows, self.time % self.ring
        self.observation, reward, terminated, truncated = step
        rows["reward"][i], rows["terminated"][i], rows["truncated"][i] = reward, terminated, truncated
        self.time += 1
        self.cursor[:] = self.time  # publish: after the row, never before

        self.age += 1
        self.returns += raw_reward
        self.board.frames[self.worker] += self.num_envs - self.num_absent  # such a row is no transition
        ended = terminated | truncated
        if self.num_absent or not present.all():
            if ended.any():
                self._finish_episodes(ended)
            fresh = present & ~self.present
            self.age[fresh] = 0
            self.present[:] = present
            self.num_absent = self.num_envs - int(np.count_nonzero(present))
        else:
            fresh = ended  # nobody
        self.stacks.push(self.observation, fresh)

    def _finish_episodes(self, ended: np.ndarray) -> None:
        board, worker, ring = self.board, self.worker, self.board.episodes[self.worker]
        done, count = np.flatnonzero(ended & self.counted), int(board.episodes_done[worker])
        slots = (count + np.arange(len(done))) % len(ring)
        ring[slots, 0], ring[slots, 1], ring[slots, 2] = self.returns[done], self.age[done], board.total_frames()
        board.episodes_done[worker] = count + len(done)
        self.returns[ended] = 0
