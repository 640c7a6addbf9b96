"""Figures of a learner, of a network whose values and activity can be worked out by hand.

The toy sees s = (s_0, s_1). Its hidden units are relu of (s_0, s_1, -s_0, s_0 + 100 s_1 ..) as a test sets them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.algorithms import Algorithm, build
from trainer.config.algorithms import AnyAlgorithmConfig, DQNConfig, section_of
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
MASKED = EnvSpec("toy", TOY.leaves, DiscreteAction(2, has_mask=True))
HEAD = ("module", "0", "module", "head", "layers")
SEEN = torch.tensor([[1.0, 2], [3, 1], [5, 0], [0, 4]])


def set_layers(group: Any, *layers: tuple[list[list[float]], list[float]], head: tuple[str, ...] = HEAD) -> None:
    for i, (weight, bias) in enumerate(layers):
        group.get((*head, str(i), "weight")).data.copy_(torch.tensor(weight))
        group.get((*head, str(i), "bias")).data.copy_(torch.tensor(bias))


def linear() -> Algorithm:
    """Online Q(s) = (s_0, s_1): 1 2, 3 1, 5 0, 0 4. Target Q'(s) = (0, 10 - s_0): 0 9, 0 7, 0 5, 0 10."""
    algorithm = build(DQNConfig(hidden_sizes=[]), LearnerConfig(), MASKED)
    set_layers(algorithm.loss.value_network_params, ([[1.0, 0], [0, 1]], [0.0, 0]))
    set_layers(algorithm.loss.target_value_network_params, ([[0.0, 0], [-1, 0]], [0.0, 10]))
    return algorithm


def figures(algorithm: Algorithm, seen: Tensor = SEEN, **more: Tensor) -> dict[str, float]:
    return algorithm.diagnose({"observation": seen, "action": torch.zeros(len(seen), dtype=torch.int64), **more})


def test_values_and_greedy_actions():
    """Greedy are 1, 0, 0, 1 of values 2, 3, 5, 4; the target prefers 1 everywhere, of values 9, 7, 5, 10."""
    found = figures(linear())
    assert found["q_mean"] == 3.5 and found["q_max"] == 5
    assert found["target_q_mean"] == 7.75
    assert found["greedy_share_0"] == 0.5 and found["greedy_share_1"] == 0.5
    assert found["churn"] == 0.5  # rows 1 and 2
    assert found["parameter_norm"] == pytest.approx(2**0.5)
    assert found["dormant_share"] == 0  # there is no hidden unit
    names = {"q_mean", "q_max", "target_q_mean", "churn", "greedy_share_0", "greedy_share_1"}
    assert set(found) == names | {"parameter_norm", "dormant_share"}
    assert all(type(value) is float for value in found.values())


def test_illegal_actions_are_no_greedy_ones():
    """Only action 0 in the first two rows, only 1 in the third: values 1, 3, 0, 4, of the target 0, 0, 5, 10."""
    mask = torch.tensor([[1, 0], [1, 0], [0, 1], [1, 1]]) == 1
    found = figures(linear(), action_mask=mask)
    assert found["q_mean"] == 2 and found["q_max"] == 4
    assert found["target_q_mean"] == 3.75
    assert found["greedy_share_0"] == 0.5 and found["greedy_share_1"] == 0.5
    assert found["churn"] == 0


def test_an_action_that_is_never_greedy_has_its_share_too():
    found = figures(linear(), seen=torch.tensor([[5.0, 0], [6, 0]]))
    assert found["greedy_share_0"] == 1 and found["greedy_share_1"] == 0
    assert found["q_mean"] == 5.5 and found["churn"] == 1


def hidden(weights: list[list[float]], biases: list[float], activation: str = "relu") -> Algorithm:
    config = DQNConfig(hidden_sizes=[len(weights)], activation=activation)
    algorithm = build(config, LearnerConfig(), TOY)
    set_layers(algorithm.loss.value_network_params, (weights, biases))
    return algorithm


def test_units_that_are_never_active_sleep():
    """Mean outputs 2.25 (s_0), 1.75 (s_1), 0 (-1) and 0 (-s_0 - s_1): two of four."""
    algorithm = hidden([[1.0, 0], [0, 1], [0, 0], [-1, -1]], [0.0, 0, -1, 0])
    assert figures(algorithm)["dormant_share"] == 0.5


def test_a_unit_sleeps_below_a_fortieth_of_its_layers_mean():
    """Outputs c, 1 and 1: their mean is (2 + c) / 3, of which 0.025 is 0.01681 at c = 0.01681 (= 0.05 / 2.975)."""
    for c, share in ((0.0167, 1 / 3), (0.0169, 0.0)):
        algorithm = hidden([[0.0, 0]] * 3, [c, 1, 1])
        assert figures(algorithm)["dormant_share"] == pytest.approx(share)


