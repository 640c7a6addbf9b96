"""DQN on TorchRL's loss against numbers worked out by hand, and what the rest of the house relies on.

The toy: two observed numbers, two actions, no hidden layer, so that `Q(s, a) = w_a . s + b_a`.

    online:  w_0 = (1, 0), w_1 = (0, 1),  b = (0, 0)       Q(s)  = (s_0, s_1)
    target:  w_0 = (2, 0), w_1 = (0, -1), b = (0.5, 3)     Q'(s) = (2 s_0 + 0.5, 3 - s_1)

    row  s        a  r    m  terminated  s'        Q(s, a)  Q(s')     Q'(s')       gamma = 0.5
    0    (1, 2)   0  1    1  no          (3, 4)    1        (3, 4)    (6.5, -1)
    1    (1, 2)   1  2    1  yes         (3, 4)    2        (3, 4)    (6.5, -1)
    2    (0, 5)   1  -1   2  no          (2, 1)    5        (2, 1)    (4.5, 2)
    3    (4, 0)   0  0    1  truncated   (-1, -2)  4        (-1, -2)  (-1.5, 5)
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.algorithms import Algorithm, build
from trainer.algorithms.dqn import td_error
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
MASKED = EnvSpec("toy", TOY.leaves, DiscreteAction(2, has_mask=True))

# y = r + 0.5 ** m * (1 - terminated) * Q'(s', argmax of Q(s')): the online network chooses, the target judges.
DOUBLE = [1 + 0.5 * -1, 2, -1 + 0.25 * 4.5, 0 + 0.5 * -1.5]
# y = r + 0.5 ** m * (1 - terminated) * max of Q'(s')
SINGLE = [1 + 0.5 * 6.5, 2, -1 + 0.25 * 4.5, 0 + 0.5 * 5]
CHOSEN = [1, 2, 5, 4]


def toy(spec: EnvSpec = TOY, **changes: Any) -> Algorithm:
    config = DQNConfig(hidden_sizes=[], gamma=0.5, **changes)
    algorithm = build(config, LearnerConfig(), spec)
    key = ("module", "0", "module", "head", "layers", "0")
    for group, weight, bias in (
        (algorithm.loss.value_network_params, [[1.0, 0], [0, 1]], [0.0, 0]),
        (algorithm.loss.target_value_network_params, [[2.0, 0], [0, -1]], [0.5, 3]),
    ):
        group.get((*key, "weight")).data.copy_(torch.tensor(weight))
        group.get((*key, "bias")).data.copy_(torch.tensor(bias))
    return algorithm


def rows(steps: bool = True) -> dict[Any, torch.Tensor]:
    terminated, truncated = torch.tensor([0, 1, 0, 0]) == 1, torch.tensor([0, 0, 0, 1]) == 1
    batch: dict[Any, torch.Tensor] = {
        "action": torch.tensor([0, 1, 1, 0]),
        "observation": torch.tensor([[1.0, 2], [1, 2], [0, 5], [4, 0]]),
        ("next", "observation"): torch.tensor([[3.0, 4], [3, 4], [2, 1], [-1, -2]]),
        ("next", "reward"): torch.tensor([[1.0], [2], [-1], [0]]),
        ("next", "terminated"): terminated[:, None],
        ("next", "truncated"): truncated[:, None],
        ("next", "done"): (terminated | truncated)[:, None],
    }
    if steps:
        batch["steps_to_next_obs"] = torch.tensor([[1], [1], [2], [1]])
    return batch


def errors(targets: list[float]) -> torch.Tensor:
    return torch.tensor(CHOSEN) - torch.tensor(targets)


@pytest.mark.parametrize(("double", "targets"), [(True, DOUBLE), (False, SINGLE)])
def test_the_loss_is_what_comes_out_by_hand(double, targets):
    assert DOUBLE == [0.5, 2, 0.125, -0.75] and SINGLE == [4.25, 2, 0.125, 2.5]
    error = errors(targets)
    sample = to_tensordict(rows(), 4)
    squared = toy(double=double, loss_function="l2").loss(sample)["loss"]
    assert squared.item() == pytest.approx((error**2).mean().item())
    assert sample["td_error"].squeeze(-1).tolist() == pytest.approx((error**2).tolist())  # TorchRL's is the squared one
    # Huber: half the square up to 1, then the distance less one half.
    huber = torch.where(error.abs() < 1, error**2 / 2, error.abs() - 0.5).mean().item()
    assert toy(double=double).loss(to_tensordict(rows(), 4))["loss"].item() == pytest.approx(huber)


def test_the_numbers_themselves():
    """Double: errors 0.5, 0, 4.875, 4.75; l2 = (0.25 + 23.765625 + 22.5625) / 4, Huber = (0.125 + 4.375 + 4.25) / 4."""
    assert errors(DOUBLE).tolist() == [0.5, 0, 4.875, 4.75]
    assert toy(loss_function="l2").loss(to_tensordict(rows(), 4))["loss"].item() == pytest.approx(11.64453125)
    assert toy().loss(to_tensordict(rows(), 4))["loss"].item() == pytest.approx(2.1875)


def test_without_n_step_returns_every_discount_is_gamma():
    targets = [0.5, 2, -1 + 0.5 * 4.5, -0.75]
    loss = toy(loss_function="l2").loss(to_tensordict(rows(steps=False), 4))["loss"]
    assert loss.item() == pytest.approx((errors(targets) ** 2).mean().item())


@pytest.mark.parametrize(
    ("double", "targets"),
    [
        (True, [1 + 0.5 * 6.5, 2, -1 + 0.25 * 2, 0 + 0.5 * 5]),  # Q(s', .) restricted to the legal action
        (False, [1 + 0.5 * 6.5, 2, -1 + 0.25 * 2, 0 + 0.5 * 5]),
    ],
)
def test_an_illegal_action_is_no_successor(double, targets):
    batch = rows()
    batch["action_mask"] = torch.ones(4, 2, dtype=torch.bool)
    batch["next", "action_mask"] = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]]) == 1
    loss = toy(MASKED, double=double, loss_function="l2").loss(to_tensordict(batch, 4))["loss"]
    assert loss.item() == pytest.approx((errors(targets) ** 2).mean().item())


def test_the_gradient_does_not_reach_the_target_nor_go_through_the_bootstrap():
    algorithm = toy(loss_function="l2")
    algorithm.loss(to_tensordict(rows(), 4))["loss"].backward()
    head = algorithm.loss.value_network_params.get(("module", "0", "module", "head", "layers", "0"))
    # d/dw_a of mean (Q(s, a) - y) ** 2 = mean 2 (Q - y) s, over the rows that took a; rows 0 and 3 took 0.
    error, s = errors(DOUBLE), rows()["observation"]
    expected = torch.stack([2 * (error[[0, 3], None] * s[[0, 3]]).sum(0), 2 * (error[[1, 2], None] * s[[1, 2]]).sum(0)])
    assert torch.allclose(head.get("weight").grad, expected / 4)
    assert not any(p.requires_grad for p in algorithm.loss.target_value_network_params.values(True, True))


def test_the_policy_acts_by_the_network_and_within_the_mask():
    algorithm = toy(MASKED)
    batch = to_tensordict({"observation": torch.tensor([[1.0, 2], [3, 2]]), "action_mask": torch.ones(2, 2) == 1}, 2)
    assert algorithm.policy(batch)["action"].tolist() == [1, 0]
    batch["action_mask"] = torch.tensor([[1, 0], [0, 1]]) == 1
    assert algorithm.policy(batch)["action"].tolist() == [0, 1]
    assert algorithm.policy.module[0].module is algorithm.network


def test_the_error_of_a_transition_is_its_absolute_distance_from_the_target():
    algorithm, sample = toy(), to_tensordict(rows(), 4)
    algorithm.loss(sample)
    assert td_error(sample).tolist() == pytest.approx([0.5, 0, 4.875, 4.75])


def test_its_one_part_is_a_function_of_the_groups_that_it_is_given():
    """All values are 0 with parameters of 0, and the error is the reward; the loss keeps its parameters."""
    algorithm = toy()
    (phase,) = algorithm.phases
    (part,) = phase.parts
    assert (part.trains, algorithm.acts) == (("value_network_params",), "value_network_params")
    assert algorithm.targets == {"value_network_params": "target_value_network_params"}
    own = {name: getattr(algorithm.loss, name) for pair in algorithm.targets.items() for name in pair}
    found = part.evaluate(own, to_tensordict(rows(), 4))
    assert found.priority.tolist() == pytest.approx([0.5, 0, 4.875, 4.75])
    assert found.metrics["td_error"].item() == pytest.approx(10.125 / 4)
    nothing = {name: group.apply(torch.zeros_like) for name, group in own.items()}
    reward = rows()["next", "reward"].squeeze(-1).abs()
    assert part.evaluate(nothing, to_tensordict(rows(), 4)).priority.tolist() == pytest.approx(reward.tolist())
    assert all(getattr(algorithm.loss, name) is group for name, group in own.items())


def test_names_of_leaves_with_dots_reach_the_network_in_the_order_of_the_spec():
    leaves = (Leaf("observation.b.0", (1,), "float32", "vector"), Leaf("observation.a", (1,), "float32", "vector"))
    algorithm = build(DQNConfig(hidden_sizes=[]), LearnerConfig(), EnvSpec("two", leaves, DiscreteAction(2)))
    head = algorithm.network.head.layers[0]
    head.weight.data.copy_(torch.tensor([[1.0, 0], [0, 1]]))
    head.bias.data.zero_()
    seen = to_tensordict({"observation.b.0": torch.tensor([[5.0]]), "observation.a": torch.tensor([[7.0]])}, 1)
    assert algorithm.policy(seen)["action_value"].tolist() == [[5.0, 7.0]]
