"""The network of IQN: the return's quantiles at any given fractions (Dabney et al. 2018a, eq. 4 and section 3.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainer.config.algorithms import IQNConfig
from trainer.envs import EnvSpec
from trainer.networks.encoders import encoders_of
from trainer.networks.layers import noise_factors, noise_sizes
from trainer.networks.q_network import features, heads_of, trunk_of


class ImplicitQuantileNetwork(nn.Module):
    """Quantiles of each action's return; its value is their mean at even fractions in (0, risk_level].

    As `trainer.networks.q_network.QNetwork`, with the features multiplied by an embedding of the fraction before the
    last hidden layer.

    Args:
        spec: the environment.
        section: the algorithm's.
        channels_last: memory format of convolutions.

    Raises:
        ConfigError: `algorithm.scale_observations` is set, and no leaf has bounds.
        EnvError: the actions are not numbered.
    """

    def __init__(self, spec: EnvSpec, section: IQNConfig, channels_last: bool = True) -> None:
        super().__init__()
        self.encoders, width = encoders_of(spec, section, channels_last)
        self.trunk, widths = trunk_of(width, section, joined=True)
        self.embedding = FractionEmbedding(widths[0], section.fraction_cosines)
        self.head, self.value_head = heads_of(widths, section, spec.num_actions, outputs=1)
        count = section.num_acting_fractions
        self.acting_fractions: Tensor
        acting = (torch.arange(count) + 0.5) / count * section.risk_level
        self.register_buffer("acting_fractions", acting, persistent=False)
        self._noise_sizes = noise_sizes(self)
        self.noise_size = sum(self._noise_sizes)

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """Action values, float32 [B, num_actions].

        Args:
            leaves: of the observation in the spec's order, [B, ...] each.
            noise: standard normal [noise_size]; None: drawn in training mode, else the mean weights are used.
        """
        return self.quantiles(*leaves, fractions=self.acting_fractions, noise=noise).mean(-1)

    def quantiles(self, *leaves: Tensor, fractions: Tensor, noise: Tensor | None = None) -> Tensor:
        """Quantiles float32 [B, num_actions, K] of the return at `fractions`, float32 [K] or [B, K]."""
        factors = noise_factors(self, self._noise_sizes, noise, leaves[0].device)
        x = features(self.encoders, self.trunk, leaves, factors)
        x = x.unsqueeze(1) * self.embedding(fractions)  # [B, K, features]
        advantage = self.head(x, factors)
        if self.value_head is not None:
            advantage = self.value_head(x, factors) + advantage - advantage.mean(-1, keepdim=True)
        return advantage.transpose(1, 2)


class FractionEmbedding(nn.Module):
    """`relu(linear(cos(pi i tau), i = 0 .. C - 1))` of quantile fractions tau (Dabney et al. 2018a, eq. 4).

    Args:
        width: of the features that it is multiplied with.
        cosines: C.
    """

    def __init__(self, width: int, cosines: int) -> None:
        super().__init__()
        self.linear = nn.Linear(cosines, width)
        self.frequencies: Tensor
        self.register_buffer("frequencies", math.pi * torch.arange(cosines).float(), persistent=False)

    def forward(self, fractions: Tensor) -> Tensor:
        """[..., K] to [..., K, width]."""
        return torch.relu(self.linear(torch.cos(fractions.unsqueeze(-1) * self.frequencies)))