def test_a_layer_that_is_dead_as_a_whole_sleeps():
    assert figures(hidden([[0.0, 0]] * 3, [-1.0, -1, 0]))["dormant_share"] == 1


def test_activity_is_absolute():
    """Tanh of -2 is as active as that of 2; only that of 0 sleeps."""
    found = figures(hidden([[0.0, 0]] * 4, [-2.0, 2, 0, 2], "tanh"))
    assert found["dormant_share"] == 0.25


def test_each_layer_is_compared_with_its_own_mean():
    """First layer: 100, 100, 0. Second: 1, 1, both far below the first one's mean, none of them asleep: 1 of 5."""
    algorithm = build(DQNConfig(hidden_sizes=[3, 2]), LearnerConfig(), TOY)
    set_layers(
        algorithm.loss.value_network_params,
        ([[0.0, 0]] * 3, [100.0, 100, -1]),
        ([[0.0, 0, 0]] * 2, [1.0, 1]),
    )
    assert figures(algorithm)["dormant_share"] == pytest.approx(0.2)


def test_both_heads_of_a_dueling_network_count():
    """Two shared units awake, two of the advantages' asleep, one of the value's two asleep: 3 of 6."""
    algorithm = build(DQNConfig(hidden_sizes=[2, 2], dueling=True), LearnerConfig(), TOY)
    group = algorithm.loss.value_network_params
    for part, bias in (("trunk", [1.0, 1]), ("head", [-1.0, -1]), ("value_head", [1.0, -1])):
        set_layers(group, ([[0.0, 0]] * 2, bias), head=("module", "0", "module", part, "layers"))
    assert figures(algorithm)["dormant_share"] == 0.5


def test_a_channel_of_a_convolution_is_one_unit():
    """Of 16 channels, 4 have a bias of -1 and 12 one of 1, with weights of 0; the hidden units are awake: 4 of 18."""
    spec = EnvSpec("image", (Leaf("observation", (6, 6), "uint8", "image", "hw"),), DiscreteAction(2))
    algorithm = build(DQNConfig(hidden_sizes=[2]), LearnerConfig(), spec)
    convolution = algorithm.network.encoders[0].convolutions[0]
    convolution.weight.data.zero_()
    convolution.bias.data.copy_(torch.tensor([-1.0] * 4 + [1.0] * 12))
    set_layers(algorithm.loss.value_network_params, ([[0.0] * 256] * 2, [1.0, 1]))
    assert figures(algorithm, torch.zeros(3, 6, 6, dtype=torch.uint8))["dormant_share"] == pytest.approx(4 / 18)


def test_the_parameter_norm_is_of_trained_values_only():
    """Weights of 3 and biases of 4 in place of all: 2 x 2 + 2 of the first layer, 2 x 2 + 2 of the second."""
    algorithm = build(DQNConfig(hidden_sizes=[2]), LearnerConfig(), TOY)
    layer = ([[3.0, 3], [3, 3]], [4.0, 4])
    set_layers(algorithm.loss.value_network_params, layer, layer)
    assert figures(algorithm)["parameter_norm"] == pytest.approx((8 * 9 + 4 * 16) ** 0.5)


# ------------------------------------------------------------------ what it leaves behind


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn", "iqn", "munchausen"])
def test_it_changes_nothing_and_sees_the_mean_weights(name):
    torch.manual_seed(0)
    every = AnyAlgorithmConfig(hidden_sizes=[8, 6], dueling=True, noisy=True, num_atoms=5, num_quantiles=4)
    config = section_of(every, name)
    algorithm = build(config, LearnerConfig(), TOY)
    loss = algorithm.loss
    before = {key: value.clone() for key, value in loss.state_dict().items() if isinstance(value, Tensor)}
    random_state = torch.get_rng_state()
    first, second = figures(algorithm), figures(algorithm)
    assert first == second and torch.equal(torch.get_rng_state(), random_state)
    after = {key: value for key, value in loss.state_dict().items() if isinstance(value, Tensor)}
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert all(module.training for module in algorithm.network.modules())
    assert all(module.training for module in loss.value_network.modules())
    assert not any(module._forward_hooks for module in loss.modules() if isinstance(module, nn.ReLU))
    network = algorithm.network.eval()
    best = network(SEEN).max(-1).values
    assert first["q_mean"] == pytest.approx(best.mean().item(), rel=1e-5)
    assert first["q_max"] == pytest.approx(best.max().item(), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_it_leaves_the_mode_of_the_network_as_it_was(training):
    algorithm = linear()
    algorithm.network.train(training)
    figures(algorithm)
    assert all(module.training is training for module in algorithm.network.modules())
