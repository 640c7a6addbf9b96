"""Munchausen-DQN's target against numbers worked out by hand and a slow loop.

With temperature 1 and values (0, ln 3) the policy is (1/4, 3/4). Their soft value sum pi (Q - t ln pi) is the logarithm
of the sum of exponentials, as it always is: `t ln sum_a exp(Q(a) / t)` = ln 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import Algorithm, build
from trainer.algorithms.munchausen import scaled_log_policy, soft_target
from trainer.config.algorithms import MunchausenConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
LN3, LN4 = math.log(3), math.log(4)
NOW, FOLLOWING = torch.tensor([[0.0, LN3]]), torch.tensor([[LN3, 0.0]])


def config(**changes: Any) -> MunchausenConfig:
    soft = {"munchausen_temperature": 1.0, "munchausen_alpha": 0.5, "munchausen_clip": -5.0}
    return MunchausenConfig(**{"gamma": 0.5, "hidden_sizes": [], **soft, **changes})


def one_row(action: int = 0, reward: float = 1.0, terminated: bool = False, **more: Tensor) -> TensorDict:
    end = torch.tensor([[terminated]])
    batch: dict[Any, Tensor] = {
        "action": torch.tensor([action]),
        "observation": torch.ones(1, 2),
        ("next", "observation"): torch.ones(1, 2),
        ("next", "reward"): torch.tensor([[reward]]),
        ("next", "terminated"): end,
        ("next", "done"): end,
        **more,
    }
    return to_tensordict(batch, 1)


def target(batch: TensorDict, now: Tensor = NOW, following: Tensor = FOLLOWING, **changes: Any) -> float:
    return soft_target(now, following, batch, config(**changes)).item()


# ------------------------------------------------------------------ by hand


def test_the_scaled_log_policy():
    """Of (0, ln 3) at t = 1 ln 1/4 and ln 3/4; of twice the values at t = 2 the same policy, twice as much."""
    assert scaled_log_policy(NOW, None, 1.0)[0].tolist() == pytest.approx([-LN4, LN3 - LN4])
    assert scaled_log_policy(2 * NOW, None, 2.0)[0].tolist() == pytest.approx([-2 * LN4, 2 * (LN3 - LN4)])
    masked = scaled_log_policy(torch.tensor([[0.0, LN3, 99]]), torch.tensor([[True, True, False]]), 1.0)
    assert masked[0].tolist() == pytest.approx([-LN4, LN3 - LN4, -math.inf])


@pytest.mark.parametrize(("action", "log_policy"), [(0, -LN4), (1, LN3 - LN4)])
def test_the_target_by_hand(action, log_policy):
    """1 + 0.5 ln pi(a|s) + 0.5 ln 4."""
    assert target(one_row(action)) == pytest.approx(1 + 0.5 * log_policy + 0.5 * LN4, rel=1e-5)


def test_the_policy_of_the_temperature():
    """At t = 2: pi of (0, 2 ln 3) is (1/4, 3/4) again, and the soft value 2 ln 4."""
    value = target(one_row(), 2 * NOW, 2 * FOLLOWING, munchausen_temperature=2.0)
    assert value == pytest.approx(1 - 0.5 * 2 * LN4 + 0.5 * 2 * LN4, rel=1e-5)


def test_the_log_policy_is_clipped():
    """Of the two, ln 1/4 = -1.386 is below -1, ln 3/4 = -0.288 is not; with a clip of 0 nothing is left of it."""
    assert target(one_row(0), munchausen_clip=-1.0) == pytest.approx(1 - 0.5 + 0.5 * LN4, rel=1e-5)
    assert target(one_row(1), munchausen_clip=-1.0) == pytest.approx(1 + 0.5 * (LN3 - LN4) + 0.5 * LN4, rel=1e-5)
    assert target(one_row(0), munchausen_clip=0.0) == pytest.approx(1 + 0.5 * LN4, rel=1e-5)


def test_the_successors_log_policy_is_not_clipped():
    """Of (10, 0) action 1 has t ln pi = -10, and the soft value is ln(e^10 + 1)."""
    value = target(one_row(1), following=torch.tensor([[10.0, 0]]), munchausen_clip=-1.0, munchausen_alpha=0.0)
    assert value == pytest.approx(1 + 0.5 * math.log(math.exp(10) + 1), rel=1e-6)


def test_after_the_end_the_reward_and_the_log_policy_are_left():
    assert target(one_row(0, terminated=True)) == pytest.approx(1 - 0.5 * LN4, rel=1e-5)


def test_with_n_steps_the_successor_counts_gamma_to_the_m():
    batch = one_row(0, steps_to_next_obs=torch.tensor([[3]]))
    assert target(batch) == pytest.approx(1 - 0.5 * LN4 + 0.125 * LN4, rel=1e-5)


def test_illegal_actions_have_no_influence():
    """A third action, illegal now and then, whose value would rule everything."""
    masks = {"action_mask": torch.tensor([[True, True, False]])}
    batch = one_row(0, **masks)
    batch["next", "action_mask"] = torch.tensor([[True, True, False]])
    for value in (99.0, -99.0, 1e30, torch.inf, -torch.inf):
        extra = torch.tensor([[value]])
        with_it = target(batch, torch.cat([NOW, extra], 1), torch.cat([FOLLOWING, extra], 1))
        assert with_it == pytest.approx(1 - 0.5 * LN4 + 0.5 * LN4, rel=1e-5)


def test_one_legal_action_is_certain():
    """Its log-policy is 0, its soft value its value."""
    batch = one_row(0, action_mask=torch.tensor([[True, False]]))
    batch["next", "action_mask"] = torch.tensor([[False, True]])
    assert target(batch, torch.tensor([[3.0, 7]]), torch.tensor([[9.0, 4]])) == 1 + 0.5 * 4


@pytest.mark.parametrize("temperature", [0.1, 0.01, 0.001])
def test_cold_and_without_the_log_policy_it_is_the_max_target(temperature):
    """The soft value is at most t ln 2 above the largest."""
    value = target(
        one_row(), following=torch.tensor([[3.0, 3.5]]), munchausen_alpha=0.0, munchausen_temperature=temperature
    )
    assert 1 + 0.5 * 3.5 - 1e-6 <= value <= 1 + 0.5 * (3.5 + temperature * math.log(2)) + 1e-6


def test_rescaled_values_by_hand():
    """h(3) = 1.003, h(8) = 2.008; one legal action then, one now: h(-1 + 0.5 * 8) = h(3)."""
    batch = one_row(0, reward=-1.0, action_mask=torch.tensor([[True, False]]))
    batch["next", "action_mask"] = torch.tensor([[False, True]])
    rescaled = torch.tensor([[1.003, 2.008]])
    assert target(batch, rescaled, rescaled, value_rescaling=True) == pytest.approx(1.003, abs=1e-4)


def test_rescaled_values_are_compared_as_returns():
    """h(3) and h(3 + ln 3): the policy is (1/4, 3/4), its soft value 3 + ln 4."""
    following = torch.tensor([[1.003, math.sqrt(4 + LN3) - 1 + (3 + LN3) / 1000]])
    value = target(one_row(), following, following, value_rescaling=True)
    y = 1 - 0.5 * LN4 + 0.5 * (3 + LN4)
    assert value == pytest.approx(math.sqrt(y + 1) - 1 + y / 1000, abs=1e-3)


# ------------------------------------------------------------------ a slow loop


def slow_target(now: np.ndarray, following: np.ndarray, batch: TensorDict, c: MunchausenConfig) -> np.ndarray:
    """Vieillard et al. 2020, eq. 2, row by row and action by action, in float64."""
    t, targets = c.munchausen_temperature, []

    def log_policy(values: np.ndarray, legal: np.ndarray) -> dict[int, float]:
        top = max(values[legal])
        total = math.log(sum(math.exp((values[a] - top) / t) for a in np.flatnonzero(legal)))
        return {int(a): (values[a] - top) - t * total for a in np.flatnonzero(legal)}

    for row in range(len(now)):
        bonus = log_policy(now[row], batch["action_mask"][row].numpy())[int(batch["action"][row])]
        y = batch["next", "reward"][row].item() + c.munchausen_alpha * min(0.0, max(c.munchausen_clip, bonus))
        if not batch["next", "terminated"][row]:
            logs = log_policy(following[row], batch["next", "action_mask"][row].numpy())
            soft = sum(math.exp(log / t) * (following[row, a] - log) for a, log in logs.items())
            y += c.gamma ** int(batch["steps_to_next_obs"][row]) * soft
        targets.append(y)
    return np.array(targets)


def random_batch(size: int, actions: int, seed: int) -> TensorDict:
    rng = torch.Generator().manual_seed(seed)
    action = torch.randint(actions, (size,), generator=rng)
    masks = torch.rand(2, size, actions, generator=rng) < 0.5
    masks[0, torch.arange(size), action] = True
    masks[1, torch.arange(size), action.flip(0)] = True
    end = torch.rand(size, 1, generator=rng) < 0.3
    batch: dict[Any, Tensor] = {
        "action": action,
        "action_mask": masks[0],
        "steps_to_next_obs": torch.randint(1, 4, (size, 1), generator=rng),
        ("next", "action_mask"): masks[1],
        ("next", "reward"): torch.randn(size, 1, generator=rng),
        ("next", "terminated"): end,
        ("next", "done"): end,
    }
    return to_tensordict(batch, size)


@pytest.mark.parametrize("temperature", [0.03, 0.5, 5.0])
@pytest.mark.parametrize("scale", [0.1, 10.0, 1000.0])
def test_the_target_equals_a_slow_loop(temperature, scale):
    """Also where the policy is so sharp that probabilities are zero in float32; every target is finite."""
    batch, settings = random_batch(64, 5, seed=0), MunchausenConfig(gamma=0.9, munchausen_temperature=temperature)
    rng = np.random.default_rng(1)
    now, following = (scale * rng.standard_normal((2, 64, 5))).astype(np.float32)
    found = soft_target(torch.from_numpy(now), torch.from_numpy(following), batch, settings)
    assert found.shape == (64,) and torch.isfinite(found).all()
    expected = slow_target(now.astype(np.float64), following.astype(np.float64), batch, settings)
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_last_observation_without_a_legal_action_is_no_trouble():
    batch = random_batch(8, 3, seed=2)
    batch["next", "terminated"][:] = True
    batch["next", "action_mask"][:] = False
    assert torch.isfinite(soft_target(torch.randn(8, 3), torch.randn(8, 3), batch, config())).all()


# ------------------------------------------------------------------ the whole


def toy(**changes: Any) -> Algorithm:
    """Online values (2, 5), target values (0, ln 3), whatever is seen."""
    algorithm = build(config(**changes), LearnerConfig(), TOY)
    for group, values in (
        (algorithm.loss.value_network_params, [2.0, 5]),
        (algorithm.loss.target_value_network_params, [0.0, LN3]),
    ):
        head = group.get(("module", "0", "module", "head", "layers", "0"))
        head.get("weight").data.zero_()
        head.get("bias").data.copy_(torch.tensor(values))
    return algorithm


@pytest.mark.parametrize(("loss_function", "action", "value"), [("smooth_l1", 0, 2), ("l2", 0, 2), ("l2", 1, 5)])
def test_the_objective_by_hand(loss_function, action, value):
    """Both policies are the target network's: y = 1 + 0.5 ln pi(a|s) + 0.5 ln 4, which is 1 for action 0."""
    algorithm, sample = toy(loss_function=loss_function), one_row(action)
    error = abs([1, 1 + 0.5 * LN3][action] - value)
    expected = error - 0.5 if loss_function == "smooth_l1" else error**2 / 2
    assert algorithm.loss(sample)["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert sample["td_error"].item() == pytest.approx(error, rel=1e-5)
    assert sample["priority"].item() == pytest.approx(error, rel=1e-5)


def test_the_gradient_reaches_the_taken_value_of_the_online_network_only():
    algorithm = toy(loss_function="l2")
    algorithm.loss(one_row(0))["loss"].backward()
    bias = algorithm.loss.value_network_params.get(("module", "0", "module", "head", "layers", "0", "bias")).grad
    assert bias.tolist() == pytest.approx([2 - 1, 0])
    assert not any(p.requires_grad for p in algorithm.loss.target_value_network_params.values(True, True))
