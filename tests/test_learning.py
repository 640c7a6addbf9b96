"""The learner against a plain PyTorch loop, in every way of running it; what must never happen to the weights.

The plain loop is TorchRL's loss, `torch.optim.Adam(fused=True)`, `clip_grad_norm_` and a copy to the target. It is
equalled bit for bit: the learner's rate is a float32 tensor, so the loop gets the same rounded number.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torchrl.objectives import HardUpdate, SoftUpdate

from trainer.algorithms import Algorithm, build
from trainer.config.algorithms import DQNConfig, section_of
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.host.resources import prepare_process
from trainer.learning.feed import Batch, to_tensordict
from trainer.learning.update import NotFinite, Updater
from trainer.run_folder import checkpoint

CPU = torch.device("cpu")
VECTOR = EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))
MIXED = EnvSpec(
    "mixed",
    (
        Leaf("observation.b", (2, 2), "float32", "vector", stack=2),
        Leaf("observation.a", (2,), "int64", "discrete", nvec=(3, 4)),
        Leaf("observation.c", (5,), "bool", "binary"),
    ),
    DiscreteAction(4, has_mask=True),
)
IMAGE = EnvSpec("image", (Leaf("observation", (36, 40), "uint8", "image", "hw", stack=4),), DiscreteAction(4))
SMALL_IMAGE = EnvSpec(
    "small",
    (
        Leaf("observation.image", (10, 10, 3), "uint8", "image", "hwc"),
        Leaf("observation.speed", (2,), "float32", "vector"),
    ),
    DiscreteAction(4),
)
BASE = DQNConfig(hidden_sizes=[24, 16], gamma=0.95, target_update_every_updates=7)
RATE = 2e-3
LEARNER = LearnerConfig(learning_rate=RATE, max_grad_norm=0.5, batch_size=32)

CASES = {
    "double": (VECTOR, BASE, LEARNER),
    "single": (VECTOR, replace(BASE, double=False), LEARNER),
    "l2, n-step, no clipping": (
        VECTOR,
        replace(BASE, loss_function="l2", n_step=3),
        replace(LEARNER, max_grad_norm=None),
    ),
    "masks, several leaves, n-step, soft": (MIXED, replace(BASE, n_step=3, target_tau=0.05), LEARNER),
    "masks, single": (MIXED, replace(BASE, double=False, activation="tanh"), LEARNER),
    "image": (IMAGE, replace(BASE, hidden_sizes=[32]), replace(LEARNER, batch_size=8)),
    "image, contiguous": (IMAGE, replace(BASE, n_step=3), replace(LEARNER, batch_size=8, channels_last=False)),
    "small image and numbers": (SMALL_IMAGE, BASE, replace(LEARNER, batch_size=8)),
}


def batches(spec: EnvSpec, size: int, n_step: int = 1, seed: int = 0) -> Iterator[Batch]:
    """Random batches [size, ...] of the form that the replay gives, for ever."""
    rng = np.random.default_rng(seed)

    def leaf(leaf: Leaf) -> np.ndarray:
        shape = (size, *leaf.seen_shape)
        if leaf.kind == "discrete":
            return (rng.random(shape) * np.reshape(leaf.nvec, leaf.shape)).astype(np.int64)
        if leaf.dtype == "float32":
            return rng.standard_normal(shape, np.float32)
        return rng.integers(0, 256 if leaf.dtype == "uint8" else 2, shape).astype(leaf.dtype)

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
        batch["next", "terminated"], batch["next", "truncated"] = ends < 0.1, ends > 0.9
        batch["next", "done"] = (ends < 0.1) | (ends > 0.9)
        if n_step > 1:
            batch["steps_to_next_obs"] = rng.integers(1, n_step + 1, (size, 1))
        yield {key: torch.from_numpy(array) for key, array in batch.items()}


def make_algorithm(spec: EnvSpec, algorithm: DQNConfig, learner: LearnerConfig, seed: int = 0) -> Algorithm:
    torch.manual_seed(seed)
    return build(algorithm, learner, spec)


def make_learner(
    spec: EnvSpec = VECTOR,
    algorithm: DQNConfig = BASE,
    learner: LearnerConfig = LEARNER,
    execution: str = "trace",
    seed: int = 0,
) -> Updater:
    learner = replace(learner, execution=execution)
    return Updater(make_algorithm(spec, algorithm, learner, seed), learner, CPU)


def state_of(learner: Updater) -> list[Tensor]:
    """Copies of weights, targets, both moments and step counts."""
    steps = [one.step for one in learner.of_groups for _ in one.weights]
    tensors = [*learner.trained, *learner.targets, *learner.first, *learner.second, *steps]
    return [tensor.clone() for tensor in tensors]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def plain_loop(
    spec: EnvSpec, config: DQNConfig, learner: LearnerConfig, updates: int, seed: int = 0
) -> tuple[list[Tensor], list[float]]:
    """The same updates as anybody would write them; what `state_of` returns, and the losses."""
    algorithm = make_algorithm(spec, config, learner)
    loss, target = algorithm.loss, algorithm.loss.target_value_network_params
    named = loss.value_network_params.items(True, True)
    keys, parameters = zip(*[(key, leaf) for key, leaf in named if isinstance(leaf, nn.Parameter)], strict=True)
    targets = [target.get(key) for key in keys]
    rate = torch.tensor(learner.learning_rate).item()
    optimizer = torch.optim.Adam(parameters, lr=rate, eps=learner.adam_eps, fused=True)
    losses = []
    for i, batch in zip(range(updates), batches(spec, learner.batch_size, config.n_step, seed), strict=False):
        value = loss(to_tensordict(batch, learner.batch_size))["loss"]
        optimizer.zero_grad()
        value.backward()
        if learner.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, learner.max_grad_norm)
        optimizer.step()
        for parameter, target in zip(parameters, targets, strict=True):
            if config.target_tau is not None:
                target.data.lerp_(parameter.data, config.target_tau)
            elif (i + 1) % config.target_update_every_updates == 0:
                target.data.copy_(parameter.data)
        losses.append(value.item())
    moments = [[optimizer.state[p][name] for p in parameters] for name in ("exp_avg", "exp_avg_sq", "step")]
    return [t.detach().clone() for t in [*parameters, *targets, *moments[0], *moments[1], *moments[2]]], losses


def learn(learner: Updater, source: Iterator[Batch], updates: int) -> None:
    for _ in range(updates):
        learner.update(next(source))


# ------------------------------------------------------------------ equality


@pytest.mark.parametrize("case", CASES)
def test_traced_and_eager_updates_equal_a_plain_loop(case):
    spec, algorithm, config = CASES[case]
    updates, states, means = 15 if "image" in case else 50, {}, {}
    for execution in ("eager", "trace"):
        learner = make_learner(spec, algorithm, config, execution)
        start = state_of(learner)
        learn(learner, batches(spec, config.batch_size, algorithm.n_step), updates)
        states[execution], means[execution] = state_of(learner), learner.metrics()
        assert not any(torch.equal(a, b) for a, b in zip(start, states[execution], strict=True) if a.numel() > 1)
    plain, losses = plain_loop(spec, algorithm, config, updates)
    assert same(states["eager"], states["trace"])
    assert same(states["eager"], plain)
    assert means["eager"] == means["trace"]
    assert means["eager"]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.slow  # each is compiled for 20 s or more where nothing is in torch's cache
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("dqn", "munchausen", "qrdqn", "c51", "iqn")),
        ("c51", {"noisy": True, "dueling": True, "double": True}),  # rainbow
    ],
)
def test_compiled_updates_are_eager_ones_but_for_rounding(name, options):
    config, states = replace(section_of(BASE, name), **options), {}
    with inductor.patch(fallback_random=True):  # the same noise and fractions as in eager mode
        for execution in ("eager", "compile"):
            learner = replace(LEARNER, execution=execution)
            torch.manual_seed(0)
            made = Updater(build(config, learner, MIXED), learner, CPU)
            made.prepare(next(batches(MIXED, learner.batch_size)))  # which takes random numbers
            torch.manual_seed(1)
            learn(made, batches(MIXED, learner.batch_size), 5)
            states[execution] = made.trained
    for eager, compiled in zip(states["eager"], states["compile"], strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ target


def test_soft_updates_are_torchrls():
    config = replace(BASE, target_tau=0.01)
    learner = make_learner(VECTOR, config)
    twin = make_algorithm(VECTOR, config, LEARNER)
    updater = SoftUpdate(twin.loss, tau=0.01)
    source, theirs = twin.loss.value_network_params.data, twin.loss.target_value_network_params
    for _, batch in zip(range(10), batches(VECTOR, 32), strict=False):
        learner.update(batch)
        source.update_(learner.weights)
        updater.step()
    # lerp_(1 - (1 - tau)) of TorchRL and lerp_(tau) differ in the last bit of the weight.
    for key, target in zip(learner.of_groups[0].keys, learner.targets, strict=True):
        assert torch.allclose(target, theirs.get(key), rtol=1e-6, atol=1e-7)
    assert not torch.equal(target, source.get(key))


def test_hard_updates_come_after_every_kth_update():
    learner = make_learner(VECTOR, replace(BASE, target_update_every_updates=4))
    copied = []
    for i, batch in zip(range(1, 14), batches(VECTOR, 32), strict=False):
        learner.update(batch)
        if same(learner.targets, learner.trained):
            copied.append(i)
    assert copied == [4, 8, 12]


def test_torchrls_hard_update_copies_one_step_later_than_its_interval_says():
    """Its counter is compared before it is raised: `value_network_update_interval=k` copies every k + 1 steps.

    So settings taken over from TorchRL's recipes correspond to `target_update_every_updates=k + 1` here.
    """
    loss = make_algorithm(VECTOR, BASE, LEARNER).loss
    updater, copied = HardUpdate(loss, value_network_update_interval=4), []
    source, target = loss.value_network_params.data, loss.target_value_network_params
    for step in range(1, 17):
        source.apply_(lambda x: x.add_(1))
        updater.step()
        if all(torch.equal(target.get(key), value) for key, value in source.items(True, True)):
            copied.append(step)
    assert copied == [5, 10, 15]


# ------------------------------------------------------------------ what must not happen


@pytest.mark.parametrize("execution", ["eager", "trace"])
@pytest.mark.parametrize(("key", "value"), [(("next", "reward"), torch.nan), ("observation", torch.inf)])
def test_not_finite_leaves_the_weights_before_it_and_says_so_in_one_sentence(execution, key, value):
    learner, source = make_learner(execution=execution), batches(VECTOR, 32)
    learn(learner, source, 6)  # the next one is due to copy the target
    before, count = state_of(learner), len(learner.trained)
    poisoned = next(source)
    poisoned[key][3] = value
    learner.update(poisoned)
    learn(learner, source, 20)  # good batches that came before anybody looked
    after = state_of(learner)
    assert same(after[:count], before[:count])  # weights
    assert same(after[2 * count : 4 * count], before[2 * count : 4 * count])  # moments
    assert all(torch.isfinite(tensor).all() for tensor in after)
    for look in (learner.check, learner.metrics):
        with pytest.raises(
            NotFinite, match="NaN or infinite .* before update 27; lower learner.learning_rate"
        ) as caught:
            look()
        assert "\n" not in str(caught.value) and ". " not in str(caught.value)


@pytest.mark.parametrize("case", ["masks, several leaves, n-step, soft", "image"])
def test_a_checkpoint_continues_bit_for_bit(case, tmp_path):
    spec, algorithm, config = CASES[case]
    source = batches(spec, config.batch_size, algorithm.n_step)
    one = make_learner(spec, algorithm, config)
    learn(one, source, 10)
    one.set_learning_rate(5e-4)
    state = one.state_dict()
    path = checkpoint.save(tmp_path, {"learner": state}, frames=10, keep_last=1)
    rest = [next(source) for _ in range(10)]
    learn(one, iter(copy.deepcopy(rest)), 10)
    used = make_learner(spec, algorithm, config, seed=1)
    learn(used, batches(spec, config.batch_size, algorithm.n_step, seed=5), 4)  # recorded already: written in place
    fresh, in_memory = make_learner(spec, algorithm, config, seed=2), make_learner(spec, algorithm, config, seed=3)
    for learner, saved in (
        (used, checkpoint.load(path)["learner"]),
        (fresh, checkpoint.load(path)["learner"]),
        (in_memory, state),
    ):
        learner.load_state_dict(saved)
        assert learner.updates == 10
        learn(learner, iter(copy.deepcopy(rest)), 10)
        assert same(state_of(learner), state_of(one)) and learner.updates == 20


def test_moments_of_a_unit_that_sleeps_end_at_zero_and_not_among_denormals():
    """A thousand steps without a gradient; 0.9 times four of the smallest denormals, 1.4e-45, is rounded to four."""
    learner = make_learner(*CASES["double"])
    nothing = [torch.zeros_like(parameter) for parameter in learner.trained]
    moments = [state["exp_avg"] for state in learner.optimizer.state.values()]
    try:
        for prepare, rest in ((lambda: torch.set_flush_denormal(False), 4 * 2.0**-149), (prepare_process, 0.0)):
            prepare()
            for moment in moments:
                moment.fill_(1e-6)
            for _ in range(1000):
                learner.optimize(learner.parts[0], nothing)
                learner.conclude()
            torch.set_flush_denormal(False)  # else it would compare equal to 0
            assert all((moment == rest).all() for moment in moments)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("execution", ["eager", "trace"])
def test_a_new_learning_rate_takes_effect_with_the_next_update(execution):
    learner, source = (
        make_learner(execution=execution, algorithm=replace(BASE, target_update_every_updates=99)),
        batches(VECTOR, 32),
    )
    learn(learner, source, 3)
    before = [w.clone() for w in learner.trained]
    learner.set_learning_rate(0.0)
    learn(learner, source, 2)
    assert same(learner.trained, before)
    learner.set_learning_rate(1.0)
    learn(learner, source, 1)
    # One step of Adam moves a weight by up to about the learning rate.
    assert 0.3 < max((w - b).abs().max().item() for w, b in zip(learner.trained, before, strict=True)) < 3


@pytest.mark.parametrize("case", ["double", "masks, several leaves, n-step, soft", "image"])
def test_bfloat16_is_recorded_as_it_runs_and_stays_near_float32(case):
    spec, algorithm, config = CASES[case]
    figures, states = {}, {}
    for precision, execution in (("float32", "trace"), ("bfloat16", "trace"), ("bfloat16", "eager")):
        learner = make_learner(spec, algorithm, replace(config, precision=precision), execution)
        learn(learner, batches(spec, config.batch_size, algorithm.n_step), 10)
        figures[precision, execution], states[precision, execution] = learner.metrics(), state_of(learner)
    assert same(states["bfloat16", "trace"], states["bfloat16", "eager"])
    assert not same(states["bfloat16", "trace"], states["float32", "trace"])
    assert {tensor.dtype for tensor in states["bfloat16", "trace"]} == {torch.float32}
    for name in ("loss", "grad_norm"):  # 8 bits of mantissa
        assert figures["bfloat16", "trace"][name] == pytest.approx(figures["float32", "trace"][name], rel=0.03)


# ------------------------------------------------------------------ figures, groups, feeding


def test_metrics_are_means_since_the_last_look():
    learner, source = make_learner(), batches(VECTOR, 32)
    assert learner.metrics() == {}
    single, rows = make_learner(), []
    for _, batch in zip(range(6), source, strict=False):
        learner.update(batch)
        single.update(batch)
        rows.append(single.metrics())
    means = learner.metrics()
    assert set(means) == {"loss", "td_error", "grad_norm"}
    for name, mean in means.items():
        assert mean == pytest.approx(np.mean([row[name] for row in rows]), rel=1e-5)
    assert learner.metrics() == {}


def test_trained_and_target_groups_hold_the_same_keys():
    learner = make_learner(MIXED)
    assert set(learner.groups) == {"value_network_params", "target_value_network_params"}
    assert len(learner.trained) == len(learner.targets) == 6  # three linear layers; the one-hot's offsets are constants
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(learner.trained, learner.targets, strict=True))
    assert same(learner.trained, learner.targets)
