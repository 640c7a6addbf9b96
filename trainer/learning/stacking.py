"""Updates of several agents with networks of one shape in one call; the result of each is the same as alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import NestedKey
from torch import Tensor

from trainer.learning.feed import Batch
from trainer.learning.gradients import PartUpdate, make_gradients, no_noise
from trainer.learning.optimizer import adam_steps, scripted_adam_step
from trainer.learning.update import MAX_METRICS, Updater, follow
from trainer.networks.recording import record

# Of algorithms with several parts: trained weights times rows of a batch. Above it the call of a stack takes as long as
# the calls of its agents, or longer, as its intermediate results leave the processor's cache.
LARGEST = 8_000_000

Stacked = dict[tuple[str, NestedKey], Tensor]  # by group and key, [N, ...]


def can_be_stacked(updater: Updater) -> bool:
    """Whether an updater may be one of a stack: of one part; or small, and without buffers that its updates write."""
    if len(updater.parts) == 1:
        return True
    size = sum(weight.numel() for weight in updater.trained) * updater.config.batch_size
    return size <= LARGEST and not any(one.group.buffers for one in updater.of_groups)


@dataclass
class StackedPart:
    """A part of all updaters, whose gradients are computed in one call.

    Args:
        of_updaters: the part in each updater.
        inputs: first arguments of its function, [N, ...] each; the last two are `not_finite` and the metrics.
        steps: whether its function makes the optimisers' steps too.
    """

    of_updaters: list[PartUpdate]
    inputs: list[Tensor]
    steps: bool = False

    @property
    def state(self) -> list[Tensor]:
        """Of the optimiser, updater by updater."""
        return [tensor for one in self.of_updaters for tensor in one.state]


class Stack:
    """Updaters of one shape, whose gradients are computed in one call.

    Optimiser, target network, noise and counts are separate. Weights are views of stacked tensors [N, ...].

    Args:
        updaters: N updaters with equal shapes and batch sizes; see `can_be_stacked`.
    """

    def __init__(self, updaters: Sequence[Updater]) -> None:
        self.updaters = updaters
        first, n = updaters[0], len(updaters)
        tensors: Stacked = {}
        not_finite = torch.zeros(n, device=first.device)
        sums = [torch.zeros(n, MAX_METRICS, device=first.device) for _ in first.parts]
        for i, updater in enumerate(updaters):
            _move_into(updater, tensors, i, n)
            updater.not_finite = not_finite[i]
            for one, of_part in zip(updater.parts, sums, strict=True):
                one.sums = of_part[i]
            updater.look()
        parts = []
        for number, one in enumerate(first.parts):
            own = [(group.group.name, key) for group in one.trained for key in group.keys]
            inputs = [*(tensors[key] for key in [*own, *one.reads]), not_finite, sums[number]]
            parts.append(StackedPart([updater.parts[number] for updater in updaters], inputs))
        left = iter(parts)
        self.phases = [[next(left) for _ in phase] for phase in first.phases]
        self._views = [
            [tensor for updater in updaters for tensor in getattr(updater, name)] for name in ("targets", "followed")
        ]

    def prepare(self, example: Batch) -> None:
        """Record the update for batches [B, ...] like `example` for each updater; changes no weights."""
        first, n = self.updaters[0], len(self.updaters)
        batch = {key: tensor.to(first.device) for key, tensor in example.items()}
        execution = "trace" if first.config.execution == "auto" else first.config.execution
        for phase in self.phases:
            for part in phase:
                one = part.of_updaters[0]
                _, names = make_gradients(first, one, batch)
                function, _ = make_gradients(first, one, batch, n)
                several = [torch.stack([tensor] * n) for tensor in (*no_noise(one.part, batch), *batch.values())]
                # The steps of parts that see the same weights come after all of their gradients.
                part.steps = execution == "trace" and len(phase) == 1
                if execution != "eager":
                    then, more = (partial(self._stepped, part), part.state) if part.steps else (None, [])
                    function = record(function, [*part.inputs, *several], execution, then, more)
                for its in part.of_updaters:
                    its.names, its.function = names, function

    def update(self, batches: Sequence[Batch | None]) -> list[Tensor]:
        """Make one update of each updater that has a batch.

        The gradients of all updaters are always computed, so the bits of one do not depend on the others.

        Args:
            batches: of each updater; None: no update.

        Returns:
            New priorities of each updater's batch, float32 [B]; meaningless without a batch.
        """
        example = next(batch for batch in batches if batch is not None)
        if self.phases[0][0].of_updaters[0].function is None:
            self.prepare(example)
        priorities = []
        with torch.no_grad():
            idle = [i for i, batch in enumerate(batches) if batch is None]
            nothing = {key: torch.zeros_like(tensor) for key, tensor in example.items()} if idle else {}
            given = [nothing if batch is None else batch for batch in batches]
            rest = [torch.stack(tensors) for tensors in zip(*[batch.values() for batch in given], strict=True)]
            for phase in self.phases:
                every = phase[0].of_updaters[0].every
                waits = [i for i, one in enumerate(self.updaters) if i in idle or (one.updates + 1) % every]
                if len(waits) < len(self.updaters):
                    priorities.append(self._phase(phase, given, rest, waits))
            self._conclude(idle)
            for i, (updater, batch) in enumerate(zip(self.updaters, batches, strict=True)):
                if i not in idle:
                    updater.last_batch = batch
        return list(priorities[0].unbind())

    def _phase(
        self, phase: Sequence[StackedPart], batches: Sequence[Batch], rest: list[Tensor], idle: list[int]
    ) -> Tensor:
        """Make a phase for all updaters but those that are idle; returns the priorities of its first part, [N, B]."""
        not_finite, before = phase[0].inputs[-2], []
        if idle:
            before = [tensor[idle].clone() for tensor in (not_finite, *(part.inputs[-1] for part in phase))]
            not_finite[idle] = 1.0  # as if their losses were not finite: their steps change nothing
        found = []
        for part in phase:
            drawn = [self._drawn(shape, batches, idle) for shape in part.of_updaters[0].part.noise]
            function = part.of_updaters[0].function
            assert function is not None
            found.append(function(*part.inputs, *drawn, *rest, *(part.state if part.steps else ())))
        if idle:  # undo what was computed for updaters that are idle
            for tensor, kept in zip((not_finite, *(part.inputs[-1] for part in phase)), before, strict=True):
                tensor[idle] = kept
        for part, (*gradients, _) in zip(phase, found, strict=True):
            if part.steps:
                if idle:
                    torch._foreach_sub_([of.step for i in idle for of in part.of_updaters[i].trained], 1)
                continue
            for i, its in enumerate(_by_agent(gradients)):
                if i not in idle:
                    self.updaters[i].optimize(part.of_updaters[i], its)
        priority: Tensor = found[0][-1]
        return priority

    def _drawn(self, shape: tuple[int, ...], batches: Sequence[Batch], idle: list[int]) -> Tensor:
        """Noise of each updater, from its own generator; zeros for those that are idle."""
        size, device = len(batches[0]["next", "reward"]), self.updaters[0].device
        return torch.stack([
            torch.zeros(size, *shape, device=device) if i in idle else updater.drawn(shape, batches[i])
            for i, updater in enumerate(self.updaters)
        ])  # fmt: skip

    def _stepped(self, part: StackedPart, found: tuple[Tensor, ...], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Make a step of each agent's Adam.

        The kernels get the tensors of each agent, not the stacked ones: the rounding of an element depends on its place
        in a tensor (the last few do not fill a vector register), so it could differ in a stacked tensor.
        """
        *gradients, priority = found
        size, eps = len(state) // len(self.updaters), self.updaters[0].config.adam_eps
        written = []
        for i, its in enumerate(_by_agent(gradients)):
            *own, not_finite = state[i * size : (i + 1) * size]
            written += adam_steps(part.of_updaters[i].sizes, its, own, not_finite, eps, scripted_adam_step)
        return *written, priority

    def _conclude(self, idle: Sequence[int]) -> None:
        """As `Updater.conclude` of each updater that had a batch."""
        first = self.updaters[0]
        if idle or any(updater.updates != first.updates for updater in self.updaters):
            for i, updater in enumerate(self.updaters):
                if i not in idle:
                    updater.conclude()
            return
        for updater in self.updaters:
            updater.count()
        targets, weights = self._views
        follow(first.algorithm.target_updates, targets, weights, first.updates)


def _by_agent(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    return [list(its) for its in zip(*[gradient.unbind() for gradient in gradients], strict=True)]


def _move_into(updater: Updater, tensors: Stacked, i: int, n: int) -> None:
    """Move weights, targets and moments of updater i of n into views of stacked tensors, which the first one makes."""

    def place(name: str, key: NestedKey, tensor: Tensor) -> Tensor:
        if (name, key) not in tensors:
            tensors[name, key] = torch.empty(n, *tensor.shape, device=tensor.device)
        view = tensors[name, key][i]
        view.copy_(tensor)
        return view

    for one in updater.of_groups:
        for name, found in ((one.group.name, one.weights), (one.group.target, one.targets)):
            for key, tensor in zip(one.keys, found, strict=bool(found)):
                if name is not None:
                    getattr(updater.algorithm.loss, name).get(key).data = place(name, key, tensor)
        for key, parameter in zip(one.keys, one.parameters, strict=True):
            moments = updater.optimizer.state[parameter]
            for moment in ("exp_avg", "exp_avg_sq"):
                moments[moment] = place(f"{moment} of {one.group.name}", key, moments[moment])
