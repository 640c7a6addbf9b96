"""PettingZoo parallel environments as worlds: agents that die and join late, and real ones that train unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from trainer import envs
from trainer.config.sections import Config
from trainer.envs.pettingzoo import PettingZooVector
from trainer.learning.feed import flat
from trainer.training.train import train

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")

LIFE = {"early": (0, 3), "whole": (0, 6), "late": (2, 6), "cut": (0, 5)}  # first and last step of each in an episode


class Comings:
    """Four agents that live from and to the steps of `LIFE`; each sees (seed, step) and is paid the step's number."""

    possible_agents = list(LIFE)

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.seed = self.step_number = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-1, 100, (2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(3, start=5 if agent == "late" else 0)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seed = self.seed if seed is None else seed
        self.step_number = 0
        self.agents = [name for name, (first, _) in LIFE.items() if first == 0]
        return self._seen(self.agents), {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        assert all((5 <= action <= 7) if name == "late" else (0 <= action <= 2) for name, action in actions.items())
        self.step_number += 1
        acted = list(self.agents)
        terminated = {name: self.step_number >= LIFE[name][1] and name != "cut" for name in acted}
        # "cut" goes without a word; the environment says nothing of the others.
        self.agents = [name for name in acted if self.step_number < LIFE[name][1]]
        self.agents += [name for name, (first, _) in LIFE.items() if first == self.step_number]
        rewards = {name: float(self.step_number) for name in acted}
        return self._seen({*acted, *self.agents}), rewards, terminated, dict.fromkeys(acted, False), {}

    def _seen(self, agents: Any) -> dict[str, Any]:
        return {name: np.array([self.seed, self.step_number], np.float32) for name in agents}

    def close(self) -> None:
        pass


@pytest.fixture
def comings(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("comings_v0")
    module.parallel_env = Comings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comings_v0", module)


def test_agents_die_join_late_and_go_without_a_word(comings: None, config: Callable[..., Any]) -> None:
    world = envs.make_world(config("comings_v0", backend="pettingzoo"), 2)
    assert isinstance(world, PettingZooVector) and world.agents == tuple(LIFE)
    assert [spec.action.start for spec in world.specs] == [0, 0, 5, 0]
    observations = world.reset(7)
    assert observations[0]["observation"].tolist() == [[7, 0], [8, 0]]
    shown: list[list[Any]] = []
    for _ in range(8):
        steps = world.step([np.ones(2, np.int64)] * 4)
        shown.append(
            [
                (bool(present[0]), float(reward[0]), bool(terminated[0]), bool(truncated[0]))
                for present, (_, reward, terminated, truncated) in zip(world.present, steps, strict=True)
            ]
        )
    there, gone = (lambda r: (True, r, False, False)), (False, 0.0, False, False)
    end, cut = (lambda r: (False, r, True, False)), (lambda r: (False, r, False, True))
    assert shown == [
        [there(1), there(1), gone, there(1)],
        [there(2), there(2), there(0), there(2)],  # late has joined, and acts from here on
        [end(3), there(3), there(3), there(3)],
        [gone, there(4), there(4), there(4)],
        [gone, there(5), there(5), cut(5)],
        [gone, end(6), end(6), gone],
        [there(0), there(0), gone, there(0)],  # the next episode
        [there(1), there(1), gone, there(1)],
    ]


def test_rows_of_agents_that_come_and_go(
    comings: None, small_config: Callable[..., Config], started: Callable[[Config], Any]
) -> None:
    """Every drawn transition is of one life: its return is the sum of the steps' numbers, cut where the life ends."""
    config = small_config(
        env={"id": "comings_v0", "backend": "pettingzoo"},
        algorithm={"n_step": 3, "gamma": 0.5},
        schedule={"name": "sequential", "frames_per_round": 8 * 40},
        collector={"num_workers": 2, "envs_per_worker": 4},
    )
    system = started(config)
    for _ in range(2):
        system.board.round[0] += 1
        for rollout in system.collectors.rollouts:
            rollout.collect_round()
    for agent, (name, (first, last)) in zip(system.learners.local, LIFE.items(), strict=True):
        rows = {key: value.numpy() for key, value in flat(agent.replay.sample(30 * agent.replay.batch_size)).items()}
        step, following = rows["observation"][:, 1], rows["next", "observation"][:, 1]
        assert set(step) == set(range(first, last)), name
        m = np.minimum(3, last - step)
        assert (following == step + m).all()
        assert (rows["next", "reward"][:, 0] == sum((step + 1 + k) * 0.5**k * (k < m) for k in range(3))).all()
        ends = step + m == last
        assert (rows["next", "truncated"][:, 0] == (ends & (name == "cut"))).all()
        assert (rows["next", "terminated"][:, 0] == (ends & (name != "cut"))).all()
        lives = agent.board.episodes[0, : agent.board.episodes_done[0]]
        assert (lives[:, 1] == last - first).all() and (lives[:, 0] == sum(range(first + 1, last + 1))).all()
        assert agent.board.frames.sum() == sum(
            (~agent.plan.storage._storage["final"].numpy())[: agent.plan.streams.rows]
        ) - (agent.plan.streams.rows - agent.board.cursor.sum())


REAL = {
    "mpe2/simple_spread_v3": 3,
    "mpe2/simple_speaker_listener_v4": 2,
    "mpe2/simple_tag_v3": 4,
    "mpe2/simple_adversary_v3": 3,
    "mpe2/simple_push_v3": 2,
    "mpe2/simple_crypto_v3": 3,
    "mpe2/simple_world_comm_v3": 6,
    "mpe2/simple_reference_v3": 2,
    "sisl/pursuit_v5": 8,
    "butterfly/knights_archers_zombies_v11": 4,
    "classic/rps_v2": 2,
    "magent2/environments/battle_v4": 162,
}


@pytest.mark.parametrize(
    "env_id", [*list(REAL)[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in list(REAL)[2:])]
)
def test_real_environments_train_unchanged(env_id: str, small_config: Callable[..., Config]) -> None:
    package = env_id.partition("/")[0]
    pytest.importorskip(package if package in ("mpe2", "magent2") else "pettingzoo", reason=f"no {package}")
    config = small_config(
        env={"id": env_id, "backend": "pettingzoo"},
        budget_frames=400,
        collector={"num_workers": 1, "envs_per_worker": 2},
    )
    summary = train(config, ["test"])
    means = summary["eval_return_mean_by_agent"]
    assert len(means) == REAL[env_id] and np.isfinite(list(means.values())).all()
    assert summary["status"] == "finished" and summary["updates"] > 0


def test_what_cannot_be_trained_on_is_refused_in_one_sentence(config: Callable[..., Any]) -> None:
    with pytest.raises(envs.EnvError, match="sisl/multiwalker_v9, walker_0: its actions are points in a box"):
        _ = envs.make_world(config("sisl/multiwalker_v9", backend="pettingzoo"), 1).specs[0].num_actions
    with pytest.raises(envs.EnvError, match="there is no such module"):
        envs.make_world(config("mpe2/simple_spraed_v3", backend="pettingzoo"), 1)
    with pytest.raises(envs.EnvError, match="did you mean treasurehunt"):
        envs.make_world(config("treasurehunts", backend="grid"), 1)
