"""The greedy policy of one network: leaves of an observation -> best legal action and values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from trainer.acting.exploration import Seed, noise_of
from trainer.networks.scripting import script

Policy = Callable[[list[np.ndarray], np.ndarray | None], tuple[np.ndarray, np.ndarray]]


class Greedy(nn.Module):
    """Leaves, a mask if `masked`, noise if `noisy` -> best legal actions and values. `greedy_policy` records it.

    Args:
        network: leaves [N, ...] to values [N, A].
        masked: whether the leaves are followed by a mask, bool [N, A].
        noisy: whether the network's noise is the last input.
    """

    def __init__(self, network: nn.Module, masked: bool, noisy: bool) -> None:
        super().__init__()
        self.network, self.masked, self.noisy = network, masked, noisy

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions int64 [N] and values float32 [N, A], -inf where an action is illegal."""
        *seen, noise = inputs if self.noisy else (*inputs, None)
        *seen, mask = seen if self.masked else (*seen, None)
        values = self.network(*seen) if noise is None else self.network(*seen, noise=noise)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        return values.argmax(-1), values


def greedy_policy(
    network: nn.Module, seen: list[np.ndarray], mask: np.ndarray | None, seed: Seed | None = None
) -> Policy:
    """`policy(seen, mask)`: the best legal action of each row, int64 [N], and the values, float32 [N, A].

    The network is recorded for arrays of these shapes: the same operations, in half the time for a small MLP and few
    rows. The recording reads the network's parameters, so the policy uses new weights. Call it in inference mode.

    Args:
        network: leaves [N, ...] to values [N, A].
        seen: an example of the leaves.
        mask: an example of the legal actions, bool [N, A], or None without masks.
        seed: of a noisy network's noise, which each call draws once for all rows; None: the mean weights act.
    """
    noise = noise_of(network, seed)
    network.train(noise is not None)

    def tensors(seen: list[np.ndarray], mask: np.ndarray | None) -> list[Tensor]:
        drawn = [] if noise is None else [noise()]
        return [torch.from_numpy(array) for array in [*seen, *([] if mask is None else [mask]), *drawn]]

    with torch.no_grad():
        recorded = script(Greedy(network, mask is not None, noise is not None), tensors(seen, mask)).forward

    def policy(seen: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        action, values = recorded(*tensors(seen, mask))
        return action.numpy(), values.detach().numpy()

    return policy
