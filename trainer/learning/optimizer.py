"""The optimisers of an update: Adam for each group of parameters. Only this file makes one or steps one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn

from trainer.algorithms.algorithm import Group
from trainer.config.sections import LearnerConfig

BETAS = (0.9, 0.999)


def make_optimizer(parameters: Sequence[list[Tensor]], rates: Sequence[float], eps: float) -> torch.optim.Adam:
    """Adam with a group for each list of parameters; its states are there before the first step.

    Args:
        parameters: of each group.
        rates: learning rate of each group.
        eps: of Adam.
    """
    groups = [{"params": own, "lr": rate} for own, rate in zip(parameters, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, lr=rates[0], eps=eps, betas=BETAS, fused=True)
    for own in parameters:
        step = torch.zeros((), device=own[0].device)  # a group is updated at once: one count for all of it
        for parameter in own:
            optimizer.state[parameter] = {
                "step": step,
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def adam_step(
    weights: list[Tensor], gradients: list[Tensor], first: list[Tensor], second: list[Tensor],
    step: Tensor, rate: Tensor, not_finite: Tensor, eps: float,
) -> None:  # fmt: skip
    """Make one step of fused Adam (Kingma and Ba 2015, algorithm 1); none if `not_finite` is 1.

    Args:
        weights: of one group.
        gradients: strided as the weights.
        first: moments.
        second: moments.
        step: count of steps, float32 [], raised by one.
        rate: learning rate, float32 [].
        not_finite: 1 if a gradient was not finite, float32 []: the weights stay finite.
        eps: of Adam.
    """
    step.add_(1)
    torch._fused_adam_(
        weights, gradients, first, second, [], [step] * len(weights), lr=rate, beta1=BETAS[0], beta2=BETAS[1],
        weight_decay=0.0, eps=eps, amsgrad=False, maximize=False, found_inf=not_finite,
    )  # fmt: skip


def adam_steps(
    sizes: Sequence[int], gradients: Sequence[Tensor], state: Sequence[Tensor], not_finite: Tensor, eps: float,
    step_of: Callable = adam_step,
) -> list[Any]:  # fmt: skip
    """Make one step of each of several groups; none if `not_finite` is 1.

    Args:
        sizes: number of tensors of each group.
        gradients: of all groups, strided as the weights.
        state: `Trained.state` of all groups.
        not_finite: 1 if a gradient was not finite, float32 [].
        eps: of Adam.
        step_of: `adam_step`, or `scripted_adam_step` within a recording.

    Returns:
        What `step_of` returned for each group.
    """
    mine, its, found = list(gradients), list(state), []
    for size in sizes:
        weights, first, second = (its[i * size : (i + 1) * size] for i in range(3))
        step, rate = its[3 * size : 3 * size + 2]
        found.append(step_of(weights, mine[:size], first, second, step, rate, not_finite, eps))
        mine, its = mine[size:], its[3 * size + 2 :]
    return found


def scripted_adam_step(
    weights: list[Tensor], gradients: list[Tensor], first: list[Tensor], second: list[Tensor],
    step: Tensor, rate: Tensor, not_finite: Tensor, eps: float,
) -> Tensor:  # fmt: skip
    """As `adam_step`, to be called while TorchScript traces; the recording must return the tensor that it returns.

    The tracer leaves out a call without a result, so the step is a scripted function. TorchScript takes what is written
    into a list for useless unless the list is read afterwards: so the first weight is read from it.
    """
    names = [[f"{of}{i}" for i in range(len(weights))] for of in ("weight", "gradient", "first", "second")]
    lists = [f"[{', '.join(group)}]" for group in names]
    arguments = ", ".join(f"{name}: Tensor" for group in names for name in group)
    scripted = torch.jit.CompilationUnit(
        f"def call({arguments}, step: Tensor, rate: Tensor, not_finite: Tensor) -> Tensor:\n"
        f"    step.add_(1)\n"
        f"    weights = {lists[0]}\n"
        f"    torch._fused_adam_(weights, {', '.join(lists[1:])}, [], [{', '.join(['step'] * len(weights))}],\n"
        f"        lr=rate, beta1={BETAS[0]}, beta2={BETAS[1]}, weight_decay=0.0, eps={eps}, amsgrad=False,\n"
        f"        maximize=False, found_inf=not_finite)\n"
        f"    return weights[0]\n"
    )
    written: Tensor = scripted.call(*weights, *gradients, *first, *second, step, rate, not_finite)
    return written


@dataclass
class Trained:
    """The tensors of one group in an updater.

    Args:
        group: the group.
        keys: of its parameters.
        parameters: of the optimiser.
        rate: learning rate, float32 [].
        scale: its learning rate by that of the section `learner`; None: it has that rate.
        weights, targets: of network and target network, the latter empty if there is none.
        first, second: Adam's moments.
        step: number of its steps, float32 [].
    """

    group: Group
    keys: list[NestedKey]
    parameters: list[Tensor]
    rate: Tensor
    scale: float | None
    weights: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    step: Tensor = field(default_factory=lambda: torch.zeros(()))

    @property
    def state(self) -> list[Tensor]:
        """All that a step reads and writes besides the gradients: weights, moments, count of steps, learning rate."""
        return [*self.weights, *self.first, *self.second, self.step, self.rate]

    def look(self, groups: dict[str, TensorDictBase], optimizer: torch.optim.Adam) -> None:
        """Collect the tensors that an update reads and writes."""
        target = self.group.target
        self.weights = [groups[self.group.name].get(key) for key in self.keys]
        self.targets = [] if target is None else [groups[target].get(key) for key in self.keys]
        moments = [optimizer.state[parameter] for parameter in self.parameters]
        self.first, self.second = ([m[name] for m in moments] for name in ("exp_avg", "exp_avg_sq"))
        self.step = moments[0]["step"]


def trained_groups(
    groups: Sequence[Group], loss: nn.Module, rate: Tensor, config: LearnerConfig
) -> tuple[list[Trained], torch.optim.Adam]:
    """The groups of an algorithm and their optimiser; `Trained.look` finds the tensors.

    Args:
        groups: of the algorithm.
        loss: has the groups as attributes.
        rate: learning rate of the groups that have none of their own, float32 [].
        config: the section `learner`.
    """
    found = []
    for group in groups:
        leaves = getattr(loss, group.name).items(True, True)
        parameters = {key: leaf for key, leaf in leaves if isinstance(leaf, nn.Parameter)}
        scale = None if group.learning_rate is None else group.learning_rate / config.learning_rate
        own = rate if group.learning_rate is None else torch.tensor(group.learning_rate, device=rate.device)
        found.append(Trained(group, list(parameters), list(parameters.values()), own, scale))
    rates = [group.learning_rate or config.learning_rate for group in groups]
    return found, make_optimizer([one.parameters for one in found], rates, config.adam_eps)
