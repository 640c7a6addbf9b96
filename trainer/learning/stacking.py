"""Updates of several agents with networks of one shape in one call; the result of each is the same as alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer.learning.feed import Batch
from trainer.learning.gradients import make_gradients
from trainer.learning.optimizer import adam_step
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
        self._gradients: Callable | None = None

    def prepare(self, example: Batch) -> None:
        """Record the update for batches [B, ...] like `example` for each updater; changes no weights."""
        first, n = self.updaters[0], len(self.updaters)
        batch = {key: tensor.to(first.device) for key, tensor in example.items()}
        _, names = make_gradients(first, first.parts[0], batch)
        function, _ = make_gradients(first, first.parts[0], batch, n)
        several = [torch.stack([tensor] * n) for tensor in batch.values()]
        execution = "trace" if first.config.execution == "auto" else first.config.execution
        if execution != "eager":
            function = record(function, [*self._inputs, *several], execution)
        self._gradients = function
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
        if self._gradients is None:
            self.prepare(example)
        assert self._gradients is not None
        with torch.no_grad():
            idle = [i for i, batch in enumerate(batches) if batch is None]
            if idle:
                nothing = {key: torch.zeros_like(tensor) for key, tensor in example.items()}
                before = [metrics[idle].clone() for metrics in self._inputs[-2:]]
                batches = [nothing if batch is None else batch for batch in batches]
            rest = [
                torch.stack(tensors) for tensors in zip(*[b.values() for b in batches if b is not None], strict=True)
            ]
            *gradients, priority = self._gradients(*self._inputs, *rest)
            if idle:  # undo what was computed for updaters without a batch
                for metrics, kept in zip(self._inputs[-2:], before, strict=True):
                    metrics[idle] = kept
            each = list(zip(*[gradient.unbind() for gradient in gradients], strict=True))  # one list for each agent
            if not idle and self._alike():
                self._apply_together([gradient for one in each for gradient in one])
            else:
                for i, updater in enumerate(self.updaters):
                    if i not in idle:
                        updater.optimize(updater.parts[0], list(each[i]))
                        updater.conclude()
            for i, (updater, batch) in enumerate(zip(self.updaters, batches, strict=True)):
                if i not in idle:
                    updater.last_batch = batch
        return list(priority.unbind())

    def _alike(self) -> bool:
        """Whether one optimiser step serves all: they have the same rate and count, and all losses were finite."""
        first = self.updaters[0]
        alike = all((one.learning_rate, one.updates) == (first.learning_rate, first.updates) for one in self.updaters)
        return alike and first.device.type == "cpu" and not self._inputs[-2].any()  # on a GPU `any` would wait

    def _apply_together(self, gradients: list[Tensor]) -> None:
        """Do the same as `Updater.optimize` and `conclude` of each updater, with the same bits.

        The kernels get the tensors of each agent, not the stacked ones: the rounding of an element depends on its place
        in a tensor (the last few do not fill a vector register), so it could differ in a stacked tensor.
        """
        trained, targets, exp_avg, exp_avg_sq = self._views
        first = self.updaters[0]
        steps = [updater.of_groups[0].step for updater in self.updaters]
        torch._foreach_add_(steps[1:], 1)
        nothing = torch.zeros(())
        adam_step(trained, gradients, exp_avg, exp_avg_sq, steps[0], first.rate, nothing, first.config.adam_eps)
        for updater in self.updaters:
            updater.count()
        follow(first.algorithm.target_updates, targets, trained, first.updates)


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
