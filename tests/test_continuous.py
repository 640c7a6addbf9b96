"""Runs with actions in a box: rounds are exact, a stopped run goes on bit for bit, actions are within the bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.test_resume import newest, rows_of, stop_at
from tests.test_schedules import differences, trained
from trainer import envs
from trainer.config.arguments import check
from trainer.config.compose import choose_preset, load
from trainer.config.resolving import resolve
from trainer.config.sections import Config
from trainer.roles.evaluator import world_of
from trainer.roles.greedy import Players, evaluate
from trainer.run_folder import checkpoint
from trainer.telemetry.rows import of_kind, read
from trainer.training.train import train

PENDULUM = {"id": "Pendulum-v1", "backend": "gymnasium"}
SMALL: dict[str, Any] = {
    "env": PENDULUM,
    "budget_frames": 600,
    "collector": {"num_workers": 2, "envs_per_worker": 2, "random_frames": 200},
    "learner": {"warmup_frames": 100, "batch_size": 16, "max_grad_norm": None, "publish_every_updates": 1},
}


def small(config: Callable[..., Config], name: str, algorithm: str, schedule: str, **changes: Any) -> Config:
    """A short run on Pendulum; `changes` are sections."""
    options = {"name": algorithm, "hidden_sizes": [16, 16], "target_tau": 0.01, "n_step": 2, "prioritized": True}
    sections = {**SMALL, "schedule": {"name": schedule, "frames_per_round": 64}, "algorithm": options, **changes}
    return config(name, **sections)


@pytest.mark.parametrize("algorithm", [pytest.param("sac", marks=pytest.mark.slow), "td3"])
def test_sync_and_sequential_give_bit_identical_weights(algorithm: str, small_config: Callable[..., Config]) -> None:
    ladder = {**SMALL["collector"], "exploration": "apex"}  # of td3's noise
    sync, sequential = (
        trained(small(small_config, name, algorithm, name, collector=ladder)) for name in ("sync", "sequential")
    )
    assert sync["learner"]["updates"] == (sync["frames"] - 100) // 4 >= 100
    assert ("noise" in sync["learner"]) and differences(sync, sequential) == []


@pytest.mark.parametrize(
    "algorithm", ["sac", *(pytest.param(name, marks=pytest.mark.slow) for name in ("td3", "crossq"))]
)
def test_a_stopped_run_goes_on_bit_for_bit(algorithm: str, small_config: Callable[..., Config]) -> None:
    whole = small(small_config, "whole", algorithm, "sequential", budget_frames=2_000)
    train(whole, ["test"])
    stopped = replace(whole, run_dir=str(Path(whole.run_dir or "").with_name("stopped")))
    stop_at(Path(stopped.run_dir or ""), 400)
    assert train(stopped, ["test"])["status"] == "stopped"
    assert train(replace(stopped, resume=stopped.run_dir), ["resume"])["status"] == "finished"
    one, other = newest(Path(whole.run_dir or "")), newest(Path(stopped.run_dir or ""))
    for part in ("learner", "limiter", "sampler"):
        assert differences(one[part], other[part]) == []


def test_a_run_reports_its_actor_and_its_policy_plays(small_config: Callable[..., Config]) -> None:
    config = resolve(small(small_config, "run", "sac", "async", evaluator={"every_frames": 200, "episodes": 2}))
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and -2_000 < summary["eval_return_mean"] < 0
    folder = Path(config.run_dir or "")
    rows = [row for row in rows_of(folder) if "actor_loss" in row]
    assert rows and {"entropy", "temperature", "q_mean", "q_spread", "action_saturation"} <= set(rows[-1])
    assert rows[-1]["epsilon_mean"] == 0.0
    players = Players([(config, envs.describe(config.env))])
    players.load(checkpoint.load(folder / "best" / "policy.safetensors")["weights"])
    world = world_of(config, 2)
    taken: list[np.ndarray] = []
    step = world.step
    world.step = lambda actions: (taken.append(actions[0].copy()), step(actions))[1]  # type: ignore[func-returns-value]
    (played,) = evaluate(players, world, 2, seed=5)
    world.close()
    assert np.stack(taken).shape == (200, 2, 1) and np.abs(np.stack(taken)).max() <= 2
    assert len(played.returns) == 2 and np.isnan(played.predicted).all()


@pytest.mark.parametrize("schedule", ["sync", "sequential"])
def test_evaluations_say_how_much_the_critics_promise(schedule: str, small_config: Callable[..., Config]) -> None:
    """Critics that have hardly learned promise about 0, where 200 steps of Pendulum cost some hundreds."""
    evaluator = {"every_frames": 200, "episodes": 2}
    config = resolve(small(small_config, "run", "td3", schedule, evaluator=evaluator))
    train(config, ["test"])
    rows = of_kind(read(Path(config.run_dir or ""))[0], "evaluation")
    found = [float(row["eval_overestimation"]) for row in rows if row["eval_overestimation"] is not None]
    assert found and all(200 < value < 1_200 for value in found)


def test_the_first_frames_are_uniformly_random(small_config: Callable[..., Config]) -> None:
    """An untrained policy is nearly symmetric about 0 too, but not uniform: a fifth of the actions is beyond 1.6."""
    config = small(small_config, "random", "sac", "sequential", budget_frames=1_200)
    config = replace(config, collector=replace(config.collector, random_frames=10**6), checkpoint=config.checkpoint)
    train(config, ["test"])
    state = newest(Path(config.run_dir or ""))
    assert torch.isfinite(state["learner"]["loss"]["temperature_params.log_alpha"])
    rows = [row["epsilon_mean"] for row in rows_of(Path(config.run_dir or "")) if row.get("epsilon_mean") is not None]
    assert rows[-1] == 1.0


def test_a_preset_is_chosen_for_the_kind_of_actions() -> None:
    def chosen(*arguments: str) -> str:
        return choose_preset(check(list(arguments)))[0]

    assert chosen("env.id=Pendulum-v1") == chosen("algorithm=td3") == "pendulum"
    assert chosen("env.id=LunarLander-v3") == "lunarlander"
    assert chosen("env.id=LunarLander-v3", "algorithm=sac") == "lunarlander_continuous"
    assert chosen("env=lunarlander_continuous") == "lunarlander_continuous"
    assert chosen("env.id=Some/Box-v0", "algorithm=tqc") == "continuous"
    assert chosen("env.id=Some/Numbers-v0", "algorithm=sac_discrete") == "generic"
    config = load(["env.id=Pendulum-v1", "algorithm=td3"], cores=2).config
    assert (config.algorithm.name, config.algorithm.hidden_sizes) == ("td3", [256, 256])
