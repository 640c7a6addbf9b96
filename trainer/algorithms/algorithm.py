"""An algorithm as a value: all that the learner and the collectors know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import LossModule

from trainer.acting.acting import Acting, Choose, best_action
from trainer.acting.exploration import AsChosen, ByEpsilon
from trainer.algorithms.diagnostics import diagnose_values
from trainer.algorithms.targets import unrescale
from trainer.config.algorithms import AlgorithmConfig, ValueConfig
from trainer.envs import EnvSpec

VALUES = "value_network_params"  # TorchRL's name for the one group of an algorithm that learns values
Groups = Mapping[str, TensorDictBase]  # by name: parameters, and the buffers beside them
FirstPriority = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """A part's loss on a batch.

    Args:
        loss: float [], minimised: mean(l), or mean(w l) where the batch has `priority_weight`.
        metrics: of the update, float [] each.
        priority: of the transitions in a prioritized replay, float32 [B]; that of the algorithm's first part counts.
        buffers: new values of buffers by (group, key), for those that the groups declare.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    priority: Tensor | None = None
    buffers: Mapping[tuple[str, NestedKey], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A loss whose gradient is computed, and recorded, as one function.

    Args:
        trains: names of the groups that its gradient trains; a group is trained by one part.
        evaluate: `evaluate(groups, batch, *noise) -> Evaluation`, a pure function of groups and a batch [B] with keys
            as `trainer.replay.buffer.StreamReplay.sample` gives it, but for what it draws from torch's global
            generator.
        noise: shape for each transition of the standard normal numbers that it is given, float32 [B, *shape] each.
            The learner draws them from a generator that nothing else uses.
        prefix: of the names of its loss and gradient norm among the metrics.
    """

    trains: tuple[str, ...]
    evaluate: Callable[..., Evaluation]
    noise: tuple[tuple[int, ...], ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class Phase:
    """Parts whose gradients are computed at the same weights, before any of them is applied.

    Args:
        parts: in the order in which their gradients are applied.
        every: the phase is part of every so many updates.
    """

    parts: tuple[Part, ...]
    every: int = 1


@dataclass(frozen=True)
class Group:
    """Parameters that are trained together, with an optimiser of their own, and the buffers beside them.

    Args:
        name: of the attribute of `Algorithm.loss` that holds it.
        target: name of the group with its target network; None: it has none.
        learning_rate: None: that of the section `learner`; else it falls in proportion to that one.
        buffers: keys of the buffers that updates write.
    """

    name: str
    target: str | None = None
    learning_rate: float | None = None
    buffers: tuple[NestedKey, ...] = ()


@dataclass(frozen=True)
class TargetUpdates:
    """When target networks follow.

    Args:
        every: after every so many updates.
        tau: `target += tau (network - target)`; None: the target network becomes a copy.
    """

    every: int
    tau: float | None = None


@dataclass(frozen=True)
class ActionValues:
    """Values of actions by critics, whose weights those who act do not get.

    Args:
        group: name of the group of the critics.
        of: `of(weights, seen)`: values float [B] of `seen["action"]`, [B, *shape], at the leaves in `seen`, [B, ...],
            by weights of that group.
    """

    group: str
    of: Callable[[TensorDictBase, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm as values; the training loop contains nothing of any algorithm.

    Args:
        network: of those who act, from the leaves of an observation [B, ...].
        policy: the same network as TorchRL's actor, with the network as `module[0].module`.
        acting: how the network acts and explores.
        loss: a module with all groups as attributes; a checkpoint has its state.
        groups: what is trained.
        phases: the phases of an update, one after another.
        target_updates: when target networks follow, at the end of an update.
        acts: name of the group that is published to those who act.
        diagnose: `diagnose(batch)`: metrics of the present weights by name, for each row.
        first_priority: `first_priority(R, gamma^m (1 - terminated), max Q(s'), Q(s, a))`, float [n] each: the priority
            of new rows by the values that the collectors acted by. None: these values do not determine it, and
            `trainer.config.consistency` refuses `replay.initial_priority=collector`.
        action_values: of the critics, for evaluations; None: the network that acts gives values.
    """

    network: nn.Module
    policy: TensorDictModule
    acting: Acting
    loss: nn.Module
    groups: tuple[Group, ...]
    phases: tuple[Phase, ...]
    target_updates: TargetUpdates
    acts: str
    diagnose: Callable[[Mapping[Any, Tensor]], dict[str, float]]
    first_priority: FirstPriority | None = None
    action_values: ActionValues | None = None

    @property
    def targets(self) -> dict[str, str]:
        """For each group with a target network, the name of the group with its copies."""
        return {group.name: group.target for group in self.groups if group.target is not None}


def target_updates_of(section: AlgorithmConfig) -> TargetUpdates:
    """Soft updates after each update with `target_tau`, else copies after `target_update_every_updates`."""
    if section.target_tau is not None:
        return TargetUpdates(1, section.target_tau)
    return TargetUpdates(section.target_update_every_updates)


def value_algorithm(
    section: ValueConfig,
    network: nn.Module,
    policy: QValueActor,
    loss: LossModule,
    td_error: Callable[[TensorDictBase], Tensor],
    priority: Callable[[TensorDictBase], Tensor],
    first_priority: FirstPriority | None = None,
    choose: Choose = best_action,
) -> Algorithm:
    """An algorithm of one part, which trains values of numbered actions against a target network.

    Args:
        section: of the algorithm.
        network: `network(*leaves) -> float [B, num_actions]`, whose largest legal entry is the greedy action.
        policy: see `Algorithm`.
        loss: with the parameters `value_network_params`, and `target_value_network_params` of the target network. The
            entry `loss` of its result is minimised.
        td_error: absolute TD errors, float [B], of a batch after the loss has written into it.
        priority: priorities, float [B], of such a batch.
        first_priority: see `Algorithm`.
        choose: see `Acting`.
    """

    def evaluate(groups: Groups, batch: TensorDictBase) -> Evaluation:
        with groups_in_place(loss, groups):
            value = loss(batch)["loss"]
        return Evaluation(value, {"td_error": td_error(batch).mean()}, priority(batch).float())

    acting = Acting(choose, explorer=AsChosen if section.noisy else ByEpsilon)
    if section.value_rescaling:
        acting = replace(acting, to_returns=unrescale)
    return Algorithm(
        network, policy, acting, loss, (Group(VALUES, f"target_{VALUES}"),), (Phase((Part((VALUES,), evaluate),)),),
        target_updates_of(section), VALUES, partial(diagnose_values, policy, loss), first_priority,
    )  # fmt: skip


@contextmanager
def groups_in_place(loss: nn.Module, groups: Groups) -> Iterator[None]:
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
