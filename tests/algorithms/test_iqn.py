"""IQN: the network's quantiles against the paper's formula, its loss by hand, and where its randomness comes from.

The toy sees s = (s_0, s_1) and has no hidden layer. With an embedding of ones it is linear, Q(s, a) = w_a . s + b_a at
every fraction; with an embedding of (1, 1 - cos(pi tau)) its quantiles rise with tau.
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
from trainer.config.algorithms import IQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict
from trainer.networks.implicit_quantiles import FractionEmbedding, ImplicitQuantileNetwork

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
MASKED = EnvSpec("toy", TOY.leaves, DiscreteAction(2, has_mask=True))
SPEC = EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))


def rows(mask: list[list[int]] | None = None) -> TensorDict:
    """The rows of test_dqn.py: rewards 1, 2, -1, 0; m = 1, 1, 2, 1; the second terminated, the last one truncated."""
    terminated, truncated = torch.tensor([0, 1, 0, 0]) == 1, torch.tensor([0, 0, 0, 1]) == 1
    batch: dict[Any, Tensor] = {
        "action": torch.tensor([0, 1, 1, 0]),
        "observation": torch.tensor([[1.0, 2], [1, 2], [0, 5], [4, 0]]),
        "steps_to_next_obs": torch.tensor([[1], [1], [2], [1]]),
        ("next", "observation"): torch.tensor([[3.0, 4], [3, 4], [2, 1], [-1, -2]]),
        ("next", "reward"): torch.tensor([[1.0], [2], [-1], [0]]),
        ("next", "terminated"): terminated[:, None],
        ("next", "truncated"): truncated[:, None],
        ("next", "done"): (terminated | truncated)[:, None],
    }
    if mask is not None:
        batch["action_mask"] = torch.ones(4, 2) == 1
        batch["next", "action_mask"] = torch.tensor(mask) == 1
    return to_tensordict(batch, 4)


def toy(spec: EnvSpec = TOY, embedding: list[list[float]] | None = None, **changes: Any) -> Algorithm:
    """Online Q(s) = (s_0, s_1), target Q'(s) = (2 s_0 + 0.5, 3 - s_1), times the embedding of two cosines."""
    config = IQNConfig(**{"hidden_sizes": [], "gamma": 0.5, "fraction_cosines": 2, **changes})
    algorithm = build(config, LearnerConfig(), spec)
    for group, weight, bias in (
        (algorithm.loss.value_network_params, [[1.0, 0], [0, 1]], [0.0, 0]),
        (algorithm.loss.target_value_network_params, [[2.0, 0], [0, -1]], [0.5, 3]),
    ):
        network = group.get(("module", "0", "module"))
        network.get(("head", "layers", "0", "weight")).data.copy_(torch.tensor(weight))
        network.get(("head", "layers", "0", "bias")).data.copy_(torch.tensor(bias))
        network.get(("embedding", "linear", "weight")).data.copy_(torch.tensor(embedding or [[0.0, 0], [0, 0]]))
        network.get(("embedding", "linear", "bias")).data.copy_(torch.ones(2) if embedding is None else torch.zeros(2))
    return algorithm


# ------------------------------------------------------------------ the network


def test_the_embedding_is_the_papers():
    """phi_j(tau) = relu(sum_i cos(pi i tau) w_ij + b_j), i = 0 .. C - 1 (Dabney et al. 2018a, eq. 4)."""
    torch.manual_seed(0)
    embedding, fractions = FractionEmbedding(width=6, cosines=5), torch.rand(3, 7)
    weight, bias = (p.detach().numpy() for p in (embedding.linear.weight, embedding.linear.bias))
    expected = np.zeros((3, 7, 6))
    for row, k, j in np.ndindex(expected.shape):
        tau = fractions[row, k].item()
        total = sum(math.cos(math.pi * i * tau) * weight[j, i] for i in range(5)) + bias[j]
        expected[row, k, j] = max(0.0, total)
    assert np.allclose(embedding(fractions).detach(), expected, atol=1e-5)
    assert embedding(fractions[0]).shape == (7, 6)
    assert torch.allclose(embedding(fractions[0]), embedding(fractions)[0], atol=1e-6)
    assert (expected == 0).any() and (expected > 0).any()


def test_the_embedding_by_hand():
    """cos(pi i tau) for i = 0, 1, 2 at tau = 0, 1/2, 1: (1, 1, 1), (1, 0, -1), (1, -1, 1)."""
    embedding = FractionEmbedding(width=2, cosines=3)
    embedding.linear.weight.data.copy_(torch.tensor([[0.0, 1, 0], [1, 2, 3]]))
    embedding.linear.bias.data.copy_(torch.tensor([0.5, 0]))
    found = embedding(torch.tensor([0.0, 0.5, 1])).flatten().tolist()
    assert found == pytest.approx([1.5, 6, 0.5, 0, 0, 2], abs=1e-5)


