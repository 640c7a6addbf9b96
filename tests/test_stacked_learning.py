"""Stacked agents learn and act as they do one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from trainer.acting import multi_agent
from trainer.acting.multi_agent import AgentPolicies, flop
from trainer.acting.policies import greedy_policy
from trainer.algorithms import build
from trainer.config.algorithms import AnyAlgorithmConfig, DQNConfig, section_of
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.stacking import Stack
from trainer.learning.update import Updater
from trainer.memory.weights import flatten_parameters
from trainer.training.processes import use_fork_server

VECTOR = EnvSpec("vector", (Leaf("observation", (6,), "float32", "vector"),), DiscreteAction(3))
CPU = torch.device("cpu")


def batch_of(generator: torch.Generator, size: int = 32) -> dict[Any, torch.Tensor]:
    """A random batch of the form that the replay gives."""
    ends = torch.rand(size, 1, generator=generator) < 0.1
    return {
        "action": torch.randint(0, 3, (size,), generator=generator),
        "observation": torch.randn(size, 6, generator=generator),
        ("next", "observation"): torch.randn(size, 6, generator=generator),
        ("next", "reward"): torch.randn(size, 1, generator=generator),
        ("next", "terminated"): ends,
        ("next", "truncated"): torch.zeros_like(ends),
        ("next", "done"): ends,
    }


def learners(count: int, algorithm: DQNConfig, config: LearnerConfig) -> list[Updater]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(Updater(build(algorithm, config, VECTOR), config, CPU))
    return made


def batches(count: int, agents: int) -> list[list[dict[Any, torch.Tensor]]]:
    generators = [torch.Generator().manual_seed(100 + agent) for agent in range(agents)]
    return [[batch_of(generator) for generator in generators] for _ in range(count)]


def learn_alone(agent: int, updates: int, algorithm: DQNConfig, config: LearnerConfig, answer: Any) -> None:
    """Body of one agent's own process."""
    torch.set_num_threads(1)
    learner = learners(agent + 1, algorithm, config)[agent]
    for several in batches(updates, agent + 1):
        learner.update(several[agent])
    answer.put((agent, [value.tolist() for value in learner.trained]))


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize("name", ["dqn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qrdqn", "c51"))])
def test_stacked_sequential_and_own_processes_learn_the_same_from_the_same_batches(name: str) -> None:
    """200 updates of three agents: clipped gradients, Adam and the target, each agent on its own batches."""
    every = AnyAlgorithmConfig(
        hidden_sizes=[24, 16], dueling=True, target_update_every_updates=30, num_quantiles=8, num_atoms=11
    )
    algorithm = section_of(every, name)
    config = LearnerConfig(learning_rate=1e-3, max_grad_norm=0.5, batch_size=32)
    sequential, together = learners(3, algorithm, config), learners(3, algorithm, config)
    start = [[value.clone() for value in learner.trained] for learner in sequential]
    stack = Stack(together)
    for several in batches(200, 3):
        for learner, batch in zip(sequential, several, strict=True):
            alone = learner.update(batch)
        shared = stack.update(several)
    assert torch.allclose(alone, shared[-1], atol=1e-4)
    use_fork_server()
    context = mp.get_context("forkserver")
    answers = context.Queue()
    process = context.Process(target=learn_alone, args=(2, 200, algorithm, config, answers))
    process.start()
    agent, own = answers.get(timeout=120)
    process.join(30)
    for number, (first, second) in enumerate(zip(sequential, together, strict=True)):
        for before, one, other in zip(start[number], first.trained, second.trained, strict=True):
            assert torch.allclose(one, other, atol=1e-5) and not torch.allclose(before, one, atol=1e-3)
        for one, other in zip(first.targets, second.targets, strict=True):
            assert torch.allclose(one, other, atol=1e-5)
        assert first.updates == second.updates == 200
        assert first.metrics() == pytest.approx(second.metrics(), rel=1e-3)
    for mine, theirs in zip(sequential[agent].trained, own, strict=True):
        assert torch.allclose(mine, torch.tensor(theirs), atol=1e-5)


