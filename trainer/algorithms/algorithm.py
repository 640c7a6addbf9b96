"""An algorithm as the learner and the collectors use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import LossModule

from trainer.algorithms.diagnostics import diagnose_values
from trainer.envs import EnvSpec

VALUES = "value_network_params"  # TorchRL's name for the one group of an algorithm that learns values
Groups = Mapping[str, TensorDictBase]  # by name: parameters, and the constants beside them
FirstPriority = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """A part's loss on a batch.

    Args:
        loss: float [], minimised: mean(l), or mean(w l) where the batch has `priority_weight`.
        metrics: of the update, float [] each.
        priority: of the transitions in a prioritized replay, float32 [B].
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    priority: Tensor


@dataclass(frozen=True)
class Part:
    """A loss whose gradient is computed, and recorded, as one function.

    Args:
        trains: names of the groups that its gradient trains.
        evaluate: `evaluate(groups, batch) -> Evaluation`, a pure function of groups and a batch [B] with keys as
            `trainer.replay.buffer.StreamReplay.sample` gives it, but for what it draws from torch's global generator.
    """

    trains: tuple[str, ...]
    evaluate: Callable[[Groups, TensorDictBase], Evaluation]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm as values; the training loop contains nothing of any algorithm.

    Args:
        network: `network(*leaves) -> float [B, num_actions]`, whose largest legal entry is the greedy action.
        policy: the same network as TorchRL's actor, writing `action`.
        loss: TorchRL's module with all groups as attributes; a checkpoint has its state.
        phases: the phases of an update, one after another; the parts of a phase see the same weights.
        targets: for each trained group with a target network, the name of the group with its copies.
        acts: the group that is published to those who act.
        diagnose: `diagnose(batch)`: metrics of the present weights by name, for each row.
        first_priority: `first_priority(R, gamma^m (1 - terminated), max Q(s'), Q(s, a))`, float [n] each: the priority
            of new rows by the values that the collectors acted by. None: these values do not determine it, and
            `trainer.config.consistency` refuses `replay.initial_priority=collector`.
    """

    network: nn.Module
    policy: QValueActor
    loss: LossModule
    phases: tuple[tuple[Part, ...], ...]
    targets: dict[str, str]
    acts: str
    diagnose: Callable[[Mapping[Any, Tensor]], dict[str, float]]
    first_priority: FirstPriority | None = None

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the trained groups, in the order of the parts that train them."""
        return tuple(name for phase in self.phases for part in phase for name in part.trains)


def value_algorithm(
    network: nn.Module,
    policy: QValueActor,
    loss: LossModule,
    td_error: Callable[[TensorDictBase], Tensor],
    priority: Callable[[TensorDictBase], Tensor],
    first_priority: FirstPriority | None = None,
) -> Algorithm:
    """An algorithm of one part, which trains values of numbered actions against a target network.

    Args:
        network: see `Algorithm`.
        policy: see `Algorithm`.
        loss: with the parameters `value_network_params`, and `target_value_network_params` of the target network. The
            entry `loss` of its result is minimised.
        td_error: absolute TD errors, float [B], of a batch after the loss has written into it.
        priority: priorities, float [B], of such a batch.
        first_priority: see `Algorithm`.
    """

    def evaluate(groups: Groups, batch: TensorDictBase) -> Evaluation:
        with groups_in_place(loss, groups):
            value = loss(batch)["loss"]
        return Evaluation(value, {"td_error": td_error(batch).mean()}, priority(batch).float())

    part = Part((VALUES,), evaluate)
    diagnose = partial(diagnose_values, policy, loss)
    return Algorithm(network, policy, loss, ((part,),), {VALUES: f"target_{VALUES}"}, VALUES, diagnose, first_priority)


@contextmanager
def groups_in_place(loss: LossModule, groups: Groups) -> Iterator[None]:
    """Let a loss use the given groups in place of its own within the context.

    It works as Python finds an instance attribute before a registered module.
    """
    loss.__dict__.update(groups)
    try:
        yield
    finally:
        for name in groups:
            del loss.__dict__[name]


def actor(network: nn.Module, spec: EnvSpec) -> QValueActor:
    """TorchRL's actor over a network: the best legal action."""
    return QValueActor(
        network,
        in_keys=[leaf.name for leaf in spec.leaves],
        action_space="categorical",
        action_mask_key="action_mask" if spec.action.has_mask else None,
    )
