"""The network of algorithms with K outputs for each action: its value, or a distribution of its return."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.config.algorithms import ValueConfig
from trainer.envs import EnvSpec
from trainer.networks.encoders import encoders_of
from trainer.networks.layers import MLP, noise_factors, noise_sizes


class QNetwork(nn.Module):
    """Action values of an observation, computed from K outputs for each action.

    Each leaf has an encoder; an MLP follows. A dueling network (Wang et al. 2016, eq. 9) has two last hidden layers,
    one for V and one for A, and `Q = V + A - mean A`.

    Args:
        spec: the environment.
        section: of the algorithm.
        channels_last: memory format of convolutions.
        outputs: K; with 1 the output is the action's value.
        values: K outputs to a value, [B, A, K] to [B, A]; None: their mean.

    Raises:
        ConfigError: `algorithm.scale_observations` is set, and no leaf has bounds.
        EnvError: the actions are not numbered.
    """

    def __init__(
        self,
        spec: EnvSpec,
        section: ValueConfig,
        channels_last: bool = True,
        outputs: int = 1,
        values: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_actions, self.outputs = spec.num_actions, outputs
        self.encoders, width = encoders_of(spec, section, channels_last)
        self.trunk, widths = trunk_of(width, section, section.dueling)
        self.head, self.value_head = heads_of(widths, section, spec.num_actions, outputs)
        self.values = values
        self._noise_sizes = noise_sizes(self)
        self.noise_size = sum(self._noise_sizes)

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """Action values, float32 [B, num_actions].

        Args:
            leaves: of the observation in the spec's order, [B, ...] each.
            noise: standard normal [noise_size]; None: drawn in training mode, else the mean weights are used.
        """
        numbers = self.numbers(*leaves, noise=noise)
        if self.values is not None:
            return self.values(numbers)
        return numbers.squeeze(-1) if self.outputs == 1 else numbers.mean(-1)

    def numbers(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """The K outputs of each action, float32 [B, num_actions, K]."""
        factors = noise_factors(self, self._noise_sizes, noise, leaves[0].device)
        x = features(self.encoders, self.trunk, leaves, factors)
        advantage = self.head(x, factors).unflatten(-1, (self.num_actions, self.outputs))
        if self.value_head is None:
            return advantage
        return self.value_head(x, factors).unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)

    @torch.no_grad()
    def shift(self, numbers: Tensor) -> None:
        """Add `numbers` [K] to the outputs of every action, in the bias of the last layer (a dueling network: of V)."""
        head = self.head if self.value_head is None else self.value_head
        bias = head.layers[-1].get_parameter("bias" if isinstance(head.layers[-1], nn.Linear) else "bias_mu")
        bias.add_(numbers.repeat(len(bias) // len(numbers)))


def trunk_of(width: int, section: ValueConfig, joined: bool) -> tuple[MLP | None, list[int]]:
    """The hidden layers before the heads, and the widths of a head's layers, that of its input first.

    Args:
        width: number of features from the encoders.
        section: of the algorithm.
        joined: whether only the last hidden layer is part of the heads, as there are two heads, or as quantile
            fractions come in before it. Else all hidden layers are.
    """
    widths = [width, *section.hidden_sizes]
    cut = max(0, len(widths) - 2) if joined else 0
    trunk = MLP(widths[: cut + 1], section.activation, _sigma(section), ends_active=True) if cut else None
    return trunk, widths[cut:]


def heads_of(widths: list[int], section: ValueConfig, num_actions: int, outputs: int) -> tuple[MLP, MLP | None]:
    """The head with the outputs of each action, and, for a dueling network, that of the state's value."""
    head = MLP([*widths, num_actions * outputs], section.activation, _sigma(section))
    return head, MLP([*widths, outputs], section.activation, _sigma(section)) if section.dueling else None


def features(
    encoders: nn.ModuleList, trunk: MLP | None, leaves: tuple[Tensor, ...], factors: Iterator[Tensor]
) -> Tensor:
    """Leaves [B, ...] through their encoders and the trunk: float32 [B, features]."""
    encoded = [encoder(leaf) for encoder, leaf in zip(encoders, leaves, strict=True)]
    x = encoded[0] if len(encoded) == 1 else torch.cat(encoded, 1)
    return x if trunk is None else trunk(x, factors)


def _sigma(section: ValueConfig) -> float | None:
    return section.noisy_sigma if section.noisy else None
