"""Networks for actions within a box: actors, and ensembles of critics as one batched product.

Inside of losses each of the A numbers of an action is scaled to [-1, 1]; `Bounds` scales it to the environment's box.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor, nn

from trainer.config.algorithms import ActorCriticConfig
from trainer.config.registries import ACTIVATIONS, registered
from trainer.envs import BoxAction, EnvError, EnvSpec
from trainer.networks.encoders import encoders_of
from trainer.networks.layers import MLP

LOG_STD = (-20.0, 2.0)  # bounds of the logarithm of a Gaussian's standard deviation, as in the code of Haarnoja et al.


class Bounds(nn.Module):
    """Scales actions between [-1, 1] and the environment's box; no parameters.

    Args:
        action: the box.
    """

    def __init__(self, action: BoxAction) -> None:
        super().__init__()
        self.shape, self.size = action.shape, math.prod(action.shape)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", torch.tensor(action.low), persistent=False)
        self.register_buffer("high", torch.tensor(action.high), persistent=False)

    def to_box(self, scaled: Tensor) -> Tensor:
        """[B, A] in [-1, 1] to actions, float32 [B, *shape] within the bounds."""
        action = self.low + (scaled + 1) * ((self.high - self.low) / 2)
        return action.clamp(self.low, self.high).unflatten(-1, self.shape)  # rounding may exceed a bound

    def to_scaled(self, action: Tensor) -> Tensor:
        """Actions [B, *shape] to [B, A] in [-1, 1]."""
        width = self.high - self.low
        return (action.flatten(1) - self.low) * (2 / width.where(width > 0, 1)) - 1


class Actor(nn.Module):
    """Numbers for an action from the leaves of an observation: encoders, hidden layers, and a linear head.

    Args:
        spec: the environment, whose actions are a box.
        section: of the algorithm.
        channels_last: memory format of convolutions.
        outputs: numbers for each of the A numbers of an action: 1, or 2 for a Gaussian.
    """

    def __init__(self, spec: EnvSpec, section: ActorCriticConfig, channels_last: bool, outputs: int) -> None:
        super().__init__()
        self.bounds = Bounds(box_of(spec))
        self.encoders, self.trunk, self.head = layers_of(spec, section, channels_last, outputs * self.bounds.size)

    def numbers(self, *leaves: Tensor) -> Tensor:
        """Leaves [B, ...] to float32 [B, outputs * A]."""
        return self.head(self.trunk(encoded(self.encoders, leaves), iter(())))

    def distribution(self, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the standard deviation of a Gaussian before tanh, [B, A] each; with 2 outputs."""
        mean, log_std = self.numbers(*leaves).float().chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """The deterministic action, float32 [B, *shape] within the bounds; with 2 outputs `noise` [B, A] makes it vary.

        The deterministic action is tanh of the mean.
        """
        mean = self.numbers(*leaves)
        if mean.shape[-1] > self.bounds.size:
            mean, log_std = self.distribution(*leaves)
            mean = mean if noise is None else mean + log_std.exp() * noise
        return self.bounds.to_box(mean.tanh())


class Categorical(nn.Module):
    """Logits of numbered actions from the leaves of an observation.

    Args:
        spec: the environment, whose actions are numbered.
        section: of the algorithm.
        channels_last: memory format of convolutions.
    """

    def __init__(self, spec: EnvSpec, section: ActorCriticConfig, channels_last: bool) -> None:
        super().__init__()
        self.num_actions = spec.num_actions
        self.encoders, self.trunk, self.head = layers_of(spec, section, channels_last, self.num_actions)

    def forward(self, *leaves: Tensor) -> Tensor:
        """Leaves [B, ...] to float32 [B, num_actions]."""
        return self.head(self.trunk(encoded(self.encoders, leaves), iter(()))).float()


