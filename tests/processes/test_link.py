"""The seam between a rollout and its learners: with another link behind it a rollout plays on just the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer import envs
from trainer.algorithms import make_policy
from trainer.config.sections import Config
from trainer.memory.boards import ControlBoard
from trainer.roles.agents import plan_agents
from trainer.roles.rollout import CollectorPlan, Rollout
from trainer.roles.shared_memory import SharedMemoryLink

STEPS = 60


class ListedAgent:
    """An `AgentLink` that keeps what it is given in lists, as one to another machine would send it."""

    def __init__(self) -> None:
        self.time, self.weights = 0, torch.zeros(0)
        self.rows: list[dict[str, np.ndarray]] = []
        self.episodes: list[tuple[float, int]] = []
        self.count = 0

    def write_observation(self, observation: dict[str, np.ndarray], present: np.ndarray, age: np.ndarray) -> None:
        self.rows.append({name: array.copy() for name, array in observation.items()} | {"final": ~present})

    def write_action(self, action: np.ndarray, values: np.ndarray, epsilon: float) -> None:
        self.rows[-1]["action"] = action.copy()

    def write_step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, frames: int) -> None:
        for name, array in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            self.rows[-1][name] = array.copy()
        self.time += 1
        self.count += frames

    def write_episodes(self, returns: np.ndarray, lengths: np.ndarray, info: list[dict[str, float]]) -> None:
        self.episodes += zip(returns.tolist(), lengths.tolist(), strict=True)

    def read_weights(self, flat: Tensor) -> None:
        flat.copy_(self.weights)

    def weights_reader(self) -> Callable[[Tensor], object]:
        return self.read_weights

    def frames(self) -> int:
        return self.count

    def may_collect(self, frames: int) -> bool:
        return True

    def round_frames(self) -> int:
        return 0

    def episode_actions(self, age: np.ndarray) -> list[np.ndarray]:
        return []


class ListedWorker:
    """Its `WorkerLink`: stops the worker after so many signs of life."""

    def __init__(self, steps: int) -> None:
        self.agent, self.left = ListedAgent(), steps

    def connect(self) -> list[ListedAgent]:
        return [self.agent]

    def begin(self) -> None: ...

    def starting(self) -> None: ...

    def alive(self) -> None:
        self.left -= 1

    def waited(self, seconds: float) -> None: ...

    def fail(self, text: str) -> None: ...

    def close(self) -> None: ...

    def stopping(self) -> bool:
        return self.left <= 0

    def round_due(self) -> bool:
        return False

    def round_done(self) -> None: ...

    def snapshot_due(self) -> int:
        return 0

    def snapshot_done(self, number: int) -> None: ...


def test_a_rollout_writes_the_same_through_another_link(small_config: Callable[..., Config], tmp_path: Path) -> None:
    collector = {"num_workers": 1, "envs_per_worker": 3, "epsilon_start": 0.3, "epsilon_end": 0.3}
    config = small_config(env={"kwargs": {"max_length": 8}}, collector=collector)
    (plan,) = plan_agents(config, envs.describe_world(config.env), tmp_path, tmp_path)
    rollouts: list[tuple[Any, Rollout]] = []
    for link, agent in (
        (SharedMemoryLink(ControlBoard(1), [plan], 0), plan),
        (ListedWorker(STEPS), replace(plan, board=None, weights=None, storage=None, streams=None)),  # it needs none
    ):
        torch.manual_seed(3)
        world = envs.make_world(config.env, 3)
        rollout = Rollout(CollectorPlan(config, (agent,), 0), link, world, [make_policy(config, plan.spec)])
        rollouts.append((link, rollout))
    (_, shared), (listed, other) = rollouts
    listed.agent.weights = other.policies.weights[0].clone()  # those that both were made with
    for _ in range(STEPS):
        shared.step([0])
    other.run()
    rows, board = shared.agents[0].link.rows, plan.board
    assert listed.agent.time == STEPS and listed.agent.rows[0].keys() <= rows.keys()
    for name in listed.agent.rows[0]:
        assert np.array_equal(np.stack([row[name] for row in listed.agent.rows]), rows[name][:STEPS]), name
    assert listed.agent.count == board.total_frames() == (~rows["final"][:STEPS]).sum()
    done = int(board.episodes_done[0])
    assert done > 20 and listed.agent.episodes == [tuple(row) for row in board.episodes[0, :done, :2].tolist()]
