"""Updates of several agents with networks of one shape in one call; the result of each is the same as alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer.learning.feed import Batch
from trainer.learning.gradients import make_gradients
from trainer.learning.optimizer import adam_steps, scripted_adam_step
from trainer.learning.update import MAX_METRICS, Updater, follow
from trainer.networks.recording import record


class Stack:
    """Updaters of one shape, whose gradients are computed in one call.

    Optimiser, target network and counts are separate. Weights are views of stacked tensors [N, ...].

    Args:
        updaters: N updaters with equal shapes, algorithms of one part, and batch sizes.
    """

    def __init__(self, updaters: Sequence[Updater]) -> None:
        self.updaters = updaters
        first, n = updaters[0], len(updaters)
        parts = [
            [torch.empty(n, *tensor.shape, device=tensor.device) for tensor in first.trained] for _ in range(4)
        ]  # weights, targets, first and second moments
        self._views: list[list[Tensor]] = [[] for _ in parts]  # views of the parts, agent by agent
        not_finite, sums = torch.zeros(n, device=first.device), torch.zeros(n, MAX_METRICS, device=first.device)
        for i, updater in enumerate(updaters):
            views = [[tensor[i] for tensor in part] for part in parts]
            weights, targets, exp_avg, exp_avg_sq = views
            _move_into(updater, weights, targets, exp_avg, exp_avg_sq, not_finite[i], sums[i])
            for all_agents, view in zip(self._views, views, strict=True):
                all_agents += view
        self._inputs = [*parts[0], *parts[1], not_finite, sums]
        self._state = [tensor for updater in updaters for tensor in updater.parts[0].state]
        self._function: Callable | None = None
        self._steps = False  # whether the function makes the optimisers' steps too

    def prepare(self, example: Batch) -> None:
        """Record the update for batches [B, ...] like `example` for each updater; changes no weights."""
        first, n = self.updaters[0], len(self.updaters)
        batch = {key: tensor.to(first.device) for key, tensor in example.items()}
        _, names = make_gradients(first, first.parts[0], batch)
        function, _ = make_gradients(first, first.parts[0], batch, n)
        several = [torch.stack([tensor] * n) for tensor in batch.values()]
        execution = "trace" if first.config.execution == "auto" else first.config.execution
        self._steps = execution == "trace"
        if execution != "eager":
            then, more = (self._stepped, self._state) if self._steps else (None, [])
            function = record(function, [*self._inputs, *several], execution, then, more)
        self._function = function
        for updater in self.updaters:
            updater.parts[0].names = names

    def update(self, batches: Sequence[Batch | None]) -> list[Tensor]:
        """Make one update of each updater that has a batch.

        The gradients of all updaters are always computed, so the bits of one do not depend on the others.

        Args:
            batches: of each updater; None: no update.

        Returns:
            New priorities of each updater's batch, float32 [B]; meaningless without a batch.
        """
        example = next(batch for batch in batches if batch is not None)
        if self._function is None:
            self.prepare(example)
        assert self._function is not None
        with torch.no_grad():
            idle = [i for i, batch in enumerate(batches) if batch is None]
            if idle:
                nothing = {key: torch.zeros_like(tensor) for key, tensor in example.items()}
                before = [metrics[idle].clone() for metrics in self._inputs[-2:]]
                self._inputs[-2][idle] = 1.0  # as if their losses were not finite: their steps change nothing
                batches = [nothing if batch is None else batch for batch in batches]
            rest = [
                torch.stack(tensors) for tensors in zip(*[b.values() for b in batches if b is not None], strict=True)
            ]
            *gradients, priority = self._function(*self._inputs, *rest, *(self._state if self._steps else ()))
            if idle:  # undo what was computed for updaters without a batch
                for metrics, kept in zip(self._inputs[-2:], before, strict=True):
                    metrics[idle] = kept
                if self._steps:
                    torch._foreach_sub_([self.updaters[i].of_groups[0].step for i in idle], 1)
            if not self._steps:
                for i, its in enumerate(self._by_agent(gradients)):
                    if i not in idle:
                        self.updaters[i].optimize(self.updaters[i].parts[0], its)
            self._conclude(idle)
            for i, (updater, batch) in enumerate(zip(self.updaters, batches, strict=True)):
                if i not in idle:
                    updater.last_batch = batch
        return list(priority.unbind())

    def _stepped(self, found: tuple[Tensor, ...], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Make a step of each agent's Adam.

        The kernels get the tensors of each agent, not the stacked ones: the rounding of an element depends on its place
        in a tensor (the last few do not fill a vector register), so it could differ in a stacked tensor.
        """
        *gradients, priority = found
        size, eps = len(state) // len(self.updaters), self.updaters[0].config.adam_eps
        written = []
        for i, its in enumerate(self._by_agent(gradients)):
            *own, not_finite = state[i * size : (i + 1) * size]
            written += adam_steps([len(its)], its, own, not_finite, eps, scripted_adam_step)
        return *written, priority

    def _by_agent(self, gradients: Sequence[Tensor]) -> list[list[Tensor]]:
        return [list(its) for its in zip(*[gradient.unbind() for gradient in gradients], strict=True)]

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
        weights, targets = self._views[:2]
        follow(first.algorithm.target_updates, targets, weights, first.updates)


def _move_into(
    updater: Updater, trained: Sequence[Tensor], targets: Sequence[Tensor], first: Sequence[Tensor],
    second: Sequence[Tensor], not_finite: Tensor, sums: Tensor,
) -> None:  # fmt: skip
    """Move weights, targets, moments and metrics into the given tensors, which are views of those of a stack."""
    (of_group,) = updater.of_groups
    mine = (*updater.trained, *updater.targets, *updater.first, *updater.second)
    for tensor, place in zip(mine, (*trained, *targets, *first, *second), strict=True):
        place.copy_(tensor)
    for name, places in ((of_group.group.name, trained), (of_group.group.target, targets)):
        for key, place in zip(of_group.keys, places, strict=True):
            getattr(updater.algorithm.loss, str(name)).get(key).data = place
    for moments, exp_avg, exp_avg_sq in zip(updater.optimizer.state.values(), first, second, strict=True):
        moments["exp_avg"], moments["exp_avg_sq"] = exp_avg, exp_avg_sq
    updater.not_finite, updater.parts[0].sums = not_finite, sums
    updater.look()
