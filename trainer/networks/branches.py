"""The network of actions with several choices at once (Tavakoli et al. 2018, Action Branching Architectures)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config.algorithms import ValueConfig
from trainer.envs import EnvSpec
from trainer.envs.actions import BranchedAction
from trainer.networks.encoders import encoders_of
from trainer.networks.layers import noise_factors, noise_sizes
from trainer.networks.q_network import features, heads_of, trunk_of


class BranchedNetwork(nn.Module):
    """Values of each choice of D branches, of at most M choices each.

    A trunk as in `trainer.networks.q_network.QNetwork` is shared; each branch has its own outputs of the last layer. A
    dueling network adds one value of the state: `Q_d(s, a_d) = V(s) + A_d(s, a_d) - mean A_d(s, .)` (eq. 1).

    Args:
        spec: the environment, whose actions are a `BranchedAction`.
        section: of the algorithm.
        channels_last: memory format of convolutions.

    Raises:
        ConfigError: `algorithm.scale_observations` is set, and no leaf has bounds.

    Attributes:
        shape: of an action; it has D numbers.
    """

    real: Tensor

    def __init__(self, spec: EnvSpec, section: ValueConfig, channels_last: bool = True) -> None:
        super().__init__()
        action = spec.action
        assert isinstance(action, BranchedAction)
        self.shape, self.branches, self.most = action.shape, len(action.nvec), max(action.nvec)
        self.encoders, width = encoders_of(spec, section, channels_last)
        self.trunk, widths = trunk_of(width, section, section.dueling)
        self.head, self.value_head = heads_of(widths, section, self.branches * self.most, outputs=1)
        real = torch.arange(self.most) < torch.tensor(action.nvec)[:, None]
        self.register_buffer("real", real, persistent=False)  # [D, M]: the choices that a branch has
        self._noise_sizes = noise_sizes(self)
        self.noise_size = sum(self._noise_sizes)

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """Values float32 [B, D, M]; -inf beyond a branch's choices.

        Args:
            leaves: of the observation in the spec's order, [B, ...] each.
            noise: standard normal [noise_size]; None: drawn in training mode, else the mean weights are used.
        """
        factors = noise_factors(self, self._noise_sizes, noise, leaves[0].device)
        x = features(self.encoders, self.trunk, leaves, factors)
        values = self.head(x, factors).unflatten(-1, (self.branches, self.most))
        if self.value_head is not None:
            total = torch.where(self.real, values, 0.0).sum(-1, keepdim=True)
            mean = total / self.real.sum(-1, keepdim=True)
            values = self.value_head(x, factors).unsqueeze(-1) + values - mean
        return values.masked_fill(~self.real, -torch.inf)
