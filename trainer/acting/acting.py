"""How an agent acts by its network and explores, as a value of its algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from trainer.acting.exploration import ByEpsilon, MakeExplorer

Choose = Callable[[nn.Module, list[Tensor], Tensor | None, Tensor | None], tuple[Tensor, Tensor]]


def best_action(
    network: nn.Module, leaves: list[Tensor], mask: Tensor | None, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The best legal action of each row, int64 [N], and the values, float32 [N, A], -inf where it is illegal.

    Args:
        network: leaves [N, ...] to values [N, A].
        leaves: of the observation, [N, ...] each.
        mask: legal actions, bool [N, A], or None.
        noise: of the network's noisy layers, float32 [size], or None for the mean weights.
    """
    values = network(*leaves) if noise is None else network(*leaves, noise=noise)
    if mask is not None:
        values = values.masked_fill(~mask, -torch.inf)
    return values.argmax(-1), values


def best_choices(
    network: nn.Module, leaves: list[Tensor], mask: Tensor | None, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The best choice of each branch, int64 [N, *shape], and the mean over branches of their values, float32 [N, 1].

    Args:
        network: leaves [N, ...] to values [N, D, M], -inf beyond a branch's choices; `shape` is that of an action.
        leaves: of the observation, [N, ...] each.
        mask: None.
        noise: of the network's noisy layers, float32 [size], or None for the mean weights.
    """
    values = network(*leaves) if noise is None else network(*leaves, noise=noise)
    action = values.argmax(-1).unflatten(-1, cast(tuple[int, ...], network.shape))
    return action, values.amax(-1).mean(-1, keepdim=True)


def point_in_box(
    network: nn.Module, leaves: list[Tensor], mask: Tensor | None, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The action of each row, float32 [N, *shape]; the values are NaN, as an actor knows none.

    Args:
        network: leaves [N, ...], and `noise`, to actions.
        leaves: of the observation, [N, ...] each.
        mask: None.
        noise: standard normal, float32 [N, A], or None for the deterministic action.
    """
    action = network(*leaves) if noise is None else network(*leaves, noise=noise)
    return action, torch.full((action.shape[0], 1), torch.nan, dtype=torch.float32, device=action.device)


def sampled_action(
    network: nn.Module, leaves: list[Tensor], mask: Tensor | None, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A legal action of each row, int64 [N], drawn by the network's logits; the values are NaN.

    The action with the largest sum of logit and Gumbel noise is a draw of the softmax (Maddison et al. 2014). That
    noise is `-ln(-ln(F(x)))` of normal x with the normal distribution F.

    Args:
        network: leaves [N, ...] to logits [N, A].
        leaves: of the observation, [N, ...] each.
        mask: legal actions, bool [N, A], or None.
        noise: standard normal, float32 [N, A], or None for the most probable action.
    """
    logits = network(*leaves)
    if noise is not None:
        logits = logits - (-torch.special.log_ndtr(noise)).log()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return logits.argmax(-1), torch.full((logits.shape[0], 1), torch.nan, dtype=torch.float32, device=logits.device)


def noise_of_logits(network: nn.Module, rows: int) -> tuple[int, ...]:
    """Shape of the noise of a categorical policy: a number for each action."""
    return rows, cast(int, network.num_actions)


def noise_of_actions(network: nn.Module, rows: int) -> tuple[int, ...]:
    """Shape of the noise of a Gaussian policy: a number for each number of each action."""
    return rows, cast(int, network.bounds.size)


def noise_of_layers(network: nn.Module, rows: int) -> tuple[int, ...]:
    """Shape of the noise of a network's noisy layers, one draw for all rows (Fortunato et al. 2018)."""
    return (getattr(network, "noise_size", 0),)


def as_they_are(values: Tensor) -> Tensor:
    """Values that are returns."""
    return values


@dataclass(frozen=True)
class Acting:
    """How an agent acts by its network, and explores. The default is that of values of numbered actions.

    Args:
        choose: `choose(network, leaves, mask, noise) -> (actions [N, *shape], values [N, A])`, which is recorded.
            Without noise the actions are the greedy ones.
        noise_shape: `noise_shape(network, N)`: shape of the standard normal numbers that a worker hands to `choose` in
            each vector step; with a 0 in it there are none.
        explorer: makes what then changes the actions.
        to_returns: values of the network to the returns that they stand for.
    """

    choose: Choose = best_action
    noise_shape: Callable[[nn.Module, int], tuple[int, ...]] = noise_of_layers
    explorer: MakeExplorer = ByEpsilon
    to_returns: Callable[[Tensor], Tensor] = as_they_are


VALUES = Acting()


def acting_of(policy: nn.Module) -> Acting:
    """How an agent acts by a policy of `trainer.algorithms.make_policy`."""
    return cast(Acting, policy.acting)