class EnsembleLinear(nn.Module):
    """Linear layers of n networks as one batched product, initialised as torch's.

    Args:
        count: n.
        inputs: I.
        outputs: O.
    """

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """[n, B, I] to [n, B, O]."""
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleNorm(nn.Module):
    """Layer normalisation of n networks at once (Ba et al. 2016).

    Args:
        count: n.
        features: F.
    """

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.full((count, 1, features), value)) for value in (1.0, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        """[n, B, F] to [n, B, F]."""
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class Critics(nn.Module):
    """An ensemble of n critics: leaves, and in a box a scaled action, to K numbers for each.

    All layers are batched products over the ensemble. Encoders with parameters, as convolutions, are shared by it.

    Args:
        spec: the environment.
        section: of the algorithm.
        channels_last: memory format of convolutions.
        count: n.
        outputs: K.
        layer_norm: whether each hidden layer is normalised before its activation.
        dropout: share of the hidden units that each pass leaves out.

    Attributes:
        noise: shape for each transition of the numbers that dropout needs, of each hidden layer.
    """

    def __init__(
        self, spec: EnvSpec, section: ActorCriticConfig, channels_last: bool, count: int, outputs: int,
        layer_norm: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.count = count
        self.bounds = Bounds(spec.action) if isinstance(spec.action, BoxAction) else None
        self.encoders, width = encoders_of(spec, section, channels_last)
        widths = [width + (0 if self.bounds is None else self.bounds.size), *section.hidden_sizes, outputs]
        self.layers = nn.ModuleList(EnsembleLinear(count, a, b) for a, b in itertools.pairwise(widths))
        kind = registered(ACTIVATIONS, section.activation)
        self.activations = nn.ModuleList(kind() for _ in section.hidden_sizes)
        self.norms = nn.ModuleList(EnsembleNorm(count, size) for size in (section.hidden_sizes if layer_norm else []))
        self.dropout = dropout
        self.noise = tuple((count, size) for size in section.hidden_sizes) if dropout else ()

    def forward(self, *leaves: Tensor, action: Tensor | None = None, noise: Sequence[Tensor] = ()) -> Tensor:
        """Leaves [B, ...] and a scaled action [B, A] to float32 [n, B, K].

        Args:
            leaves: of the observation.
            action: in a box.
            noise: standard normal numbers for dropout, [B, n, units] of each hidden layer; empty: no unit is left out.
        """
        x = encoded(self.encoders, leaves)
        x = (x if action is None else torch.cat([x, action], -1)).expand(self.count, -1, -1)
        for i, activation in enumerate(self.activations):
            x = self.layers[i](x)
            if noise:  # a unit is left out if its number is below the quantile of this share
                kept = noise[i].movedim(1, 0) > NormalDist().inv_cdf(self.dropout)
                x = x * kept / (1 - self.dropout)
            x = activation(self.norms[i](x) if self.norms else x)
        return self.layers[-1](x).float()


def layers_of(
    spec: EnvSpec, section: ActorCriticConfig, channels_last: bool, outputs: int
) -> tuple[nn.ModuleList, MLP, nn.Linear]:
    """Encoders, hidden layers and head of an actor."""
    encoders, width = encoders_of(spec, section, channels_last)
    widths = [width, *section.hidden_sizes]
    return encoders, MLP(widths, section.activation, None, ends_active=True), nn.Linear(widths[-1], outputs)


def encoded(encoders: nn.ModuleList, leaves: tuple[Tensor, ...]) -> Tensor:
    """Leaves [B, ...] through their encoders, float32 [B, features]."""
    parts = [encoder(leaf) for encoder, leaf in zip(encoders, leaves, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def box_of(spec: EnvSpec) -> BoxAction:
    """The environment's box.

    Raises:
        EnvError: its actions are numbered.
    """
    if not isinstance(spec.action, BoxAction):
        raise EnvError(f"{spec.id}: its actions are numbered, and this algorithm moves within a box.")
    return spec.action
