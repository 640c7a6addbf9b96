"""Every algorithm with every kind of network and observation: recorded as it runs, and it learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer.algorithms import build
from trainer.config.algorithms import ALGORITHMS, AnyAlgorithmConfig, ValueConfig, section_of
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import Batch
from trainer.learning.update import Updater

CPU = torch.device("cpu")
SPECS = {
    "vector": EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3)),
    "mask": EnvSpec(
        "mask",
        (
            Leaf("observation.a", (3,), "float32", "vector"),
            Leaf("observation.b", (2,), "int64", "discrete", nvec=(3, 2)),
        ),
        DiscreteAction(4, has_mask=True),
    ),
    "image": EnvSpec("image", (Leaf("observation", (6, 6, 2), "uint8", "image", "hwc"),), DiscreteAction(3)),
}
BASE = AnyAlgorithmConfig(
    hidden_sizes=[12, 8], gamma=0.9, target_update_every_updates=2, num_atoms=11, num_quantiles=6, num_fractions=4,
    num_acting_fractions=4, fraction_cosines=8,
)  # fmt: skip
OPTIONS = {"plain": {}, "full": {"dueling": True, "noisy": True, "value_rescaling": True}}
# One name for each builder: rainbow and apex are c51's and dqn's, so that their options are covered by theirs. Those
# with an actor have a file of their own.
FAMILY = [name for name, entry in ALGORITHMS.items() if issubclass(entry.section, ValueConfig)]
NAMES = [name for i, name in enumerate(FAMILY) if ALGORITHMS[name] not in [ALGORITHMS[one] for one in FAMILY[:i]]]
LEARNER = LearnerConfig(learning_rate=2e-3, batch_size=16, max_grad_norm=1.0)


def is_random(name: str, options: str) -> bool:
    return name == "iqn" or options == "full"


def batches(spec: EnvSpec, size: int, n_step: int = 3, seed: int = 0) -> Iterator[Batch]:
    """Random batches [size, ...] of the form that a prioritized replay gives, for ever."""
    rng = np.random.default_rng(seed)

    def leaf(leaf: Leaf) -> np.ndarray:
        shape = (size, *leaf.seen_shape)
        if leaf.kind == "discrete":
            return (rng.random(shape) * np.reshape(leaf.nvec, leaf.shape)).astype(np.int64)
        return (
            rng.standard_normal(shape, np.float32) if leaf.dtype == "float32" else rng.integers(0, 256, shape, np.uint8)
        )

    def mask(legal: np.ndarray) -> np.ndarray:
        made = rng.random((size, spec.num_actions)) < 0.5
        made[np.arange(size), legal] = True
        return made

    while True:
        action = rng.integers(0, spec.num_actions, size)
        batch: dict[Any, np.ndarray] = {"action": action}
        if spec.action.has_mask:
            batch["action_mask"], batch["next", "action_mask"] = mask(action), mask(rng.permutation(action))
        for one in spec.leaves:
            batch[one.name], batch["next", one.name] = leaf(one), leaf(one)
        ends = rng.random((size, 1))
        batch["next", "reward"] = rng.standard_normal((size, 1), np.float32)
        batch["next", "terminated"], batch["next", "truncated"] = ends < 0.2, ends > 0.9
        batch["next", "done"] = (ends < 0.2) | (ends > 0.9)
        batch["steps_to_next_obs"] = rng.integers(1, n_step + 1, (size, 1))
        batch["priority_weight"] = rng.random(size, np.float32)
        yield {key: torch.from_numpy(array) for key, array in batch.items()}


def make_learner(
    name: str, spec: EnvSpec, execution: str, seed: int = 0, learner: LearnerConfig = LEARNER, **changes: Any
) -> Updater:
    torch.manual_seed(seed)
    algorithm, learner = section_of(replace(BASE, **changes), name), replace(learner, execution=execution)
    return Updater(build(algorithm, learner, spec), learner, CPU)


# ------------------------------------------------------------------ recording


def test_every_name_is_covered():
    assert all(ALGORITHMS[name] in [ALGORITHMS[one] for one in NAMES] for name in FAMILY)
    assert set(NAMES) <= set(ALGORITHMS) and set(NAMES) >= {"dqn", "c51", "qrdqn", "iqn", "munchausen"}


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ("plain", "vector"),
        ("plain", "mask"),
        ("plain", "image"),
        ("full", "vector"),
        pytest.param("full", "mask", marks=pytest.mark.slow),
        pytest.param("full", "image", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_eager_and_traced_updates_agree(name, options, spec):
    """Five of each: the same weights and priorities, bit for bit where nothing is drawn; all of them finite.

    Noise and fractions are drawn in the same order, so that one seed gives one result there too.
    """
    found: dict[str, list[Tensor]] = {}
    for execution in ("eager", "trace"):
        learner = make_learner(name, SPECS[spec], execution, **OPTIONS[options])
        start = [w.clone() for w in learner.trained]
        source = batches(SPECS[spec], 16)
        learner.prepare(next(source))  # draws too
        torch.manual_seed(11)
        priorities = [learner.update(next(source)) for _ in range(5)]
        figures = learner.metrics()  # raises NotFinite
        assert set(figures) == {"loss", "td_error", "grad_norm"} and all(map(np.isfinite, figures.values()))
        for priority in priorities:
            assert priority.dtype == torch.float32 and priority.shape == (16,)
            assert torch.isfinite(priority).all() and (priority >= 0).all() and not priority.requires_grad
        assert all(torch.isfinite(w).all() for w in learner.trained)
        moved = [not torch.equal(a, b) for a, b in zip(start, learner.trained, strict=True)]
        assert all(moved), f"{moved.count(False)} of {len(moved)} tensors were never trained"
        found[execution] = [*learner.trained, *learner.targets, *priorities, torch.tensor(list(figures.values()))]
    for a, b in zip(found["eager"], found["trace"], strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6) if is_random(name, options) else torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, {"noisy": True}) for name in ("dqn", "c51", "qrdqn", "iqn", "munchausen")] + [("iqn", {})],
)
def test_what_is_drawn_is_drawn_anew_for_each_recorded_update(name, changes):
    """A learning rate of 0 keeps the weights, and the batch is the same: only noise or fractions can differ."""
    learner = make_learner(name, SPECS["vector"], "trace", learner=replace(LEARNER, learning_rate=0.0), **changes)
    batch, before = next(batches(SPECS["vector"], 16)), [w.clone() for w in learner.trained]
    learner.prepare(batch)  # draws too
    torch.manual_seed(7)
    first, second, third = (learner.update(batch) for _ in range(3))
    assert all(torch.equal(a, b) for a, b in zip(before, learner.trained, strict=True))
    for one, other in ((first, second), (second, third)):
        assert not torch.allclose(one, other, rtol=1e-3)
    torch.manual_seed(7)
    again = learner.update(batch)
    assert torch.equal(again, first)  # and it follows torch's seed


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn", "munchausen"])
def test_nothing_else_is_random(name):
    learner = make_learner(name, SPECS["vector"], "trace", learner=replace(LEARNER, learning_rate=0.0), dueling=True)
    batch = next(batches(SPECS["vector"], 16))
    assert torch.equal(learner.update(batch), learner.update(batch))


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_stays_near_float32(name):
    figures = {}
    for precision in ("float32", "bfloat16"):
        learner = make_learner(name, SPECS["vector"], "trace", learner=replace(LEARNER, precision=precision))
        source = batches(SPECS["vector"], 16)
        learner.prepare(next(source))  # draws too
        torch.manual_seed(11)
        priorities = [learner.update(next(source)) for _ in range(5)]
        assert all(priority.dtype == torch.float32 and torch.isfinite(priority).all() for priority in priorities)
        figures[precision] = learner.metrics()
    for figure in ("loss", "td_error"):  # 8 bits of mantissa
        assert figures["bfloat16"][figure] == pytest.approx(figures["float32"][figure], rel=0.05)


# ------------------------------------------------------------------ learning


@torch.no_grad()
def greedy_values(learner: Updater, seen: Tensor) -> Tensor:
    """By the mean weights; the loss shares the network, so it must be left in training mode."""
    network = learner.algorithm.network.eval()
    values = network(seen)
    network.train()
    return values


def bandit(size: int, seed: int) -> Iterator[Batch]:
    """Three numbers are seen, one of them about 1 higher; a reward of 1 for its place, and the episode ends."""
    rng = np.random.default_rng(seed)
    ended = np.ones((size, 1), bool)
    while True:
        seen = rng.uniform(0, 0.5, (size, 3)).astype(np.float32)
        seen[np.arange(size), rng.integers(0, 3, size)] += 1
        action = rng.integers(0, 3, size)
        batch: dict[Any, np.ndarray] = {
            "action": action,
            "observation": seen,
            ("next", "observation"): seen,
            ("next", "reward"): (action == seen.argmax(1)).astype(np.float32)[:, None],
            ("next", "terminated"): ended,
            ("next", "truncated"): ~ended,
            ("next", "done"): ended,
        }
        yield {key: torch.from_numpy(array) for key, array in batch.items()}


BANDIT = EnvSpec("bandit", (Leaf("observation", (3,), "float32", "vector"),), DiscreteAction(3))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_learns_a_bandit(name, options):
    settings = replace(LEARNER, learning_rate=5e-3, batch_size=64, max_grad_norm=10.0)
    changes = {**OPTIONS[options], "v_min": -2.0, "v_max": 2.0, "hidden_sizes": [32, 32], "num_atoms": 21}
    learner, source = make_learner(name, BANDIT, "trace", learner=settings, **changes), bandit(64, seed=0)
    seen = next(bandit(1000, seed=1))["observation"]

    def accuracy() -> float:
        return (greedy_values(learner, seen).argmax(-1) == seen.argmax(-1)).float().mean().item()

    before = accuracy()
    for _ in range(300):
        learner.update(next(source))
    learner.check()
    assert accuracy() > 0.95 > before


def chain(size: int, seed: int) -> Iterator[Batch]:
    """Places 0 .. 3 in a row as one-hot; action 1 goes right, 0 left; going right from 3 pays 1 and ends."""
    rng = np.random.default_rng(seed)
    places = np.eye(4, dtype=np.float32)
    while True:
        place, action = rng.integers(0, 4, size), rng.integers(0, 2, size)
        ended = ((place == 3) & (action == 1))[:, None]
        batch: dict[Any, np.ndarray] = {
            "action": action,
            "observation": places[place],
            ("next", "observation"): places[np.clip(place + 2 * action - 1, 0, 3)],
            ("next", "reward"): ended.astype(np.float32),
            ("next", "terminated"): ended,
            ("next", "truncated"): np.zeros_like(ended),
            ("next", "done"): ended,
        }
        yield {key: torch.from_numpy(array) for key, array in batch.items()}


@pytest.mark.parametrize(
    ("name", "value_rescaling"), [("dqn", False), ("dqn", True), ("c51", True), ("qrdqn", True), ("iqn", False)]
)
def test_values_of_a_chain_are_discounted_returns(name, value_rescaling):
    """At gamma = 1/2 going right is worth 1/8, 1/4, 1/2, 1, and going left half of what the place to the left is."""
    spec = EnvSpec("chain", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(2))
    settings = replace(LEARNER, learning_rate=1e-2, batch_size=64, max_grad_norm=10.0)
    changes = {
        "gamma": 0.5, "v_min": -0.5, "v_max": 1.5, "hidden_sizes": [32], "num_atoms": 21,
        "target_update_every_updates": 10, "loss_function": "l2", "value_rescaling": value_rescaling,
    }  # fmt: skip
    learner, source = make_learner(name, spec, "trace", learner=settings, **changes), chain(64, seed=0)
    for _ in range(300):
        learner.update(next(source))
    values = greedy_values(learner, torch.eye(4))
    returns = np.array([[1 / 16, 1 / 8], [1 / 16, 1 / 4], [1 / 8, 1 / 2], [1 / 4, 1]])
    expected = np.sqrt(returns + 1) - 1 + returns / 1000 if value_rescaling else returns
    assert np.allclose(values, expected, atol=0.05)
