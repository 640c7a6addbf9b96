"""What the learner and the collectors need to know of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import LossModule

from trainer.envs import EnvSpec


@dataclass(frozen=True)
class Algorithm:
    """An algorithm as values: nothing of it is known to the training loop.

    Args:
        network: `network(*leaves) -> float [B, num_actions]`, whose largest legal entry is the greedy action.
        policy: the same network as TorchRL's actor, writing `action`.
        loss: TorchRL loss over a batch as `trainer.replay.streams.StreamReplay.sample` gives it; entry `loss` is
            minimised: mean(l), or mean(w l) where the batch has `priority_weight`. Its parameters are
            `value_network_params`, their delayed copies `target_value_network_params`.
        td_error: of the batch that the loss was given, which it has written into: absolute TD errors float [B].
        priority: likewise, what a prioritized replay draws by, float [B].
        first_priority: `first_priority(R, gamma^m (1 - terminated), max Q(s'), Q(s, a))`, float [n] each: what the
            loss would give new rows as priority, by the values that collectors acted by. None: these do not say it, and
            `trainer.config.consistency` refuses `replay.initial_priority=collector`.
    """

    network: nn.Module
    policy: QValueActor
    loss: LossModule
    td_error: Callable[[TensorDictBase], Tensor]
    priority: Callable[[TensorDictBase], Tensor]
    first_priority: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None


def actor(network: nn.Module, spec: EnvSpec) -> QValueActor:
    """TorchRL's actor over a network: the best legal action."""
    return QValueActor(
        network,
        in_keys=[leaf.name for leaf in spec.leaves],
        action_space="categorical",
        action_mask_key="action_mask" if spec.action.has_mask else None,
    )
