"""The policy of one network: leaves of an observation -> action and values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from trainer.acting.acting import VALUES, Acting, Choose
from trainer.acting.exploration import Seed, noise_of
from trainer.networks.scripting import script

Policy = Callable[[list[np.ndarray], np.ndarray | None], tuple[np.ndarray, np.ndarray]]


class Chooser(nn.Module):
    """Leaves, a mask if `masked`, noise if `noisy` -> actions and values. `greedy_policy` records it.

    Args:
        network: of the agent.
        choose: see `trainer.acting.acting.Acting`.
        masked: whether the leaves are followed by a mask, bool [N, A].
        noisy: whether noise is the last input.
    """

    def __init__(self, network: nn.Module, choose: Choose, masked: bool, noisy: bool) -> None:
        super().__init__()
        self.network, self.choose, self.masked, self.noisy = network, choose, masked, noisy

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, *shape] and values float32 [N, A]."""
        seen = list(inputs)
        noise = seen.pop() if self.noisy else None
        mask = seen.pop() if self.masked else None
        return self.choose(self.network, seen, mask, noise)


def greedy_policy(
    network: nn.Module, seen: list[np.ndarray], mask: np.ndarray | None, seed: Seed | None = None,
    acting: Acting = VALUES,
) -> Policy:  # fmt: skip
    """`policy(seen, mask)`: the greedy action of each row, [N, *shape], and the values, float32 [N, A].

    The network is recorded for arrays of these shapes: the same operations, in half the time for a small MLP and few
    rows. The recording reads the network's parameters, so the policy uses new weights. Call it in inference mode.

    Args:
        network: of the agent.
        seen: an example of the leaves, [N, ...].
        mask: an example of the legal actions, bool [N, A], or None without masks.
        seed: of the noise that each call draws, so that the actions explore; None: they are greedy.
        acting: how the agent acts by the network.
    """
    noise = noise_of(acting.noise_shape(network, len(seen[0])), seed)
    network.train(noise is not None)

    def tensors(seen: list[np.ndarray], mask: np.ndarray | None) -> list[Tensor]:
        drawn = [] if noise is None else [noise()]
        return [torch.from_numpy(array) for array in [*seen, *([] if mask is None else [mask]), *drawn]]

    with torch.no_grad():
        chooser = Chooser(network, acting.choose, mask is not None, noise is not None)
        recorded = script(chooser, tensors(seen, mask)).forward

    def policy(seen: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        action, values = recorded(*tensors(seen, mask))
        return action.numpy(), values.detach().numpy()

    return policy
