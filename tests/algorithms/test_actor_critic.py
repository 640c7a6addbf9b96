"""Every algorithm with an actor: recorded as it runs, with the learner's noise; and it learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.acting.policies import greedy_policy
from trainer.algorithms import build
from trainer.algorithms.actor_critic import ActorCriticLoss
from trainer.algorithms.targets import best
from trainer.config.algorithms import ALGORITHMS, ActorCriticConfig, AnyAlgorithmConfig, section_of
from trainer.config.sections import LearnerConfig
from trainer.envs import BoxAction, DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import Batch
from trainer.learning.update import Updater

FAMILY = [name for name, entry in ALGORITHMS.items() if issubclass(entry.section, ActorCriticConfig)]
# One name for each builder: the options of the others are covered by theirs.
NAMES = [name for i, name in enumerate(FAMILY) if ALGORITHMS[name] not in [ALGORITHMS[one] for one in FAMILY[:i]]]
QUICK = [pytest.param(name, marks=pytest.mark.slow if name in ("crossq", "tqc") else ()) for name in NAMES]
VECTOR = Leaf("observation", (3,), "float32", "vector")
IMAGE = Leaf("observation", (6, 6, 2), "uint8", "image", "hwc")
BOX, NUMBERS = BoxAction((2, 1), (-2.0, 0.0), (2.0, 4.0)), DiscreteAction(4, has_mask=True)
LEARNER = LearnerConfig(learning_rate=3e-3, batch_size=32, max_grad_norm=None)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ensemble": {"num_critics": 4, "critics_in_target": 2, "actor_value": "mean", "actor_every_updates": 2},
    "dropout": {"critic_dropout": 0.3, "critic_layer_norm": True, "critics_in_target": 1},
    "fixed": {"learn_temperature": False, "temperature": 0.2, "actor_learning_rate": 1e-4},
}
BASE = AnyAlgorithmConfig(
    hidden_sizes=[24, 16], gamma=0.9, target_tau=0.05, critic_quantiles=5, dropped_quantiles=1, renorm_warmup_updates=2
)


def spec_of(name: str, leaf: Leaf = VECTOR) -> EnvSpec:
    return EnvSpec("made", (leaf,), BOX if ALGORITHMS[name].actions == "box" else NUMBERS)


def batches(spec: EnvSpec, size: int, seed: int = 0) -> Iterator[Batch]:
    """Random batches of the form that a prioritized replay gives, for ever."""
    rng = np.random.default_rng(seed)
    leaf = spec.leaves[0]

    def seen() -> np.ndarray:
        shape = (size, *leaf.shape)
        return rng.integers(0, 256, shape, np.uint8) if leaf.kind == "image" else rng.standard_normal(shape, np.float32)

    while True:
        ends = rng.random((size, 1))
        batch: dict[Any, np.ndarray] = {"action": spec.action.random(rng, size, None), "observation": seen()}
        if isinstance(spec.action, DiscreteAction):
            for key in ("action_mask", ("next", "action_mask")):
                batch[key] = rng.random((size, spec.action.n)) < 0.5
                batch[key][np.arange(size), batch["action"]] = True
        batch["next", "observation"] = seen()
        batch["next", "reward"] = rng.standard_normal((size, 1), np.float32)
        batch["next", "terminated"], batch["next", "truncated"] = ends < 0.2, ends > 0.9
        batch["next", "done"] = (ends < 0.2) | (ends > 0.9)
        batch["priority_weight"] = rng.random(size, np.float32)
        yield {key: torch.from_numpy(array) for key, array in batch.items()}


def made(name: str, spec: EnvSpec, execution: str, learner: LearnerConfig = LEARNER, **changes: Any) -> Updater:
    torch.manual_seed(0)
    section, learner = section_of(replace(BASE, **changes), name), replace(learner, execution=execution)
    return Updater(build(section, learner, spec), learner, torch.device("cpu"), seed=4)


@pytest.mark.parametrize(
    ("name", "options", "leaf"),
    [
        *((name, "plain", VECTOR) for name in NAMES),
        *((name, "plain", IMAGE) for name in ("sac", "sac_discrete")),
        *((name, "ensemble", VECTOR) for name in ("sac", "crossq")),
        *(("sac", options, VECTOR) for options in ("fixed", "dropout")),
    ],
)
def test_eager_and_traced_updates_agree(name: str, options: str, leaf: Leaf) -> None:
    """Five of each, bit for bit, at weights that differ from those of the recording; every tensor is trained."""
    found: dict[str, list[Tensor]] = {}
    for execution in ("eager", "trace"):
        learner = made(name, spec_of(name, leaf), execution, **OPTIONS[options])
        start = [weight.clone() for weight in learner.trained]
        source = batches(spec_of(name, leaf), 32)
        learner.prepare(next(source))
        assert all(torch.equal(a, b) for a, b in zip(start, learner.trained, strict=True))
        priorities = [learner.update(next(source)) for _ in range(5)]
        metrics = learner.metrics()  # raises NotFinite
        assert {"loss", "td_error", "grad_norm", "actor_loss", "actor_grad_norm"} <= set(metrics)
        assert all(map(np.isfinite, metrics.values()))
        assert all(p.shape == (32,) and p.dtype == torch.float32 and (p >= 0).all() for p in priorities)
        moved = [not torch.equal(a, b) for a, b in zip(start, learner.trained, strict=True)]
        assert all(moved), f"{moved.count(False)} of {len(moved)} tensors were never trained"
        shown = learner.algorithm.diagnose(learner.last_batch or {})
        assert all(map(np.isfinite, shown.values()))
        found[execution] = [*learner.trained, *learner.targets, *priorities, torch.tensor(list(metrics.values()))]
    assert all(torch.equal(a, b) for a, b in zip(found["eager"], found["trace"], strict=True))


@pytest.mark.parametrize("name", QUICK)
def test_updates_draw_from_a_generator_that_nothing_else_uses(name: str) -> None:
    """What others draw from torch's global generator changes nothing; a checkpoint has the state of the noise."""
    one, other = (made(name, spec_of(name), "trace") for _ in range(2))
    for number, batch in zip(range(3), batches(spec_of(name), 32), strict=False):
        one.update(batch)
        torch.randn(number + 1)
        other.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(one.trained, other.trained, strict=True))
    third = made(name, spec_of(name), "trace")
    third.load_state_dict(one.state_dict())
    batch = next(batches(spec_of(name), 32, seed=9))
    one.update(batch)
    third.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(one.trained, third.trained, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_critics_value_the_actions_of_an_evaluation(name: str) -> None:
    """The mean over greedy actions is the diagnostics' `q_mean`."""
    learner, batch = made(name, spec_of(name), "eager"), next(batches(spec_of(name), 32))
    learner.update(batch)
    loss, values = cast(ActorCriticLoss, learner.algorithm.loss), learner.algorithm.action_values
    seen = {"observation": batch["observation"]}
    action = loss.actor(learner.weights, TensorDict(seen, [32]), "forward")
    if ALGORITHMS[name].actions != "box":
        action = best(action, batch["action_mask"])
    assert values is not None
    q = values.of(learner.groups[values.group], {**seen, "action": action})
    assert q.shape == (32,)
    assert q.mean().item() == pytest.approx(learner.algorithm.diagnose(batch)["q_mean"], abs=1e-6)


def bandit(spec: EnvSpec, size: int) -> Iterator[Batch]:
    """The reward is 1 less the squared distance of a scaled action from a third of the first number; 1 for action 2."""
    rng = np.random.default_rng(0)
    ended = np.ones((size, 1), bool)
    while True:
        seen = rng.uniform(-1, 1, (size, 3)).astype(np.float32)
        action = spec.action.random(rng, size, None)
        if isinstance(spec.action, BoxAction):
            scaled = np.stack([action[:, 0, 0] / 2, action[:, 1, 0] / 2 - 1], 1)
            reward = 1 - np.square(scaled - seen[:, :1] / 3).sum(1, keepdims=True)
        else:
            reward = (action == 2)[:, None]
        batch: dict[Any, np.ndarray] = {"action": action, "observation": seen, ("next", "observation"): seen}
        if isinstance(spec.action, DiscreteAction):
            batch["action_mask"] = batch["next", "action_mask"] = np.ones((size, 4), bool)
        batch |= {("next", "reward"): reward.astype(np.float32), ("next", "terminated"): ended}
        batch |= {("next", "truncated"): ~ended, ("next", "done"): ended}
        yield {key: torch.from_numpy(array) for key, array in batch.items()}


@pytest.mark.parametrize("name", QUICK)
def test_every_algorithm_learns_a_bandit(name: str) -> None:
    changes = {"hidden_sizes": [32, 32], "temperature": 0.05, "learn_temperature": False, "actor_every_updates": 1}
    spec, settings = spec_of(name), replace(LEARNER, batch_size=64, learning_rate=5e-3)
    learner, source = made(name, spec, "trace", learner=settings, num_critics=2, **changes), bandit(spec_of(name), 64)
    for _ in range(600):
        learner.update(next(source))
    learner.check()
    seen = np.linspace(-1, 1, 50, dtype=np.float32)[:, None].repeat(3, 1)
    mask = np.ones((50, 4), bool) if isinstance(spec.action, DiscreteAction) else None
    with torch.inference_mode():
        action, _ = greedy_policy(learner.algorithm.network, [seen], mask, None, learner.algorithm.acting)([seen], mask)
    if isinstance(spec.action, DiscreteAction):
        assert (action == 2).all()
    else:
        scaled = np.stack([action[:, 0, 0] / 2, action[:, 1, 0] / 2 - 1], 1)
        assert np.abs(scaled - seen[:, :1] / 3).mean() < 0.1


def test_a_gaussian_policy_explores_within_the_bounds_by_its_noise() -> None:
    """The bounds are -2 .. 2 and 0 .. 4; without a seed the action is the middle of what is drawn."""
    algorithm = build(section_of(BASE, "sac"), LEARNER, spec_of("sac"))
    seen = [np.zeros((4_000, 3), np.float32)]
    with torch.inference_mode():
        greedy = greedy_policy(algorithm.network, seen, None, None, algorithm.acting)(seen, None)[0]
        drawn = greedy_policy(algorithm.network, seen, None, 3, algorithm.acting)(seen, None)[0]
    assert greedy.shape == drawn.shape == (4_000, 2, 1) and (greedy == greedy[0]).all()
    low, high = np.float32([[-2], [0]]), np.float32([[2], [4]])
    assert (drawn >= low).all() and (drawn <= high).all() and drawn.std(0).min() > 0.5
    assert np.abs(np.median(drawn, 0) - greedy[0]).max() < 0.1


def test_a_categorical_policy_draws_by_its_logits() -> None:
    """Logits ln 1, ln 2, ln 5 and one that is illegal: shares of 1/8, 2/8, 5/8."""
    algorithm = build(section_of(BASE, "sac_discrete"), LEARNER, spec_of("sac_discrete"))
    network: Any = algorithm.network
    network.head.weight.data.zero_()
    network.head.bias.data.copy_(torch.tensor([1.0, 2, 5, 100]).log())
    seen, mask = [np.zeros((20_000, 3), np.float32)], np.tile([True, True, True, False], (20_000, 1))
    with torch.inference_mode():
        drawn = greedy_policy(network, seen, mask, 3, algorithm.acting)(seen, mask)[0]
        assert (greedy_policy(network, seen, mask, None, algorithm.acting)(seen, mask)[0] == 2).all()
    assert np.bincount(drawn, minlength=4) / 20_000 == pytest.approx([1 / 8, 2 / 8, 5 / 8, 0], abs=0.015)