def test_one_agents_nan_stops_its_own_learning_in_a_stack_and_nobody_elses() -> None:
    algorithm, config = DQNConfig(hidden_sizes=[16]), LearnerConfig(batch_size=32)
    clean, poisoned = (Stack(learners(3, algorithm, config)) for _ in range(2))
    for number, several in enumerate(batches(20, 3)):
        clean.update(several)
        if number == 5:
            several[1]["observation"][3] = torch.nan
            before = [value.clone() for value in poisoned.updaters[1].trained]
        poisoned.update(several)
    for agent in (0, 2):
        for one, other in zip(clean.updaters[agent].trained, poisoned.updaters[agent].trained, strict=True):
            assert torch.equal(one, other)  # to the last bit
    assert all(torch.equal(one, other) for one, other in zip(before, poisoned.updaters[1].trained, strict=True))


# ------------------------------------------------------------------ acting


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("name", ["dqn", "iqn", "c51"])
def test_several_agents_act_as_their_networks_do_one_by_one(name: str, noisy: bool) -> None:
    rng, count, n = np.random.default_rng(0), 4, 7
    every = AnyAlgorithmConfig(hidden_sizes=[16, 16], dueling=True, noisy=noisy, v_min=0, v_max=5)
    algorithm = section_of(every, name)
    actors = [build(algorithm, LearnerConfig(), VECTOR).policy for _ in range(count)]
    networks = [actor.module[0].module for actor in actors]
    flats = [flatten_parameters(actor) for actor in actors]
    seen = [([rng.random((n, 6), np.float32)], rng.random((n, 3)) < 0.8) for _ in range(count)]
    for _, mask in seen:
        mask[:, 0] = True
    seeds = [[1, agent] for agent in range(count)]
    one_by_one = [greedy_policy(net, *own, seed) for net, own, seed in zip(networks, seen, seeds, strict=True)]
    shapes = [0, 0, 1, 0]  # agent 2 is of another kind: it has a pass of its own
    policies = AgentPolicies(networks, flats, shapes, seen, seeds)
    with torch.inference_mode():
        for _ in range(3):
            for policy, own, (action, values) in zip(one_by_one, seen, policies.act(seen), strict=True):
                expected_action, expected = policy(*own)
                assert np.array_equal(action, expected_action)
                np.testing.assert_allclose(values, expected, atol=1e-5)
        old = policies.act(seen)[0][1].copy()
        policies.weights[0].mul_(0.5)  # new weights reach the stack by the agent's own flat tensor
        assert not np.allclose(policies.act(seen)[0][1], old) and policies.weights[0].data_ptr() != flats[0].data_ptr()


def test_agents_with_large_passes_act_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, count, n = np.random.default_rng(0), 3, 7
    algorithm = section_of(AnyAlgorithmConfig(hidden_sizes=[16, 16]), "dqn")
    actors = [build(algorithm, LearnerConfig(), VECTOR).policy for _ in range(count)]
    networks = [actor.module[0].module for actor in actors]
    flats = [flatten_parameters(actor) for actor in actors]
    seen = [([rng.random((n, 6), np.float32)], None) for _ in range(count)]
    assert flop(networks[0], *seen[0]) == 2 * n * (6 * 16 + 16 * 16 + 16 * 3)  # a product and a sum each
    together = AgentPolicies(networks, flats, [0] * count, seen)
    monkeypatch.setattr(multi_agent, "LARGEST_STACKED_FLOP", 0)
    apart = AgentPolicies(networks, flats, [0] * count, seen)
    with torch.inference_mode():
        for (action, values), (expected_action, expected) in zip(apart.act(seen), together.act(seen), strict=True):
            assert np.array_equal(action, expected_action)
            np.testing.assert_allclose(values, expected, atol=1e-6)
        apart.weights[1].zero_()  # new weights reach an agent's network by the flat tensor that was given
        assert not apart.act(seen)[1][1].any() and apart.act(seen)[0][1].any()
