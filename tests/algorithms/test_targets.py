"""What the losses share, against numbers worked out by hand.

`h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000`, so that h(0) = 0, h(3) = 1.003, h(8) = 2.008 and h(-x) = -h(x).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from trainer.algorithms import Algorithm, build
from trainer.algorithms.algorithm import actor
from trainer.algorithms.dqn import td_error
from trainer.algorithms.targets import (
    ObjectiveLoss,
    bellman,
    best,
    discounts,
    distance,
    next_mask,
    of_action,
    rescale,
    unrescale,
)
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict
from trainer.networks.q_network import QNetwork

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
HEAD = ("module", "0", "module", "head", "layers", "0")


def rows(**more: Tensor) -> TensorDict:
    """Four transitions: m = 1, terminated, m = 2, truncated. The online network sees 0, 1, 1 as better, then 0."""
    terminated, truncated = torch.tensor([0, 1, 0, 0]) == 1, torch.tensor([0, 0, 0, 1]) == 1
    batch: dict[Any, Tensor] = {
        "action": torch.tensor([0, 1, 1, 0]),
        "observation": torch.tensor([[1.0, 2], [1, 2], [0, 5], [4, 0]]),
        "steps_to_next_obs": torch.tensor([[1], [1], [2], [1]]),
        ("next", "observation"): torch.tensor([[3.0, 4], [3, 4], [2, 1], [-1, -2]]),
        ("next", "reward"): torch.tensor([[4.0], [-3], [-0.75], [1.5]]),
        ("next", "terminated"): terminated[:, None],
        ("next", "truncated"): truncated[:, None],
        ("next", "done"): (terminated | truncated)[:, None],
        **more,
    }
    return to_tensordict(batch, 4)


def set_head(group: Any, weight: list[list[float]], bias: list[float]) -> None:
    group.get((*HEAD, "weight")).data.copy_(torch.tensor(weight))
    group.get((*HEAD, "bias")).data.copy_(torch.tensor(bias))


def toy(**changes: Any) -> Algorithm:
    """DQN whose online network says Q(s) = s and whose target says h(3) and h(8), whatever s."""
    config = DQNConfig(hidden_sizes=[], gamma=0.5, **changes)
    algorithm = build(config, LearnerConfig(), TOY)
    set_head(algorithm.loss.value_network_params, [[1.0, 0], [0, 1]], [0.0, 0])
    set_head(algorithm.loss.target_value_network_params, [[0.0, 0], [0, 0]], [1.003, 2.008])
    return algorithm


# ------------------------------------------------------------------ value rescaling


@pytest.mark.parametrize(
    ("x", "h"), [(0, 0), (3, 1.003), (-3, -1.003), (8, 2.008), (-8, -2.008), (99, 9.099), (-9999, -108.999)]
)
def test_rescaling_and_its_inverse_by_hand(x, h):
    assert rescale(torch.tensor(float(x), dtype=torch.float64)).item() == pytest.approx(h)
    assert unrescale(torch.tensor(float(h), dtype=torch.float64)).item() == pytest.approx(x)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 5e-4)])
def test_rescaling_and_unrescaling_are_inverse(dtype, tolerance):
    size = torch.logspace(-6, 5, 500, dtype=dtype)
    x = torch.cat([-size, torch.zeros(1, dtype=dtype), size])
    assert torch.allclose(unrescale(rescale(x)), x, rtol=tolerance, atol=tolerance)
    assert torch.allclose(rescale(unrescale(x[x.abs() < 300])), x[x.abs() < 300], rtol=tolerance, atol=tolerance)


def test_rescaling_keeps_the_order():
    x = torch.linspace(-500, 500, 2001)
    assert (rescale(x).diff() > 0).all() and (unrescale(x).diff() > 0).all()


# ------------------------------------------------------------------ small parts


def test_discounts_with_and_without_steps():
    assert discounts(rows(), 0.5).tolist() == [[0.5], [0], [0.25], [0.5]]  # truncation goes on, termination does not
    assert discounts(rows().exclude("steps_to_next_obs"), 0.5).tolist() == [[0.5], [0], [0.5], [0.5]]


def test_the_best_action_is_a_legal_one():
    values = torch.tensor([[1.0, 5, 3], [1, 5, 3], [-1, -2, -3], [-7, 0, 0]])
    assert best(values, None).tolist() == [1, 1, 0, 1]
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 0, 0]]) == 1
    assert best(values, mask).tolist() == [1, 2, 2, 0]
    assert values[1, 1] == 5  # the values themselves stay


def test_numbers_of_one_action_of_each_row():
    numbers = torch.arange(12.0).reshape(2, 3, 2)
    assert of_action(numbers, torch.tensor([2, 0])).tolist() == [[4, 5], [6, 7]]


def test_the_mask_of_the_successor_is_that_of_next():
    mask, following = torch.ones(4, 2) == 1, torch.tensor([[1, 0]] * 4) == 1
    batch = rows(**{"action_mask": mask}).set(("next", "action_mask"), following)
    assert torch.equal(next_mask(batch), following)
    assert next_mask(rows()) is None


def test_huber_and_half_square():
    difference = torch.tensor([-3.0, -1, -0.5, 0, 0.5, 1, 3])
    assert distance(difference, "smooth_l1").tolist() == [2.5, 0.5, 0.125, 0, 0.125, 0.5, 2.5]
    assert distance(difference, "l2").tolist() == [4.5, 0.5, 0.125, 0, 0.125, 0.5, 4.5]
    x = torch.linspace(-3, 3, 101)
    assert torch.allclose(distance(x, "smooth_l1"), smooth_l1_loss(x, torch.zeros(101), reduction="none"))


def test_the_gradient_of_huber_is_clipped_at_one():
    difference = torch.tensor([-3.0, -0.5, 0, 0.25, 3], requires_grad=True)
    distance(difference, "smooth_l1").sum().backward()
    assert difference.grad.tolist() == [-1, -0.5, 0, 0.25, 1]


def test_bellman_of_numbers_of_each_row_and_of_one_for_all():
    """R = 4, -3, -0.75, 1.5 and the discounts above."""
    config = DQNConfig(gamma=0.5)
    expected = [[4.5, 8], [-3, -3], [-0.5, 1.25], [2, 5.5]]
    one = torch.tensor([[1.0, 8]])
    assert bellman(one, rows(), config).tolist() == expected
    assert bellman(one.expand(4, 2), rows(), config).tolist() == expected
    assert bellman(one[0], rows(), config).tolist() == expected


def test_bellman_of_rescaled_numbers():
    """h(R + gamma^m (1 - terminated) h^-1(x)) of x = h(3), h(8)."""
    wanted = bellman(torch.tensor([[1.003, 2.008]]), rows(), DQNConfig(gamma=0.5, value_rescaling=True))
    returns = torch.tensor([[5.5, 8], [-3, -3], [0, 1.25], [3, 5.5]])
    assert torch.allclose(wanted, rescale(returns), atol=1e-4)
    assert wanted[0, 1].item() == pytest.approx(2.008, abs=1e-4)
    assert wanted[3, 0].item() == pytest.approx(1.003, abs=1e-4)


# ------------------------------------------------------------------ DQN with rescaled values


@pytest.mark.parametrize(
    ("double", "returns"),
    [
        (True, [4 + 0.5 * 8, -3, -0.75 + 0.25 * 3, 1.5 + 0.5 * 3]),  # the online network chooses 1, -, 0, 0
        (False, [4 + 0.5 * 8, -3, -0.75 + 0.25 * 8, 1.5 + 0.5 * 8]),  # the target's largest is always h(8)
    ],
)
def test_dqns_rescaled_target_is_what_comes_out_by_hand(double, returns):
    assert returns == ([8, -3, 0, 3] if double else [8, -3, 1.25, 5.5])
    chosen = torch.tensor([1.0, 2, 5, 4])
    wanted = torch.tensor([2.008, -1.003, 0, 1.003] if double else [2.008, -1.003, 0.50125, 6.5**0.5 - 1 + 0.0055])
    algorithm, sample = toy(double=double, value_rescaling=True, loss_function="l2"), rows()
    loss = algorithm.loss(sample)["loss"]
    assert torch.allclose(td_error(sample), (wanted - chosen).abs(), atol=2e-4)
    assert torch.allclose(td_error(sample), (wanted - chosen).abs(), atol=2e-4)
    assert loss.item() == pytest.approx(((wanted - chosen) ** 2).mean().item(), abs=1e-3)


def test_dqn_without_rescaling_takes_the_same_numbers_as_they_are():
    algorithm, sample = toy(loss_function="l2"), rows()
    algorithm.loss(sample)
    wanted = torch.tensor([4 + 0.5 * 2.008, -3, -0.75 + 0.25 * 1.003, 1.5 + 0.5 * 1.003])
    assert torch.allclose(td_error(sample), (wanted - torch.tensor([1.0, 2, 5, 4])).abs())


def test_the_gradient_does_not_go_through_the_rescaled_bootstrap():
    algorithm = toy(value_rescaling=True, loss_function="l2")
    algorithm.loss(rows())["loss"].backward()
    error = torch.tensor([2.008, -1.003, 0, 1.003]) - torch.tensor([1.0, 2, 5, 4])
    bias = algorithm.loss.value_network_params.get((*HEAD, "bias")).grad  # d/db_a of mean (b_a + ... - y) ** 2
    assert torch.allclose(bias, -torch.stack([error[[0, 3]].sum(), error[[1, 2]].sum()]) / 2, atol=1e-3)
    assert not any(p.requires_grad for p in algorithm.loss.target_value_network_params.values(True, True))


# ------------------------------------------------------------------ ObjectiveLoss and importance weights


def head_of(objective: Any, spec: EnvSpec = TOY) -> ObjectiveLoss:
    policy = actor(QNetwork(spec, DQNConfig(hidden_sizes=[])), spec)
    loss = ObjectiveLoss(policy, objective)
    set_head(loss.value_network_params, [[1.0, 0], [0, 1]], [0.0, 0])
    set_head(loss.target_value_network_params, [[2.0, 0], [0, -1]], [0.5, 3])
    return loss


def gap(online: Any, target: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Half the square of the distance of the taken action's two values, the distance, its double."""
    value = of_action(online(batch), batch["action"]).squeeze(-1)
    error = of_action(target(batch["next"]), batch["action"]).squeeze(-1) - value
    return error.square() / 2, error.abs(), 2 * error.abs()