def test_quantiles_by_hand():
    """The embedding (1, 1 - cos(pi tau)) of s = (2, 3) gives (2, 3 (1 - cos(pi tau))), one for each action."""
    network = toy(embedding=[[1.0, 0], [1, -1]]).network
    quantiles = network.quantiles(torch.tensor([[2.0, 3]]), fractions=torch.tensor([0.0, 1 / 3, 0.5, 1]))
    assert torch.allclose(quantiles, torch.tensor([[[2.0, 2, 2, 2], [0, 1.5, 3, 6]]]), atol=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("hidden", [[], [8], [8, 6]])
def test_shapes_of_quantiles(dueling, noisy, hidden):
    config = IQNConfig(hidden_sizes=hidden, dueling=dueling, noisy=noisy)
    network = ImplicitQuantileNetwork(SPEC, config)
    x = torch.randn(7, 4)
    assert network.quantiles(x, fractions=torch.rand(9)).shape == (7, 3, 9)
    assert network.quantiles(x, fractions=torch.rand(7, 9)).shape == (7, 3, 9)
    assert network(x).shape == (7, 3)


def test_each_row_has_its_own_fractions():
    torch.manual_seed(0)
    network = ImplicitQuantileNetwork(SPEC, IQNConfig(hidden_sizes=[8, 6], dueling=True))
    x, fractions = torch.randn(3, 4), torch.rand(3, 6)
    together = network.quantiles(x, fractions=fractions)
    for row in range(3):
        alone = network.quantiles(x[row : row + 1], fractions=fractions[row])
        assert torch.allclose(together[row], alone[0], atol=1e-6)


def test_dueling_quantiles_are_v_plus_a_less_the_mean_of_a():
    torch.manual_seed(0)
    network = ImplicitQuantileNetwork(SPEC, IQNConfig(hidden_sizes=[8, 6], dueling=True))
    x, fractions = torch.randn(3, 4), torch.rand(3, 6)
    features = network.trunk(x, iter(())).unsqueeze(1) * network.embedding(fractions)
    v, a = network.value_head(features, iter(())), network.head(features, iter(()))  # [3, 6, 1] and [3, 6, 3]
    expected = (v + a - a.mean(-1, keepdim=True)).permute(0, 2, 1)
    found = network.quantiles(x, fractions=fractions)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.mean(1), v.squeeze(-1), atol=1e-5)  # the mean over actions is V


# ------------------------------------------------------------------ acting


def test_fractions_of_acting_are_the_middles_of_even_parts():
    network = ImplicitQuantileNetwork(SPEC, IQNConfig(num_acting_fractions=4))
    assert network.acting_fractions.tolist() == [0.125, 0.375, 0.625, 0.875]
    cautious = ImplicitQuantileNetwork(SPEC, IQNConfig(num_acting_fractions=4, risk_level=0.25))
    assert cautious.acting_fractions.tolist() == [0.03125, 0.09375, 0.15625, 0.21875]


@pytest.mark.parametrize("risk_level", [1.0, 0.25])
def test_acting_averages_over_the_lowest_share_of_quantiles(risk_level):
    torch.manual_seed(0)
    config = IQNConfig(hidden_sizes=[8, 6], num_acting_fractions=16, risk_level=risk_level)
    network, x = build(config, LearnerConfig(), SPEC).network, torch.randn(5, 4)
    fractions = torch.tensor([(i + 0.5) / 16 * risk_level for i in range(16)])
    assert torch.allclose(network(x), network.quantiles(x, fractions=fractions).mean(-1), atol=1e-6)


def test_a_cautious_policy_prefers_the_sure_outcome():
    """Of s = (2, 3): 2 for sure, or 3 (1 - cos(pi tau)), whose mean is 3 and whose lowest quarter's mean 0.3.

    The integral of 1 - cos(pi tau) over (0, 1/4), times 4, is 1 - 4 sin(pi / 4) / pi.
    """
    seen = torch.tensor([[2.0, 3]])
    for risk_level, mean, action in ((1.0, 3.0, 1), (0.25, 3 * (1 - 4 * math.sin(math.pi / 4) / math.pi), 0)):
        algorithm = toy(embedding=[[1.0, 0], [1, -1]], risk_level=risk_level, num_acting_fractions=64)
        assert algorithm.network(seen)[0].tolist() == pytest.approx([2, mean], abs=1e-3)
        assert algorithm.policy(TensorDict({"observation": seen}, 1))["action"].tolist() == [action]


