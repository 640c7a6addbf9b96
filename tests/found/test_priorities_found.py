"""Priorities that were in other units than the learner's, and importance weights that cancelled out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from benchmarks import parts
from trainer.algorithms import build
from trainer.config.algorithms import ALGORITHMS, AnyAlgorithmConfig, ValueConfig, section_of
from trainer.config.fields import ConfigError
from trainer.config.sections import LearnerConfig
from trainer.envs import BoxAction, DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict

SPEC = EnvSpec("test", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))
BOX = EnvSpec("test", SPEC.leaves, BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)))

# Sequential, and a learning rate that leaves the weights where they are: collector, learner and target act by the same.
FIXED = (
    "preset=cartpole", "schedule=sequential", "budget_frames=1500", "learner.learning_rate=1e-12",
    "algorithm.prioritized=true", "replay.initial_priority=collector", "collector.envs_per_worker=8",
    "algorithm.hidden_sizes=[32,32]", "learner.warmup_frames=500",
)  # fmt: skip


def first_and_own(*arguments: str) -> tuple[np.ndarray, np.ndarray]:
    """Of all new rows of a run: the priority that they get, and what the learner's loss gives them, float [n] each."""
    first, own = [], []
    with parts.opened(parts.config(*FIXED, *arguments)) as system:
        agent = system.learners.local[0]
        sampler: Any = agent.sampler
        given, transitions = sampler.first, agent.replay.storage

        def look(rows: np.ndarray) -> np.ndarray:
            priority = given(rows)
            starts = ~sampler._final[rows]
            memory, transitions.memory = transitions.memory, None
            batch = transitions.get(torch.from_numpy(rows))
            transitions.memory = memory
            with torch.no_grad():
                (part,) = agent.updater.algorithm.phases[0].parts
                first.append(priority[starts])
                own.append(part.evaluate(agent.updater.groups, batch).priority.numpy()[starts])
            return priority

        sampler.first = look
        parts.train(system)
    return np.concatenate(first), np.concatenate(own)


@pytest.mark.parametrize("algorithm", ["dqn", "apex", "qrdqn"])
@pytest.mark.parametrize("rescaling", ["false", "true"])
def test_1_8_first_priorities_are_what_the_learner_would_give(algorithm: str, rescaling: str) -> None:
    """Row by row, and so in the mean; of rescaled quantiles the mean within 15 %."""
    first, own = first_and_own(f"algorithm={algorithm}", f"algorithm.value_rescaling={rescaling}")
    assert len(first) > 1000 and own.mean() > 0.1  # CartPole pays 1 a step
    if (algorithm, rescaling) == ("qrdqn", "true"):
        assert first.mean() == pytest.approx(own.mean(), rel=0.15)
    else:
        assert np.allclose(first, own, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_1_8_an_algorithm_without_first_priorities_is_refused_in_a_sentence(algorithm: str) -> None:
    section = section_of(AnyAlgorithmConfig(), algorithm)
    spec = SPEC if ALGORITHMS[algorithm].actions == "numbered" else BOX
    gives = build(section, LearnerConfig(), spec).first_priority is not None
    words = [f"algorithm={algorithm}", "algorithm.prioritized=true", "replay.initial_priority=collector"]
    assert gives is (not ALGORITHMS[algorithm].no_first_priority)
    if gives:
        assert parts.config(*words).replay.initial_priority == "collector"
        return
    with pytest.raises(ConfigError, match=f"does not go with algorithm={algorithm}.*set replay.initial_priority=max$"):
        parts.config(*words)


def test_1_8_the_refusal_is_the_mains(run) -> None:
    ended = run("env.id=Hurting/Plain-v0", "algorithm=rainbow", "replay.initial_priority=collector")
    assert ended.code != 0 and "Traceback" not in ended.said
    assert ended.err.count("\n") == 1 and "set replay.initial_priority=max" in ended.err


def batch(weight: torch.Tensor | None, rows: slice = slice(None)) -> TensorDict:
    """Eight transitions, or some of them."""
    rng = torch.Generator().manual_seed(3)
    end = torch.rand(8, 1, generator=rng) < 0.3
    whole = {
        "action": torch.randint(3, (8,), generator=rng),
        "observation": torch.randn(8, 4, generator=rng),
        ("next", "observation"): torch.randn(8, 4, generator=rng),
        ("next", "reward"): torch.randn(8, 1, generator=rng),
        ("next", "terminated"): end,
        ("next", "done"): end,
    }
    if weight is not None:
        whole["priority_weight"] = weight
    own = {key: tensor[rows] for key, tensor in whole.items()}
    return to_tensordict(own, len(own["action"]))


def gradients(algorithm: Any, sample: TensorDict) -> list[torch.Tensor]:
    """Of the loss in every trained tensor; whatever is drawn is drawn alike."""
    torch.manual_seed(0)
    parameters = [p for p in algorithm.loss.value_network_params.values(True, True) if p.requires_grad]
    return list(torch.autograd.grad(algorithm.loss(sample)["loss"], parameters))


BY_VALUES = sorted(name for name, entry in ALGORITHMS.items() if issubclass(entry.section, ValueConfig))


@pytest.mark.parametrize("algorithm", BY_VALUES)
@pytest.mark.parametrize("loss_function", ["smooth_l1", "l2"])
def test_1_8_importance_weights_are_applied_as_published(algorithm: str, loss_function: str) -> None:
    """The gradient is `sum_i w_i g_i / B` of the rows' own gradients g_i (Schaul et al. 2016, algorithm 1, line 12).

    Halving all weights halves it, which `sum(w l) / sum(w)` would not.
    """
    config = section_of(AnyAlgorithmConfig(double=False, hidden_sizes=[8], loss_function=loss_function), algorithm)
    made = build(config, LearnerConfig(), SPEC)
    weight = torch.tensor([1.0, 0.5, 0.25, 0.1, 0.9, 0.0, 0.3, 0.7])
    found = gradients(made, batch(weight))
    half = gradients(made, batch(weight / 2))
    assert all(torch.allclose(h, f / 2, rtol=1e-4, atol=1e-6) for h, f in zip(half, found, strict=True))
    if algorithm == "iqn":  # its fractions are drawn for a whole batch: a batch of one row has others
        expected = by_hand_of_whole(made, weight)
    else:
        rows = [gradients(made, batch(None, slice(i, i + 1))) for i in range(8)]
        expected = [sum(w * g for w, g in zip(weight, own, strict=True)) / 8 for own in zip(*rows, strict=True)]
    assert max(g.abs().max().item() for g in found) > 1e-3
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def by_hand_of_whole(made: Any, weight: torch.Tensor) -> list[torch.Tensor]:
    """As the sum over rows, each of which has the weight 1 in a batch where all others have 0."""
    rows = [gradients(made, batch(torch.eye(8)[i])) for i in range(8)]  # already g_i / 8
    plain = gradients(made, batch(None))
    for whole, own in zip(plain, zip(*rows, strict=True), strict=True):
        assert torch.allclose(whole, sum(own), rtol=1e-4, atol=1e-6)  # the mean without weights
    return [sum(w * g for w, g in zip(weight, own, strict=True)) for own in zip(*rows, strict=True)]
