"""The support of C51 by the rewards of random play, unless it is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.algorithms import build
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.rewards import RewardsSeen, returns_of, settled, unsettled
from trainer.config.run_config import from_yaml
from trainer.config.sections import Config
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.roles.rewards import play_at_random
from trainer.training.train import train


def nobody(what: str, value: object) -> None:
    """Hears of nothing."""


@pytest.mark.parametrize(
    ("seen", "gamma", "size"),
    [
        (RewardsSeen(1_000, 1.0, 1.0, 1.0, False, 500), 0.99, 100),  # 1 in each frame: (1 - 0.99^500) / 0.01 = 99.3
        (RewardsSeen(1_000, 0.01, 1.0, 1.0, False), 0.99, 10),  # between 0.01 and 1 in each frame: sqrt(0.01) x 100
        (RewardsSeen(1_000, 0.05, 1.0, 1.0, True), 0.99, 1),  # only at an episode's end
        (RewardsSeen(1_000, 0.0, 0.0, 0.0, True), 0.99, 10),  # none
        (RewardsSeen(1_000, 2.0, 1.0, 100.0, False, 10), 1.0, 20),  # no discount, 10 steps
        (RewardsSeen(1_000, 0.5, 2.0, 2.0, False, 3), 0.5, 1.8),  # 1 + 0.5 + 0.25 frames of sqrt(0.5 x 2)
    ],
)  # fmt: skip
def test_returns_lie_between_those_of_rare_and_of_constant_rewards(
    seen: RewardsSeen, gamma: float, size: float
) -> None:
    assert returns_of(seen, gamma) == pytest.approx(size)


def test_only_null_keys_are_chosen_and_by_each_agents_rewards() -> None:
    seen = {"a": RewardsSeen(100, 1.0, 1.0, 1.0, False), "b": RewardsSeen(100, 5.0, 5.0, 5.0, False)}
    plain = load(["algorithm=c51", "env.id=Some-v0"], cores=2).config
    assert unsettled(plain) and not unsettled(load(["preset=lunarlander", "algorithm=c51"], cores=2).config)
    assert not unsettled(load(["env.id=Some-v0"], cores=2).config)
    both = settled(plain, seen).algorithm
    assert (both.v_min, both.v_max) == (-500, 500)  # type: ignore[attr-defined]
    half = settled(replace(plain, algorithm=replace(plain.algorithm, v_min=0.0)), seen).algorithm  # type: ignore[call-arg]
    assert (half.v_min, half.v_max) == (0, 500)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="algorithm.v_min=800 is not below algorithm.v_max=500"):
        settled(replace(plain, algorithm=replace(plain.algorithm, v_min=800.0)), seen)  # type: ignore[call-arg]
    one = load(["env.id=Some-v0", "agents.overrides.a.algorithm.name=c51"], cores=2).config
    assert settled(one, seen).agents.overrides["a"]["algorithm"] == {"name": "c51", "v_min": -100, "v_max": 100}


def test_random_play_sees_the_rewards_that_are_learned_from(make_config: Callable[..., Config], tmp_path: Path) -> None:
    config = make_config(tmp_path, env={"id": "CartPole-v1", "backend": "gymnasium"}, learner={"warmup_frames": 300})
    seen = play_at_random(config, nobody)["agent_0"]
    assert (seen.frames, seen.usual, seen.largest, seen.only_at_ends, seen.most_steps) == (300, 1, 1, False, 500)
    assert 0.9 < seen.mean < 1  # a frame that begins an episode has no reward
    assert play_at_random(config, nobody)["agent_0"] == seen


def test_a_run_stores_its_support_and_both_schedules_choose_the_same(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    found = []
    for schedule in ("sync", "sequential"):
        config = make_config(
            tmp_path / schedule, env={"id": "CartPole-v1", "backend": "gymnasium"}, algorithm={"name": "c51"},
            schedule={"name": schedule}, budget_frames=600,
        )  # fmt: skip
        assert config.algorithm.v_min is None  # type: ignore[attr-defined]
        assert train(config, ["test"])["status"] == "finished"
        kept = from_yaml(tmp_path / schedule / "config.yaml").algorithm
        found.append((kept.v_min, kept.v_max))  # type: ignore[attr-defined]
        log = (tmp_path / schedule / "log.txt").read_text()
        assert f"algorithm.v_min={kept.v_min:g}, algorithm.v_max={kept.v_max:g}: chosen by the rewards of 200" in log  # type: ignore[attr-defined]
    assert found[0] == found[1] and 90 <= found[0][1] <= 100 and found[0][0] == -found[0][1]


@pytest.mark.parametrize(("low", "high"), [(-97.0, 97.0), (0.0, 500.0), (-3.0, 40.0)])
def test_values_begin_at_0_whatever_the_support(low: float, high: float) -> None:
    section = load(["algorithm=c51", f"algorithm.v_min={low}", f"algorithm.v_max={high}"], cores=2).config.algorithm
    spec = EnvSpec("s", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))
    torch.manual_seed(0)
    network = build(section, load([], cores=2).config.learner, spec).network
    assert network(torch.randn(200, 4)).mean().abs().item() < 0.05 * (high - low)