def test_acting_is_not_random():
    network, x = build(IQNConfig(), LearnerConfig(), SPEC).network, torch.randn(5, 4)
    assert torch.equal(network(x), network(x))


# ------------------------------------------------------------------ the loss

# Targets of test_dqn.py: the online network chooses and the target judges, or the target does both.
DOUBLE = [0.5, 2, 0.125, -0.75]
SINGLE = [4.25, 2, 0.125, 2.5]
LEGAL = [4.25, 2, -0.5, 2.5]  # only 0, 0, 1, 1 are legal
CHOSEN = [1.0, 2, 5, 4]


@pytest.mark.parametrize(
    ("double", "mask", "wanted"),
    [
        (True, None, DOUBLE),
        (False, None, SINGLE),
        (True, [[1, 0], [1, 0], [0, 1], [0, 1]], LEGAL),
        (False, [[1, 0], [1, 0], [0, 1], [0, 1]], LEGAL),
    ],
)
@pytest.mark.parametrize("loss_function", ["smooth_l1", "l2"])
def test_without_a_spread_it_is_dqn_weighted_by_the_fractions(double, mask, wanted, loss_function):
    """All quantiles are Q: the loss is L(u) sum_i |tau_i - [u < 0]|, of the fractions that the seed gives."""
    algorithm = toy(TOY if mask is None else MASKED, double=double, loss_function=loss_function, num_fractions=3)
    sample, u = rows(mask), torch.tensor(wanted) - torch.tensor(CHOSEN)
    torch.manual_seed(5)
    loss = algorithm.loss(sample)["loss"].item()
    torch.manual_seed(5)
    weight = (torch.rand(4, 3) - (u < 0).float()[:, None]).abs().sum(-1)
    size = u.square() / 2 if loss_function == "l2" else torch.where(u.abs() < 1, u.square() / 2, u.abs() - 0.5)
    assert loss == pytest.approx((weight * size).mean().item(), rel=1e-5)
    assert sample["td_error"].tolist() == pytest.approx(u.abs().tolist())
    assert sample["priority"].tolist() == pytest.approx(u.abs().tolist())


def test_the_target_is_taken_at_fractions_of_its_own():
    """One fraction of each, tau and tau': Z = 1 - cos(pi tau) of this state and 2 (1 - cos(pi tau')) of the next one.

    The only row: s = (0, 1), reward 0, s' = (0, 2), gamma 0.5, action 1 everywhere, target equal to the online network.
    """
    algorithm = toy(embedding=[[1.0, 0], [1, -1]], num_fractions=1)
    algorithm.loss.target_value_network_params.data.update_(algorithm.loss.value_network_params.data)
    sample = rows()[:1]
    sample["action"] = torch.tensor([1])
    sample["observation"], sample["next", "observation"] = torch.tensor([[0.0, 1]]), torch.tensor([[0.0, 2]])
    sample["next", "reward"] = torch.zeros(1, 1)
    torch.manual_seed(3)
    algorithm.loss(sample)
    torch.manual_seed(3)
    tau, drawn = torch.rand(1, 1).item(), torch.rand(1, 1).item()
    now, following = 1 - math.cos(math.pi * tau), 2 * (1 - math.cos(math.pi * drawn))
    assert abs(tau - drawn) > 0.05
    assert sample["td_error"].item() == pytest.approx(abs(0.5 * following - now), rel=1e-4)


def test_fractions_are_drawn_anew_and_follow_torchs_seed():
    algorithm = build(IQNConfig(hidden_sizes=[8, 6]), LearnerConfig(), TOY)

    def loss() -> float:
        return algorithm.loss(rows())["loss"].item()

    torch.manual_seed(1)
    first, second = loss(), loss()
    torch.manual_seed(1)
    assert first != second and (loss(), loss()) == (first, second)


@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_flow_through_every_part_and_not_into_the_target(dueling):
    torch.manual_seed(0)
    algorithm = build(IQNConfig(hidden_sizes=[8, 6], dueling=dueling), LearnerConfig(), TOY)
    algorithm.loss(rows())["loss"].backward()
    trained = dict(algorithm.loss.value_network_params.items(True, True))
    gradients = {key: p.grad.abs().max().item() for key, p in trained.items() if isinstance(p, torch.nn.Parameter)}
    # weight and bias of each: trunk, embedding and two layers of the head (dueling: of both heads)
    assert len(gradients) == (12 if dueling else 8)
    assert min(gradients.values()) > 0
    assert not any(p.requires_grad for p in algorithm.loss.target_value_network_params.values(True, True))
