"""A network: values of all actions of an observation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Two linear layers with a shortcut between them.

    Args:
        inputs: number of an observation's numbers.
        actions: number of actions.
        width: of the hidden layers.
    """

    def __init__(self, inputs: int, actions: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
        self.last = nn.Linear(width, actions)

    def forward(self, observation: Tensor) -> Tensor:
        """Float32 [B, inputs] to action values, float32 [B, actions]."""
        x = torch.relu(self.first(observation.flatten(1)))
        return self.last(x + torch.relu(self.second(x)))


def build(spec: Any, section: Any, width: int = 32) -> nn.Module:
    """The network for an environment: `algorithm.network=corridor.network:build algorithm.network_kwargs.width=64`.

    Args:
        spec: the environment's `EnvSpec`; the network is called with one tensor for each of `spec.leaves`.
        section: the section `algorithm` of the configuration.
        width: of the hidden layers.
    """
    (leaf,) = spec.leaves
    return Residual(leaf.shape[0] * leaf.stack, spec.num_actions, width)
