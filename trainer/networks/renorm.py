"""Critics with batch renormalisation (Ioffe 2017), for CrossQ."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from trainer.config.algorithms import CrossQConfig
from trainer.envs import EnvSpec
from trainer.networks.continuous import Critics, EnsembleLinear, encoded

EPS = 1e-3


class BatchRenorm(nn.Module):
    """Batch renormalisation of n networks at once (Ioffe 2017, algorithm 1).

    `y = ((x - mean_B) / std_B r + d) weight + bias` with `r = clip(std_B / std, 1 / max_r, max_r)` and
    `d = clip((mean_B - mean) / std, -max_d, max_d)`, through which no gradient goes; mean_B and std_B are the batch's,
    mean and std running averages. During the warm-up r = 1 and d = 0, as in batch normalisation.

    Args:
        count: n.
        features: F.
        config: momentum of the averages, length of the warm-up.
    """

    MAX_R, MAX_D = 3.0, 5.0

    def __init__(self, count: int, features: int, config: CrossQConfig) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.full((count, 1, features), value)) for value in (1.0, 0.0))
        self.momentum, self.warmup = config.renorm_momentum, config.renorm_warmup_updates
        self.mean: Tensor
        self.var: Tensor
        self.updates: Tensor
        self.register_buffer("mean", torch.zeros(count, 1, features))
        self.register_buffer("var", torch.ones(count, 1, features))
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, x: Tensor, statistics: list[Tensor] | None) -> Tensor:
        """[n, B, F] to [n, B, F].

        Args:
            x: the batch.
            statistics: takes new values of `mean`, `var` and `updates`; None: the running averages normalise.
        """
        std = (self.var + EPS).sqrt()
        if statistics is None:
            return (x - self.mean) / std * self.weight + self.bias
        mean_b, var_b = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
        std_b = (var_b + EPS).sqrt()
        with torch.no_grad():
            warm = (self.updates >= self.warmup).float()
            r = 1 + warm * ((std_b / std).clamp(1 / self.MAX_R, self.MAX_R) - 1)
            d = warm * ((mean_b - self.mean) / std).clamp(-self.MAX_D, self.MAX_D)
            statistics += [
                self.mean + self.momentum * (mean_b - self.mean),
                self.var + self.momentum * (var_b - self.var),
                self.updates + 1,
            ]
        return ((x - mean_b) / std_b * r + d) * self.weight + self.bias


class RenormCritics(nn.Module):
    """As `trainer.networks.continuous.Critics`, with batch renormalisation of the input and after each activation.

    Args:
        spec: the environment, whose actions are a box.
        section: of the algorithm.
        channels_last: memory format of convolutions.
        count: n.
        outputs: K.
    """

    def __init__(self, spec: EnvSpec, section: CrossQConfig, channels_last: bool, count: int, outputs: int) -> None:
        super().__init__()
        self.critics = Critics(spec, section, channels_last, count, outputs)
        self.bounds, self.count, self.noise = self.critics.bounds, count, self.critics.noise
        widths = [cast(EnsembleLinear, layer).weight.shape[1] for layer in self.critics.layers]
        self.norms = nn.ModuleList(BatchRenorm(count, width, section) for width in widths)

    def forward(self, *leaves: Tensor, action: Tensor, statistics: list[Tensor] | None = None) -> Tensor:
        """Leaves [B, ...] and a scaled action [B, A] to float32 [n, B, K]; `statistics` as in `BatchRenorm`."""
        critics = self.critics
        x = torch.cat([encoded(critics.encoders, leaves), action], -1).expand(self.count, -1, -1)
        for norm, layer, activation in zip(
            self.norms, critics.layers, [*critics.activations, nn.Identity()], strict=True
        ):
            x = activation(layer(norm(x, statistics)))
        return x.float()
