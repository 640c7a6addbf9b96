"""What the networks compute of each kind of leaf, and that the memory format does not change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainer.config.algorithms import DQNConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.networks.encoders import Flatten, OneHot
from trainer.networks.layers import dense, parameter_count
from trainer.networks.q_network import QNetwork


def spec(*leaves: Leaf, num_actions: int = 3) -> EnvSpec:
    return EnvSpec("test", leaves, DiscreteAction(num_actions))


NO_NOISE: Iterator[torch.Tensor] = iter(())


def made(env: EnvSpec, hidden_sizes: list[int], channels_last: bool = True, **options: Any) -> QNetwork:
    return QNetwork(env, DQNConfig(hidden_sizes=hidden_sizes, **options), channels_last)


def image(shape: tuple[int, ...], axes: str, dtype: str = "uint8", stack: int = 1) -> Leaf:
    return Leaf("observation", shape, dtype, "image", axes, stack=stack)


def frames(leaf: Leaf, count: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    shape = (count, *leaf.seen_shape)
    values = rng.integers(0, 256, shape, dtype=np.uint8) if leaf.dtype == "uint8" else rng.random(shape, np.float32)
    return torch.from_numpy(values)


@pytest.mark.parametrize(
    ("dtype", "shape", "stack"), [("float32", (3,), 1), ("float32", (2, 3), 4), ("bool", (5,), 1), ("uint8", (2, 2), 1)]
)
def test_numbers_are_flattened_and_not_scaled(dtype, shape, stack):
    leaf = Leaf("observation", shape, dtype, "vector", stack=stack)
    x = torch.arange(2 * stack * int(np.prod(shape))).reshape(2, *leaf.seen_shape).to(getattr(torch, dtype))
    features = Flatten(leaf, scaled=False)(x)
    assert features.dtype == torch.float32
    assert torch.equal(features, x.reshape(2, -1).float())


def test_categories_become_one_hot_each_in_its_own_place():
    leaf = Leaf("observation", (3,), "int64", "discrete", nvec=(2, 4, 3))
    features = OneHot(leaf.nvec)(torch.tensor([[0, 0, 0], [1, 3, 2], [1, 0, 1]]))
    assert features.dtype == torch.float32
    assert features.tolist() == [
        [1, 0, 1, 0, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0, 1, 0, 0, 1],
        [0, 1, 1, 0, 0, 0, 0, 1, 0],
    ]


def test_categories_of_two_axes_count_in_c_order():
    leaf = Leaf("observation", (2, 2), "int64", "discrete", nvec=(2, 3, 4, 5))
    x = torch.stack([torch.randint(n, (50,)) for n in leaf.nvec], 1).reshape(50, 2, 2)
    expected = torch.cat([nn.functional.one_hot(x.flatten(1)[:, i], n) for i, n in enumerate(leaf.nvec)], 1)
    assert torch.equal(OneHot(leaf.nvec)(x), expected.float())


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("axes", ["hw", "hwc", "chw"])
def test_images_reach_the_convolutions_as_scaled_channels(axes, stack, channels_last):
    height, width, channels = 10, 12, 1 if axes == "hw" else 3
    leaf = image({"hw": (10, 12), "hwc": (10, 12, 3), "chw": (3, 10, 12)}[axes], axes, stack=stack)
    network = made(spec(leaf), [8], channels_last)
    x = frames(leaf, 5)
    with_stack = x.unsqueeze(1) if stack == 1 else x  # [B, stack, ...]
    # By hand: one plane for each (frame of the stack, channel), the oldest frame first.
    planes = []
    for i in range(stack):
        frame = with_stack[:, i]
        if axes == "hw":
            planes.append(frame)
        else:
            planes += [frame[..., c] if axes == "hwc" else frame[:, c] for c in range(channels)]
    expected_input = torch.stack(planes, 1).float() / 255
    assert expected_input.shape == (5, stack * channels, height, width)
    expected = network.head(network.encoders[0].convolutions(expected_input).flatten(1), NO_NOISE)
    assert torch.allclose(network(x), expected, atol=1e-6)


@pytest.mark.parametrize("side", [84, 20])
def test_channels_last_gives_the_same_values_and_gradients(side):
    leaf = image((side, side), "hw", stack=4)
    torch.manual_seed(0)  # where a unit stands at the kink of its activation, rounding decides about its gradient
    last, first = (made(spec(leaf), [32], flag) for flag in (True, False))
    last.load_state_dict(first.state_dict())
    assert last.encoders[0].convolutions[0].weight.is_contiguous(memory_format=torch.channels_last)
    x = frames(leaf, 6)
    assert torch.allclose(last(x), first(x), atol=1e-6)
    for network in (last, first):
        network(x).square().sum().backward()
    for mine, theirs in zip(last.parameters(), first.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None and theirs.grad.abs().max() > 0
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "other_side"),
    [((15, 256), False), ((16, 128), True), ((16, 127), False), ((32, 1024), True), ((3, 4), False),
     ((2, 16, 128), False)],
)  # fmt: skip
def test_a_dense_layer_is_torchs_whichever_side_it_multiplies_from(shape, other_side):
    torch.manual_seed(0)
    given = [torch.randn(*shape), torch.randn(7, shape[-1]), torch.randn(7)]
    upstream = torch.randn(*shape[:-1], 7)
    found, expected = [], []
    for function, results in ((dense, found), (nn.functional.linear, expected)):
        tensors = [t.clone().requires_grad_() for t in given]
        y = function(*tensors)
        results += [y, *torch.autograd.grad(y, tensors, upstream)]
    assert (found[0].stride(-1) != 1) is other_side  # its rows lie side by side then
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-4)  # of sums of up to 1,024 products


def test_floats_of_an_image_are_not_scaled():
    leaf = image((8, 8, 2), "hwc", dtype="float32")
    network = made(spec(leaf), [])
    x = frames(leaf, 3)
    expected = network.head(network.encoders[0].convolutions(x.permute(0, 3, 1, 2)).flatten(1), NO_NOISE)
    assert torch.allclose(network(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "cnn", "filters", "features"),
    [
        ((84, 84), "auto", (32, 64, 64), 64 * 7 * 7),  # Mnih et al. 2015: 3136 features
        ((36, 36), "auto", (32, 64, 64), 64),
        ((35, 84), "auto", (16,), 16 * 33 * 82),
        ((10, 10), "auto", (16,), 16 * 8 * 8),  # MinAtar: 1024 features
        ((84, 84), "small", (16,), 16 * 82 * 82),
        ((84, 84), "efficient", (32, 64), 64 * 3 * 3),  # van Hasselt et al. 2019: 576 features
    ],
)
def test_the_encoder_follows_the_image_size(shape, cnn, filters, features):
    network = made(spec(image(shape, "hw")), [32], cnn=cnn)
    convolutions = [m for m in network.encoders[0].convolutions if isinstance(m, nn.Conv2d)]
    assert tuple(m.out_channels for m in convolutions) == filters
    assert network.head.layers[0].in_features == features


def test_several_leaves_are_joined_in_the_order_of_the_spec():
    leaves = (
        Leaf("observation.z", (2,), "float32", "vector"),
        Leaf("observation.a", (1,), "int64", "discrete", nvec=(3,)),
        Leaf("observation.m", (4,), "bool", "binary"),
        Leaf("observation.i", (8, 8), "uint8", "image", "hw", stack=2),
    )
    network = made(spec(*leaves, num_actions=5), [16, 16], activation="silu")
    x = [torch.randn(7, 2), torch.randint(3, (7, 1)), torch.rand(7, 4) < 0.5, frames(leaves[3], 7)]
    features = torch.cat([e(leaf) for e, leaf in zip(network.encoders, x, strict=True)], 1)
    assert features.shape == (7, 2 + 3 + 4 + 16 * 6 * 6)
    assert torch.equal(features[:, :2], x[0]) and torch.equal(features[:, 5:9], x[2].float())
    values = network(*x)
    assert values.shape == (7, 5) and values.dtype == torch.float32
    assert torch.equal(values, network.head(features, NO_NOISE))


def test_the_mlp_has_the_asked_widths_and_activation():
    network = made(spec(Leaf("observation", (4,), "float32", "vector"), num_actions=2), [120, 84], activation="tanh")
    assert [type(m) for m in network.head.layers] == [nn.Linear] * 3
    assert [type(m) for m in network.head.activations] == [nn.Tanh] * 2
    assert parameter_count(network) == 4 * 120 + 120 + 120 * 84 + 84 + 84 * 2 + 2


@pytest.mark.parametrize(("activation", "kind"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("silu", nn.SiLU)])
def test_each_activation_is_torchs(activation, kind):
    network = made(spec(Leaf("observation", (4,), "float32", "vector"), num_actions=2), [5], activation=activation)
    assert [type(m) for m in network.head.activations] == [kind]


def test_numbers_with_finite_bounds_are_scaled_when_asked():
    leaf = Leaf("observation", (2,), "float32", "vector", stack=2, low=(-1.2, -0.07), high=(0.6, 0.07))
    x = torch.tensor([[[-1.2, 0.07], [0.6, 0.0]]])
    assert torch.allclose(Flatten(leaf, scaled=True)(x), torch.tensor([[-1.0, 1.0, 1.0, 0.0]]), atol=1e-6)
    assert torch.equal(Flatten(leaf, scaled=False)(x), x.flatten(1))
    unbounded = Leaf("observation", (2,), "float32", "vector")
    assert torch.equal(Flatten(unbounded, scaled=True)(x[:, 0]), x[:, 0])