def test_an_objective_gets_both_networks_and_writes_its_errors():
    """Q(s, a) = 1, 2, 5, 4 and Q'(s', a) = 6.5, -1, 2, -1.5: differences 5.5, -3, -3, -5.5."""
    loss, sample = head_of(gap), rows()
    value = loss(sample)["loss"]
    assert value.item() == (15.125 + 4.5 + 4.5 + 15.125) / 4
    assert sample["td_error"].tolist() == [5.5, 3, 3, 5.5] and sample["priority"].tolist() == [11, 6, 6, 11]
    assert not sample["td_error"].requires_grad and not sample["priority"].requires_grad
    value.backward()
    # d/db_a = -(sum of the differences of rows that took a) / 4
    assert loss.value_network_params.get((*HEAD, "bias")).grad.tolist() == [0, 1.5]
    assert not any(p.requires_grad for p in loss.target_value_network_params.values(True, True))


def test_the_mask_is_no_leaf_of_the_network():
    spec = EnvSpec("masked", TOY.leaves, DiscreteAction(2, has_mask=True))
    legal = torch.ones(4, 2) == 1
    sample = rows(action_mask=legal).set(("next", "action_mask"), legal)
    assert head_of(gap, spec)(sample)["loss"].item() == 9.8125


def test_importance_weights_weigh_the_mean_of_an_objectives_losses():
    """Losses 15.125, 4.5, 4.5, 15.125; errors and priorities are not weighted."""
    weight = torch.tensor([1.0, 0.5, 0, 0.25])
    loss, sample = head_of(gap), rows(priority_weight=weight)
    value = loss(sample)["loss"]
    assert value.item() == pytest.approx((15.125 + 0.5 * 4.5 + 0 + 0.25 * 15.125) / 4)
    assert sample["td_error"].tolist() == [5.5, 3, 3, 5.5] and sample["priority"].tolist() == [11, 6, 6, 11]
    value.backward()
    expected = [(-5.5 + 0.25 * 5.5) / 4, 0.5 * 3 / 4]
    assert loss.value_network_params.get((*HEAD, "bias")).grad.tolist() == pytest.approx(expected)


def test_importance_weights_of_dqn_weigh_the_mean():
    """By itself TorchRL divides by the weights' sum: sum(w l) / sum(w)."""
    weight = torch.tensor([1.0, 0.5, 0, 0.25])
    algorithm, sample = toy(loss_function="l2"), rows(priority_weight=weight)
    error = torch.tensor([4 + 0.5 * 2.008 - 1, -3 - 2, -0.75 + 0.25 * 1.003 - 5, 1.5 + 0.5 * 1.003 - 4])
    value = algorithm.loss(sample)["loss"].item()
    assert value == pytest.approx((weight * error**2).sum().item() / 4, rel=1e-5)
    assert torch.allclose(td_error(sample), error.abs())


def test_equal_importance_weights_of_one_change_nothing():
    ones = torch.ones(4)
    assert toy().loss(rows(priority_weight=ones))["loss"].item() == toy().loss(rows())["loss"].item()
    assert head_of(gap)(rows(priority_weight=ones))["loss"].item() == 9.8125
