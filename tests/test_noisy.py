"""Noisy layers against TorchRL's with the same noise; how a network deals noise out; dueling by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torchrl.envs import ExplorationType, set_exploration_type
from torchrl.modules import NoisyLinear as TorchRLNoisyLinear

from trainer.config.algorithms import DQNConfig, IQNConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.networks.implicit_quantiles import ImplicitQuantileNetwork
from trainer.networks.layers import NoisyLinear
from trainer.networks.q_network import QNetwork

SPEC = EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))


def factor(noise: Tensor) -> Tensor:
    """f(e) = sign(e) sqrt(|e|) (Fortunato et al. 2018, eq. 10)."""
    return torch.tensor([math.copysign(math.sqrt(abs(e)), e) for e in noise.tolist()])


def twin(layer: NoisyLinear, noise: Tensor) -> TorchRLNoisyLinear:
    """TorchRL's layer with the same parameters and noise; its first I draws are the inputs'."""
    outputs, inputs = layer.weight_mu.shape
    theirs = TorchRLNoisyLinear(inputs, outputs)
    for name in ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma"):
        getattr(theirs, name).data.copy_(getattr(layer, name).data)
    e_in, e_out = factor(noise[:inputs]), factor(noise[inputs:])
    theirs.weight_epsilon.copy_(torch.outer(e_out, e_in))
    theirs.bias_epsilon.copy_(e_out)
    return theirs


def varied(inputs: int, outputs: int, seed: int = 0) -> NoisyLinear:
    """A layer whose sigmas differ from one another."""
    torch.manual_seed(seed)
    layer = NoisyLinear(inputs, outputs, 0.5)
    layer.weight_sigma.data.mul_(torch.rand(outputs, inputs) * 2)
    layer.bias_sigma.data.mul_(torch.rand(outputs) * 2)
    return layer


# ------------------------------------------------------------------ the layer


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 3), (1, 4), (6, 1), (32, 16)])
def test_it_equals_torchrls_layer_given_the_same_noise(inputs, outputs):
    layer, x = varied(inputs, outputs), torch.randn(7, inputs)
    noise = torch.randn(inputs + outputs)
    theirs = twin(layer, noise)
    with set_exploration_type(ExplorationType.RANDOM):
        expected = theirs(x)
    found = layer(x, factor(noise))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn(7, outputs)
    found.backward(upstream)
    expected.backward(upstream)
    for name in ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma"):
        mine, other = getattr(layer, name).grad, getattr(theirs, name).grad
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5), name


def test_a_noisy_layer_by_hand():
    """Noise (4, -9 | 1) gives f = (2, -3 | 1): weights 1 + 0.1 * 2 and 1 - 0.1 * 3, bias 5 + 0.5."""
    layer = NoisyLinear(2, 1, 0.5)
    for parameter, value in (
        (layer.weight_mu, 1.0),
        (layer.weight_sigma, 0.1),
        (layer.bias_mu, 5.0),
        (layer.bias_sigma, 0.5),
    ):
        parameter.data.fill_(value)
    assert layer(torch.tensor([[10.0, 100]]), factor(torch.tensor([4.0, -9, 1]))).item() == pytest.approx(12 + 70 + 5.5)
    assert layer(torch.tensor([[10.0, 100]])).item() == 115


def test_without_noise_the_mean_weights_act():
    layer, x = varied(5, 3), torch.randn(7, 5)
    expected = nn.functional.linear(x, layer.weight_mu, layer.bias_mu)
    assert torch.equal(layer(x), expected)
    assert torch.allclose(layer(x, torch.zeros(8)), expected, atol=1e-6)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert torch.equal(twin(layer, torch.randn(8))(x), expected)


@pytest.mark.parametrize("sigma", [0.5, 0.1])
def test_initial_values(sigma):
    """Section 3.2: means uniform within 1 / sqrt(I), sigmas sigma / sqrt(I)."""
    torch.manual_seed(0)
    layer = NoisyLinear(100, 50, sigma)
    for sigmas in (layer.weight_sigma, layer.bias_sigma):
        assert torch.allclose(sigmas, torch.tensor(sigma / 10))
    for means in (layer.weight_mu, layer.bias_mu):
        assert -0.1 <= means.min() < -0.09 and 0.09 < means.max() <= 0.1
    assert layer.weight_mu.mean().item() == pytest.approx(0, abs=0.003)  # 5000 draws: 0.0008
    assert layer.weight_mu.std().item() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)
    theirs = TorchRLNoisyLinear(100, 50, std_init=sigma)
    assert torch.allclose(theirs.weight_sigma, layer.weight_sigma)


def test_nothing_but_parameters_is_stored():
    """Buffers would travel to the workers with every version of the weights."""
    layer = NoisyLinear(5, 3, 0.5)
    assert set(layer.state_dict()) == {"weight_mu", "weight_sigma", "bias_mu", "bias_sigma"}
    assert not list(layer.buffers()) and layer.noise_size == 8


# ------------------------------------------------------------------ the network


@pytest.mark.parametrize(
    ("changes", "outputs", "size"),
    [
        ({"noisy": False}, 1, 0),
        ({"noisy": False, "dueling": True}, 1, 0),
        ({}, 1, (4 + 8) + (8 + 6) + (6 + 3)),
        ({}, 5, (4 + 8) + (8 + 6) + (6 + 15)),
        # dueling: one layer in common, then two each for the advantages and for the value
        ({"dueling": True}, 1, (4 + 8) + (8 + 6) + (6 + 3) + (8 + 6) + (6 + 1)),
        ({"dueling": True}, 5, (4 + 8) + (8 + 6) + (6 + 15) + (8 + 6) + (6 + 5)),
        ({"hidden_sizes": []}, 1, 4 + 3),
    ],
)
def test_the_size_of_a_networks_noise(changes, outputs, size):
    config = DQNConfig(**{"hidden_sizes": [8, 6], "noisy": True, **changes})
    network = QNetwork(SPEC, config, outputs=outputs)
    assert network.noise_size == size


def test_the_embedding_of_fractions_is_not_noisy():
    network = ImplicitQuantileNetwork(SPEC, IQNConfig(hidden_sizes=[8, 6], noisy=True))
    assert network.noise_size == (4 + 8) + (8 + 6) + (6 + 3)


@pytest.mark.parametrize("dueling", [False, True])
def test_each_layer_gets_its_part_of_the_noise(dueling):
    """The trunk's first, then the advantages' (or the only head's), then the value's, each part inputs first."""
    torch.manual_seed(0)
    config = DQNConfig(hidden_sizes=[8, 6], noisy=True, dueling=dueling)
    network, x = QNetwork(SPEC, config), torch.randn(5, 4)
    noise = torch.randn(network.noise_size)
    parts = list(noise.split([12, 14, 9, 14, 7] if dueling else [12, 14, 9]))

    def layer(module: NoisyLinear, x: Tensor, part: int) -> Tensor:
        with set_exploration_type(ExplorationType.RANDOM):
            return twin(module, parts[part])(x)

    if dueling:
        features = layer(network.trunk.layers[0], x, 0).relu()
        advantage = layer(network.head.layers[1], layer(network.head.layers[0], features, 1).relu(), 2)
        value = layer(network.value_head.layers[1], layer(network.value_head.layers[0], features, 3).relu(), 4)
        expected = value + advantage - advantage.mean(-1, keepdim=True)
    else:
        one, two, three = network.head.layers
        expected = layer(three, layer(two, layer(one, x, 0).relu(), 1).relu(), 2)
    assert torch.allclose(network(x, noise=noise), expected, atol=1e-5)
    network.eval()
    assert torch.allclose(network(x, noise=noise), expected, atol=1e-5)  # given noise is used in either mode


@pytest.mark.parametrize(("kind", "section"), [(QNetwork, DQNConfig), (ImplicitQuantileNetwork, IQNConfig)])
def test_noise_is_drawn_in_training_and_the_mean_acts_in_evaluation(kind, section):
    torch.manual_seed(0)
    network, x = kind(SPEC, section(hidden_sizes=[8, 6], noisy=True, dueling=True)), torch.randn(5, 4)
    torch.manual_seed(3)
    first, second = network(x), network(x)
    torch.manual_seed(3)
    given = network(x, noise=torch.randn(network.noise_size))
    assert torch.equal(first, given) and not torch.allclose(first, second, rtol=1e-3)
    mean = network.eval()(x)
    assert torch.equal(mean, network(x))
    assert torch.allclose(mean, network(x, noise=torch.zeros(network.noise_size)), atol=1e-6)
    assert not torch.allclose(mean, first, rtol=1e-3)


def test_a_plain_network_draws_nothing():
    network = QNetwork(SPEC, DQNConfig(hidden_sizes=[8]))
    before = torch.get_rng_state()
    network(torch.randn(5, 4, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before) and network.noise_size == 0


# ------------------------------------------------------------------ dueling


def fixed_heads(advantage: list[float], value: list[float], outputs: int = 1, seen: float = 0.0) -> QNetwork:
    """No hidden layer: A = advantage + seen * sum of the observation, V = value, whatever is seen."""
    network = QNetwork(SPEC, DQNConfig(hidden_sizes=[], dueling=True), outputs=outputs)
    for head, bias, weight in ((network.head, advantage, seen), (network.value_head, value, 0.0)):
        head.layers[0].weight.data.fill_(weight)
        head.layers[0].bias.data.copy_(torch.tensor(bias))
    return network


def test_dueling_values_by_hand():
    """V = 10, A = (1, 2, 6): Q = 10 + A - 3."""
    assert fixed_heads([1.0, 2, 6], [10.0])(torch.zeros(2, 4)).tolist() == [[8, 9, 13]] * 2


def test_what_all_advantages_share_has_no_influence():
    assert torch.allclose(fixed_heads([1.0, 2, 6], [10.0], seen=5.0)(torch.ones(1, 4)), torch.tensor([[8.0, 9, 13]]))


def test_dueling_numbers_are_centred_one_by_one():
    """Two numbers for each action: A = (0, 1), (2, 3), (4, 8) of means 2, 4 and V = (10, 20)."""
    network = fixed_heads([0.0, 1, 2, 3, 4, 8], [10.0, 20], outputs=2)
    assert network.numbers(torch.zeros(1, 4)).tolist() == [[[8, 17], [10, 19], [12, 24]]]
    assert network(torch.zeros(1, 4)).tolist() == [[12.5, 14.5, 18]]


@pytest.mark.parametrize(("hidden", "layers"), [([], 2), ([8], 4), ([8, 6], 5), ([8, 6, 5], 6)])
def test_heads_part_before_the_last_hidden_layer(hidden, layers):
    """As many linear layers as hidden ones, with the last hidden one and the outputs twice."""
    network = QNetwork(SPEC, DQNConfig(hidden_sizes=hidden, dueling=True))
    assert sum(isinstance(module, nn.Linear) for module in network.modules()) == layers
    assert network(torch.randn(5, 4)).shape == (5, 3)
