"""The network that gives K numbers for each action, its value or a distribution: ours, or a user's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config.algorithms import NetworkConfig
from trainer.config.fields import ConfigError
from trainer.envs import EnvSpec
from trainer.envs.import_paths import part_at
from trainer.networks.q_network import QNetwork


def value_network(
    spec: EnvSpec, section: NetworkConfig, channels_last: bool, outputs: int = 1, values: nn.Module | None = None
) -> QNetwork | UsersNetwork:
    """The network of an algorithm with K numbers for each action.

    Args:
        spec: the environment.
        section: of the algorithm.
        channels_last: memory format of our convolutions.
        outputs: K; with 1 the number is the action's value.
        values: K numbers to a value, [B, A, K] to [B, A]; None: their mean.

    Raises:
        ConfigError: `algorithm.network` makes no such network.
        EnvError: the actions are not numbered.
    """
    if section.network == "auto":
        return QNetwork(spec, section, channels_last, outputs, values)
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
    _try(made, spec, section, outputs)
    return UsersNetwork(made, outputs, values)


def _try(network: nn.Module, spec: EnvSpec, section: NetworkConfig, outputs: int) -> None:
    """Call a user's network with two observations of zeros.

    Raises:
        ConfigError: it fails, or gives something else than K numbers for each action.
    """
    path = section.network
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
    wanted = [spec.num_actions] if outputs == 1 else [spec.num_actions, outputs]
    if not isinstance(values, Tensor) or list(values.shape) != [2, *wanted] or not values.is_floating_point():
        got = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        what = "the values of all actions" if outputs == 1 else f"{outputs} numbers of each action ({section.name})"
        raise ConfigError(
            f"algorithm.network={path} gave {got} for {given}: it must give {what}, floats "
            f"[batch, {', '.join(map(str, wanted))}]"
        )


class UsersNetwork(nn.Module):
    """A user's network with the methods of ours; it has no noisy layers.

    Args:
        network: leaves [B, ...] to float [B, num_actions, K], or [B, num_actions] with K = 1.
        outputs: K.
        values: K numbers to a value, [B, A, K] to [B, A]; None: their mean.
    """

    noise_size = 0
    added: Tensor

    def __init__(self, network: nn.Module, outputs: int = 1, values: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.outputs, self.values = network, outputs, values
        self.register_buffer("added", None, persistent=False)  # [K], to the numbers of every action

    def forward(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """Action values, float32 [B, num_actions], of leaves [B, ...] in the spec's order."""
        if self.outputs == 1 and self.values is None:
            values: Tensor = self.network(*leaves)
            return values.float()
        numbers = self.numbers(*leaves)
        return numbers.mean(-1) if self.values is None else self.values(numbers)

    def numbers(self, *leaves: Tensor, noise: Tensor | None = None) -> Tensor:
        """The K numbers of each action, float32 [B, num_actions, K]."""
        numbers: Tensor = self.network(*leaves).float()
        if self.outputs == 1:
            numbers = numbers.unsqueeze(-1)
        return numbers if self.added is None else numbers + self.added

    def shift(self, numbers: Tensor) -> None:
        """Add `numbers` [K] to those of every action: a constant, as nothing is known of the user's last layer."""
        self.added = numbers
