"""The network that gives the values of all actions: ours, or a user's (`algorithm.network`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config.algorithms import OneValueConfig
from trainer.config.fields import ConfigError
from trainer.envs import EnvSpec
from trainer.envs.import_paths import part_at
from trainer.networks.q_network import QNetwork


def value_network(spec: EnvSpec, section: OneValueConfig, channels_last: bool) -> QNetwork | UsersNetwork:
    """The network of an algorithm with one value for each action.

    Args:
        spec: the environment.
        section: of the algorithm.
        channels_last: memory format of our convolutions.

    Raises:
        ConfigError: `algorithm.network` makes no network of action values.
        EnvError: the actions are not numbered.
    """
    if section.network == "auto":
        return QNetwork(spec, section, channels_last)
    made = part_at(section.network)(spec, section, **section.network_kwargs)
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"algorithm.network={section.network} made {type(made).__name__}: it must make a torch.nn.Module"
        )
    for part in made.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"algorithm.network={section.network} has a {type(part).__name__}, whose running statistics are no "
                "weights, so nobody who acts would get them: use torch.nn.LayerNorm or torch.nn.GroupNorm"
            )
    network = UsersNetwork(made)
    _try(network, spec, section.network)
    return network


def _try(network: UsersNetwork, spec: EnvSpec, path: str) -> None:
    """Call a user's network with two observations of zeros.

    Raises:
        ConfigError: it fails, or gives something else than action values.
    """
    examples = [torch.zeros(2, *leaf.seen_shape, dtype=getattr(torch, leaf.dtype)) for leaf in spec.leaves]
    given = ", ".join(
        f"{leaf.name} {example.dtype} {list(example.shape)}"
        for leaf, example in zip(spec.leaves, examples, strict=True)
    )
    try:
        with torch.no_grad():
            values = network(*examples)
    except Exception as error:  # a user's code may raise anything
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"algorithm.network={path} failed for {given}: {type(error).__name__}: {first}") from error
    wanted = [2, spec.num_actions]
    if not isinstance(values, Tensor) or list(values.shape) != wanted or not values.is_floating_point():
        got = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ConfigError(
            f"algorithm.network={path} gave {got} for {given}: it must give the values of all actions, floats "
            f"[batch, {spec.num_actions}]"
        )


class UsersNetwork(nn.Module):
    """A user's network with the methods of ours; it has no noisy layers.

    Args:
        network: leaves [B, ...] to action values [B, num_actions].
    """

    noise_size = 0

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """Action values, float32 [B, num_actions], of leaves [B, ...] in the spec's order."""
        values: Tensor = self.network(*leaves)
        return values.float()

    def numbers(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """The same, float32 [B, num_actions, 1]."""
        return self.forward(*leaves).unsqueeze(-1)
