"""Layers that networks are made of: linear ones, plain and noisy, and stacks of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.config.registries import ACTIVATIONS, registered


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x weight^T + bias`: [..., I], [O, I] and [O] to [..., O], as torch's linear.

    On a CPU a batch of few rows and many columns is computed as the transposed product, which takes half (AVX-512) to
    five sixths (AVX2) of the time; with AVX-512 that saves 11 % of a DQN update on MinAtar, 4 % with Nature's
    convolutions. Below about 16 rows the library is fast without it, and with more rows than an eighth of the columns
    nothing is gained.
    """
    if torch.compiler.is_exporting():  # for batches of any size
        return nn.functional.linear(x, weight, bias)
    if x.device.type == "cpu" and x.ndim == 2 and 16 <= x.shape[0] <= x.shape[1] // 8:
        return torch.addmm(bias[:, None], weight, x.t()).t()
    return nn.functional.linear(x, weight, bias)


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry factorised Gaussian noise (Fortunato et al. 2018, section 3, eq. 9 to 11).

    `y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out)`, with `f(e) = sign(e) sqrt(|e|)`.

    TorchRL's layer computes the same, but has the noise in buffers: they would be published with the weights and double
    their size, and a recorded update would always see the same noise. Here each call gets the noise as an argument.

    Args:
        inputs: I.
        outputs: O.
        sigma: initial noise, over sqrt(I).
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        self.inputs, self.noise_size = inputs, inputs + outputs
        bound = 1 / math.sqrt(inputs)
        self.weight_mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mu = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))

    def forward(self, x: Tensor, factors: Tensor | None = None) -> Tensor:
        """[..., I] to [..., O]; `factors` are f(e), [I + O], of standard normal e; None: the mean weights are used."""
        if factors is None:
            return dense(x, self.weight_mu, self.bias_mu)
        e_in, e_out = factors[: self.inputs], factors[self.inputs :]
        # A pass over the weights takes about a fifth of their product with a batch of 32; addcmul saves one.
        weight = torch.addcmul(self.weight_mu, self.weight_sigma * e_out[:, None], e_in)
        return dense(x, weight, torch.addcmul(self.bias_mu, self.bias_sigma, e_out))


class MLP(nn.Module):
    """Linear layers with an activation between them, and after the last one if `ends_active`.

    Args:
        sizes: widths, that of the input first.
        activation: a key of `ACTIVATIONS`, or an import path.
        sigma: initial noise of noisy layers; None: plain layers.
        ends_active: whether an activation follows the last layer too.
    """

    def __init__(self, sizes: list[int], activation: str, sigma: float | None, ends_active: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(a, b) if sigma is None else NoisyLinear(a, b, sigma) for a, b in itertools.pairwise(sizes)
        )
        kind = registered(ACTIVATIONS, activation)
        self.activations = nn.ModuleList(kind() for _ in range(len(self.layers) - (0 if ends_active else 1)))

    def forward(self, x: Tensor, factors: Iterator[Tensor]) -> Tensor:
        """[..., sizes[0]] to [..., sizes[-1]]; each noisy layer takes the next of `factors`, if there is one."""
        for i, layer in enumerate(self.layers):
            if isinstance(layer, nn.Linear):
                x = dense(x, layer.weight, layer.bias)
            else:
                x = layer(x, next(factors, None))
            if i < len(self.activations):
                x = self.activations[i](x)
        return x


def noise_sizes(network: nn.Module) -> list[int]:
    """Length of the noise of each noisy layer of a network, in the order of its modules."""
    return [module.noise_size for module in network.modules() if isinstance(module, NoisyLinear)]


def noise_factors(network: nn.Module, sizes: list[int], noise: Tensor | None, device: torch.device) -> Iterator[Tensor]:
    """f(e) of each noisy layer, computed for all noise at once; no items where the mean weights are used.

    Args:
        network: its mode counts, training or not.
        sizes: from `noise_sizes`.
        noise: standard normal, float32 [sum of sizes]; None: drawn in training mode, else the mean weights are used.
        device: of the noise that is drawn.
    """
    if not sizes or (noise is None and not network.training):
        return iter(())
    noise = torch.randn(sum(sizes), device=device) if noise is None else noise
    return iter((noise.sign() * noise.abs().sqrt()).split(sizes))


def parameter_count(module: nn.Module) -> int:
    """Number of trained parameters."""
    return sum(math.prod(p.shape) for p in module.parameters())
