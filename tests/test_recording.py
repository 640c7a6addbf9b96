"""The recording of a function as a list of tensor operations: what is shared, replaced and left alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.networks.recording import record


def recorded(function, *example: Tensor):
    """The recording, and how often it calls each operation, as {"aten::relu": 1}."""
    run = record(function, list(example), "trace")
    counts: dict[str, int] = {}
    for node in run.inlined_graph.nodes():
        counts[node.kind()] = counts.get(node.kind(), 0) + 1
    return run, counts


def test_what_is_computed_twice_of_the_same_tensors_is_computed_once():
    def two_looks(x: Tensor) -> tuple[Tensor, ...]:
        return (x.to(torch.float32) / 255).sum(), (x.to(torch.float32) / 255).mean(), x.to(torch.float32).max()

    x = torch.randint(0, 256, (5, 7), dtype=torch.uint8)
    run, counts = recorded(two_looks, x)
    assert counts["aten::_to_copy"] == 1 and counts["aten::div"] == 1
    for _ in range(3):
        x.random_(0, 256)
        assert all(torch.equal(a, b) for a, b in zip(run(x), two_looks(x), strict=True))


def test_a_whole_number_is_not_taken_for_the_same_fraction():
    def products(x: Tensor) -> tuple[Tensor, ...]:
        return x * 1, x * 1.0

    run, _ = recorded(products, torch.arange(3))
    assert [tensor.dtype for tensor in run(torch.arange(3))] == [torch.int64, torch.float32]


def test_random_numbers_are_drawn_as_often_as_written():
    def noise(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand_like(x), torch.rand_like(x)

    x = torch.zeros(100)
    run, counts = recorded(noise, x)
    assert counts["aten::rand_like"] == 2
    torch.manual_seed(3)
    one, two = run(x)
    torch.manual_seed(3)
    assert not torch.equal(one, two)
    assert torch.equal(torch.stack((one, two)), torch.stack(noise(x)))


def test_nothing_around_a_tensor_that_is_written_in_place_is_shared():
    def counting(x: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        before = total[:2] * 2
        own, other = torch.zeros_like(x), torch.zeros_like(x)
        own.view(-1).add_(1)
        total[:2].add_(x.sum())
        return before, total[:2] * 2, own + x, other + x

    x, total, expected = torch.arange(4.0), torch.ones(3), torch.ones(3)
    run, _ = recorded(counting, x, total)
    assert total.tolist() == [1, 1, 1]  # recorded on copies
    for _ in range(3):
        results = run(x, total)
        assert all(torch.equal(a, b) for a, b in zip(results, counting(x, expected), strict=True))
    assert total.tolist() == [19, 19, 1]


def test_a_linear_layer_stays_one_operation():
    layer = nn.Linear(1026, 24)
    x = torch.randn(8, 1026)
    run, counts = recorded(
        lambda x, weight, bias: (nn.functional.linear(x, weight, bias),), x, layer.weight, layer.bias
    )
    assert counts["aten::linear"] == 1 and "aten::t" not in counts and "aten::mm" not in counts
    with torch.no_grad():
        for _ in range(3):  # TorchScript optimises from the second call on
            assert torch.equal(run(x, layer.weight, layer.bias)[0], layer(x))


def test_the_backward_of_convolutions_is_recorded_with_and_without_the_images_gradient():
    first, second = nn.Conv2d(2, 4, 3).requires_grad_(False), nn.Conv2d(4, 3, 3).requires_grad_(False)

    def gradients(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_(True) for p in parameters]
            hidden = nn.functional.conv2d(x, leaves[0], leaves[1], stride=2).relu()
            return torch.autograd.grad(nn.functional.conv2d(hidden, leaves[2], leaves[3]).square().sum(), leaves)

    arguments = [torch.randn(5, 2, 12, 12), *first.parameters(), *second.parameters()]
    run, counts = recorded(gradients, *arguments)
    assert counts["aten::convolution_backward"] == 2
    for _ in range(3):
        arguments[0].normal_()
        assert all(torch.equal(a, b) for a, b in zip(run(*arguments), gradients(*arguments), strict=True))


def test_a_view_and_its_inverse_are_left_out():
    def there_and_back(x: Tensor) -> tuple[Tensor, ...]:
        column = x.unsqueeze(1).squeeze(1).view(3, 4, 1).squeeze(-1)
        return column * 2, x.t().t() + x, x.sum(0, keepdim=True).view(4)

    x = torch.randn(3, 4)
    run, counts = recorded(there_and_back, x)
    assert not {"aten::view", "aten::squeeze", "aten::unsqueeze", "aten::t"} & counts.keys()
    assert all(torch.equal(a, b) for a, b in zip(run(x), there_and_back(x), strict=True))


def test_what_depends_on_shapes_alone_is_computed_once():
    def shares(x: Tensor) -> tuple[Tensor, ...]:
        mine = torch.ones_like(x.sum()).expand(3) / 3
        return x * mine, torch.full_like(x, 2.0)

    x = torch.randn(3)
    run, counts = recorded(shares, x)
    assert not {"aten::ones_like", "aten::expand", "aten::div"} & counts.keys()
    run(x)[1].fill_(7.0)  # a result belongs to the caller
    assert all(torch.equal(a, b) for a, b in zip(run(x), shares(x), strict=True))
