"""Learning rates over a run: their values, and that every way to make updates follows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from trainer.config.sections import Config, LearnerConfig
from trainer.learning.rates import learning_rates
from trainer.run_folder import checkpoint
from trainer.training.train import train

AGENTS = {"env": {"id": "CountingAgents", "backend": "counting_agents"}}
COSINE = {"learning_rate": 1e-3, "learning_rate_schedule": "cosine", "learning_rate_warmup_updates": 50}
QUICK = {"evaluator": {"every_frames": 0, "final_episodes": 2}, "logger": {"every_seconds": 0.01}}


def rates(*fractions: float, updates: int = 10**6, **keys: Any) -> list[float]:
    rate = learning_rates(LearnerConfig(learning_rate=0.001, **keys))
    return [rate(fraction, updates) for fraction in fractions]


def training_rows(config: Config) -> list[dict[str, Any]]:
    train(config, ["test"])
    lines = (Path(str(config.run_dir)) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "updates" in row]


def test_rates_over_the_budget():
    assert rates(0, 0.5, 1) == [0.001] * 3
    assert rates(0, 0.25, 0.5, 1, 1.3, learning_rate_end=0.0005) == pytest.approx([1e-3, 8.75e-4, 7.5e-4, 5e-4, 5e-4])
    assert rates(0.5, 1, learning_rate_schedule="linear") == pytest.approx([5e-4, 0])
    assert rates(0.5, learning_rate_end=0.002) == pytest.approx([1.5e-3])  # it may rise
    assert rates(0, 1 / 3, 0.5, 1, learning_rate_schedule="cosine", learning_rate_end=2e-4) == pytest.approx(
        [1e-3, 8.0e-4, 6e-4, 2e-4], rel=0.02
    )  # halfway it is the mean; a third of the way cos(60 degrees) = 1/2 is left of the half width 4e-4
    assert rates(0.5, learning_rate_schedule="constant", learning_rate_end=0.0) == [0.001]
    assert rates(0.505, 0.509, learning_rate_end=0.0) == rates(0.5, 0.5, learning_rate_end=0.0)  # whole hundredths


def test_warm_up_is_that_of_pytorch():
    rate = learning_rates(LearnerConfig(learning_rate=0.001, learning_rate_warmup_updates=4))
    assert [rate(0, updates) for updates in range(6)] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=0.001)
    scheduler = LinearLR(optimizer, start_factor=1 / 4, total_iters=3)
    for updates in range(6):
        assert rate(0, updates) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_the_cosine_is_that_of_pytorch():
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=0.001)
    scheduler = CosineAnnealingLR(optimizer, T_max=100, eta_min=1e-4)
    rate = learning_rates(LearnerConfig(learning_rate=0.001, learning_rate_schedule="cosine", learning_rate_end=1e-4))
    for percent in range(100):
        assert rate((percent + 0.5) / 100, 0) == optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("execution", ["eager", "trace", pytest.param("compile", marks=pytest.mark.slow)])
def test_a_recorded_update_takes_a_new_rate(small_config, started, execution: str):
    system = started(small_config(schedule={"name": "sequential"}, learner={"execution": execution}))
    system.publish()
    for _ in range(3):
        system.collect_round()
    (learner,) = system.learners.local
    changes = []
    for rate in (0.0, 1e-3, 2e-3, 0.0):
        before = learner.flat()
        learner.updater.set_learning_rate(rate)
        learner.learn([1])
        changes.append(float((learner.flat() - before).abs().max()))
    assert changes[0] == changes[3] == 0 and changes[1] > 0
    assert changes[2] == pytest.approx(2 * changes[1], rel=0.5)  # Adam's first steps have about the size of the rate


def test_rows_have_the_rate_and_sync_ends_with_the_bits_of_sequential(small_config: Callable[..., Config]):
    flats = []
    for schedule in ("sequential", "sync"):
        config = small_config(schedule, schedule={"name": schedule}, learner=COSINE, budget_frames=2_000, **QUICK)
        rows = training_rows(config)
        rate = learning_rates(config.learner)
        assert rows[-1]["learning_rate"] == rate(1.0, rows[-1]["updates"])
        decaying = [row["learning_rate"] for row in rows if row["updates"] > 50]
        assert len(set(decaying)) > 2 and decaying == sorted(decaying, reverse=True)
        flats.append(checkpoint.load(Path(str(config.run_dir)) / "last" / "policy.safetensors")["weights"])
    assert torch.equal(*flats)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("stacked", {**AGENTS, "schedule": {"name": "sequential"}, "agents": {"learner": "stacked"}}),
        ("process", {**AGENTS, "schedule": {"name": "async"}, "agents": {"learner": "process"}}),
        ("local agents", {"schedule": {"name": "shared_gradient", "num_agents": 2, "frames_per_round": 32}}),
    ],
)
def test_agents_that_learn_elsewhere_follow_it(small_config: Callable[..., Config], name: str, sections: dict):
    config = small_config(**sections, learner=COSINE, budget_frames=1_200, **QUICK)
    train(config, ["test"])
    folders = {path.parent for path in Path(str(config.run_dir)).rglob("frames_*.pt")}
    assert len(folders) >= 2
    for folder in folders:
        state = checkpoint.newest(folder)
        if state is not None and "learner" in state:  # the shared optimiser's has no rate
            assert 0 <= state["learner"]["learning_rate"] < 1e-4  # of the last updates, at the end of half a cosine
