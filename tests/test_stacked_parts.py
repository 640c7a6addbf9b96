"""Stacks of agents whose updates have several parts: each learns as it does alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.algorithms import build
from trainer.config.algorithms import AlgorithmConfig, AnyAlgorithmConfig, section_of
from trainer.config.sections import LearnerConfig
from trainer.envs import BoxAction, DiscreteAction, EnvSpec, Leaf
from trainer.learning.stacking import Stack, can_be_stacked
from trainer.learning.update import Updater

LEAVES = (Leaf("observation", (6,), "float32", "vector"),)
BOX = EnvSpec("box", LEAVES, BoxAction((2,), (-1.0, -2.0), (1.0, 2.0)))
NUMBERS = EnvSpec("numbers", LEAVES, DiscreteAction(3))
CONFIG = LearnerConfig(learning_rate=1e-3, max_grad_norm=0.5, batch_size=16)


def section(name: str, **changes: Any) -> AlgorithmConfig:
    every = {"hidden_sizes": [24, 16], "target_tau": 0.02, "critic_quantiles": 5, **changes}
    return section_of(AnyAlgorithmConfig(**every), name)


def updaters(count: int, algorithm: AlgorithmConfig) -> list[Updater]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        spec = NUMBERS if algorithm.name == "sac_discrete" else BOX
        made.append(Updater(build(algorithm, CONFIG, spec), CONFIG, torch.device("cpu"), seed))
    return made


def batch_of(generator: torch.Generator, name: str, size: int = 16) -> dict[Any, torch.Tensor]:
    """A random batch of the form that the replay gives."""
    ends = torch.rand(size, 1, generator=generator) < 0.1
    numbered = torch.randint(0, 3, (size,), generator=generator)
    return {
        "action": numbered if name == "sac_discrete" else torch.rand(size, 2, generator=generator) * 2 - 1,
        "observation": torch.randn(size, 6, generator=generator),
        ("next", "observation"): torch.randn(size, 6, generator=generator),
        ("next", "reward"): torch.randn(size, 1, generator=generator),
        ("next", "terminated"): ends,
        ("next", "truncated"): torch.zeros_like(ends),
        ("next", "done"): ends,
    }


@pytest.mark.parametrize("name", ["sac", "td3", "tqc", pytest.param("sac_discrete", marks=pytest.mark.slow)])
def test_stacked_agents_learn_as_one_by_one(name: str) -> None:
    """100 updates of three agents; agent 1 has no batch in every seventh, so TD3's delay comes at other times."""
    algorithm = section(name)
    alone, together = updaters(3, algorithm), updaters(3, algorithm)
    assert all(can_be_stacked(updater) for updater in together)
    start, stack = [[value.clone() for value in one.trained] for one in alone], Stack(together)
    generators = [torch.Generator().manual_seed(100 + agent) for agent in range(3)]
    for number in range(100):
        given = [
            None if agent == 1 and number % 7 == 3 else batch_of(generator, name)
            for agent, generator in enumerate(generators)
        ]
        priorities = stack.update(given)
        for one, batch, priority in zip(alone, given, priorities, strict=True):
            if batch is not None:
                assert torch.allclose(one.update(batch), priority, atol=1e-4)
    for before, one, other in zip(start, alone, together, strict=True):
        assert one.updates == other.updates
        for first, mine, its in zip(before, one.trained, other.trained, strict=True):
            assert torch.allclose(mine, its, atol=1e-5) and not torch.allclose(first, mine, atol=1e-3)
        for mine, its in zip(one.targets, other.targets, strict=True):
            assert torch.allclose(mine, its, atol=1e-5)
        assert one.metrics() == pytest.approx(other.metrics(), rel=1e-3, abs=1e-5)
        for mine, its in zip(one.of_groups, other.of_groups, strict=True):
            assert torch.equal(mine.step, its.step)
        state, its = one.state_dict(), other.state_dict()
        assert ("noise" in state) == (name in ("sac", "td3", "tqc"))
        assert torch.equal(state.get("noise", torch.zeros(0)), its.get("noise", torch.zeros(0)))


def test_large_networks_and_those_with_running_statistics_learn_by_themselves() -> None:
    assert not can_be_stacked(updaters(1, section("crossq"))[0])
    assert not can_be_stacked(
        updaters(1, section("sac", hidden_sizes=[512, 512]))[0]
    )  # half a million weights x 16 rows


def test_one_agents_nan_stops_its_own_learning_and_nobody_elses() -> None:
    clean, poisoned = (Stack(updaters(3, section("sac"))) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        several = [batch_of(generator, "sac") for _ in range(3)]
        clean.update(several)
        if number == 5:
            several[1]["observation"][3] = torch.nan
            before = [value.clone() for value in poisoned.updaters[1].trained]
        poisoned.update(several)
    for agent in (0, 2):
        for one, other in zip(clean.updaters[agent].trained, poisoned.updaters[agent].trained, strict=True):
            assert torch.equal(one, other)  # to the last bit
    assert all(torch.equal(one, other) for one, other in zip(before, poisoned.updaters[1].trained, strict=True))
