"""What the learner and the collectors need to know of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.objectives import LossModule


@dataclass(frozen=True)
class Algorithm:
    """An algorithm as values: nothing of it is known to the training loop.

    Args:
        network: ``network(*leaves) -> float [B, num_actions]``, whose largest legal entry is the greedy action.
        policy: the same network as TorchRL's actor, writing ``action``.
        loss: TorchRL loss over a batch as :meth:`trainer.replay.StreamReplay.sample` gives it; entry ``loss`` is
            minimised. Its parameters are ``<name>_params``, their delayed copies ``target_<name>_params``.
        diagnostics: ``diagnostics(batch, losses) -> {name: scalar tensor}``, cheap figures of an update for the log.
    """

    network: nn.Module
    policy: TensorDictModule
    loss: LossModule
    diagnostics: Callable[..., dict[str, Tensor]]
