"""Loss, gradient and its clipping as one function of plain tensors, which can be recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from trainer.algorithms.algorithm import Algorithm, Part
from trainer.learning.feed import Batch, to_tensordict
from trainer.learning.optimizer import Trained

if TYPE_CHECKING:
    from trainer.learning.update import Updater

Keys = list[tuple[str, NestedKey]]


@dataclass
class PartUpdate:
    """A part of an update: its function of plain tensors, once it is made, and what it has counted.

    Args:
        part: of the algorithm.
        every: it is made in every so many updates.
        trained: the groups that it trains.
        reads: keys of the tensors that it may read besides: target networks, other groups, buffers.
        sums: of its metrics since they were asked for, float32 [MAX_METRICS].
        function: see `make_gradients`; None: it is not made yet.
        names: of its metrics.
        summed: updates in `sums`.
        inputs: first arguments of its function.
        steps: whether its function makes Adam's step too; it is given `state` then.
        state: of the optimiser: `Trained.state` of its groups, and `not_finite`.
        not_finite: 1 once its loss or gradient was not finite, if it runs beside others; None: they share one.
    """

    part: Part
    every: int
    trained: list[Trained]
    reads: Keys
    sums: Tensor
    function: Callable | None = None
    names: list[str] = field(default_factory=list)
    summed: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    steps: bool = False
    state: list[Tensor] = field(default_factory=list)
    not_finite: Tensor | None = None

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that it trains."""
        return [weight for one in self.trained for weight in one.weights]

    @property
    def sizes(self) -> list[int]:
        """Number of tensors of each group that it trains."""
        return [len(one.weights) for one in self.trained]

    def arguments(self, noise: Sequence[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """The arguments of its function, for its noise and a batch."""
        return (*self.inputs, *noise, *batch.values(), *(self.state if self.steps else ()))

    def look(self, groups: dict[str, TensorDictBase], not_finite: Tensor) -> None:
        """Collect the first arguments of its function; noise and batch follow."""
        read = [groups[name].get(key) for name, key in self.reads]
        self.inputs = [*self.weights, *read, not_finite if self.not_finite is None else self.not_finite, self.sums]
        self.state = [*(tensor for one in self.trained for tensor in one.state), not_finite]


def make_gradients(
    updater: Updater, one: PartUpdate, batch: Batch, count: int | None = None
) -> tuple[Callable, list[str]]:
    """Make a function of plain tensors that computes a part's loss and its clipped gradient.

    Args:
        updater: with the groups and the section `learner`.
        one: the part.
        batch: an example of the batches, for its keys and size.
        count: None; or N, for N agents with the same shapes: every tensor has a first axis [N]. The result of one agent
            does not depend on the others, not even where these are NaN.

    Returns:
        `gradients(*weights, *read, not_finite, sums, *noise, *batch.values()) -> (*clipped gradients, priorities)`,
        which adds the metrics to `sums`, sets `not_finite` to 1 if the loss or a gradient is not finite, and writes new
        values of buffers; and the names of the metrics. The priorities are empty for a part without.
    """
    config, part, keys = updater.config, one.part, list(batch)
    batch_size = batch["next", "reward"].shape[-2]
    sizes, reads, noises = one.sizes, len(one.reads), len(part.noise)
    number, names = sum(sizes), list[str]()
    own = [(group.group.name, key) for group in one.trained for key in group.keys]
    written = [one.reads.index((group.group.name, key)) for group in one.trained for key in group.group.buffers]
    autocast = torch.autocast(updater.device.type, torch.bfloat16) if config.precision == "bfloat16" else nullcontext()

    def evaluate(leaves: Sequence[Tensor], read: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple:
        sample = to_tensordict(dict(zip(keys, rest[noises:], strict=True)), batch_size)
        groups = _filled(updater.groups, own + one.reads, [*leaves, *read])
        with autocast:
            found = part.evaluate(groups, sample, *rest[:noises])
        priority = found.loss.new_zeros(0) if found.priority is None else found.priority
        buffers = [found.buffers[one.reads[index]].detach() for index in written]
        return found.loss, (found.loss, found.metrics, priority, buffers)

    def differentiate(leaves: Sequence[Tensor], read: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple:
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_(True) for p in leaves]
            out, parts = evaluate(leaves, read, rest)
            return torch.autograd.grad(out, leaves), parts

    if count is not None:  # vmap works with torch.func.grad, not with torch.autograd.grad
        differentiate = torch.vmap(torch.func.grad(evaluate, has_aux=True), randomness="different")

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        weights, read = tensors[:number], tensors[number : number + reads]
        not_finite, sums, *rest = tensors[number + reads :]
        grads, (out, shown, priority, buffers) = differentiate(weights, read, rest)
        with torch.no_grad():
            in_order, norms = _clipped_by_group(grads, weights, sizes, config.max_grad_norm, count)
            not_finite.logical_or_(_is_not_finite(sum(norms[1:], norms[0]) + out))
            metrics = {f"{part.prefix}loss": out, **shown, f"{part.prefix}grad_norm": norms[0]}
            names[:] = metrics
            sums[..., : len(metrics)].add_(torch.stack([m.float() for m in metrics.values()], -1))
            for index, value in zip(written, buffers, strict=True):
                read[index].copy_(value)
        return *in_order, priority

    if count is None:  # run once, on copies, to find the names
        gradients(*[t.clone() for t in (*one.inputs, *no_noise(part, batch), *batch.values())])
    return gradients, names


def _is_not_finite(x: Tensor) -> Tensor:
    """As `~isfinite`, in two operations instead of five."""
    return x - x != 0


def no_noise(part: Part, batch: Batch) -> list[Tensor]:
    """Zeros in place of a part's noise, for its preparation, which draws nothing from the learner's generator."""
    reward = batch["next", "reward"]
    return [torch.zeros(*reward.shape[:-1], *shape, device=reward.device) for shape in part.noise]


def _clipped_by_group(
    grads: Sequence[Tensor], weights: Sequence[Tensor], sizes: list[int], most: float | None, count: int | None
) -> tuple[list[Tensor], list[Tensor]]:
    """As `clipped`, for each of several groups of so many tensors: all gradients, and the norm of each group."""
    in_order, norms, start = list[Tensor](), list[Tensor](), 0
    for size in sizes:
        part = slice(start, start + size)
        found, norm = clipped(grads[part], weights[part], most, count)
        in_order += found
        norms.append(norm)
        start += size
    return in_order, norms


def clipped(
    grads: Sequence[Tensor], trained: Sequence[Tensor], most: float | None, count: int | None
) -> tuple[list[Tensor], Tensor]:
    """Clip gradients by their norm.

    Args:
        grads: of each trained tensor.
        trained: these tensors; each gradient gets the strides of its parameter, which the fused optimiser needs.
        most: largest norm of all gradients together; None: no limit.
        count: None; or N: each tensor has a first axis [N] of agents, whose norms are separate.

    Returns:
        The clipped gradients, and the norm before clipping, float [] or [N].
    """
    if count is None:
        norm = torch.nn.utils.get_total_norm(list(grads), foreach=True)
    else:
        norm = torch.stack([g.reshape(count, -1).norm(dim=1) for g in grads]).norm(dim=0)
    if most is not None:
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        if count is None:
            grads = torch._foreach_mul(list(grads), factor)
        else:
            grads = [g * factor.view(count, *[1] * (g.ndim - 1)) for g in grads]
    in_order = [
        g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for g, p in zip(grads, trained, strict=True)
    ]
    return in_order, norm


def groups_of(algorithm: Algorithm) -> dict[str, TensorDictBase]:
    """The groups of an algorithm and of its target networks by name."""
    names = [group.name for group in algorithm.groups]
    return {name: getattr(algorithm.loss, name).data for name in (*names, *algorithm.targets.values())}


def read_by(part: Part, trained: Sequence[Trained]) -> Keys:
    """Keys of what a part may read besides the groups that it trains: target networks, other groups, buffers."""
    targets = [(one.group.target, key) for one in trained if one.group.target for key in one.keys]
    others = [(one.group.name, key) for one in trained if one.group.name not in part.trains for key in one.keys]
    buffers = [(one.group.name, key) for one in trained for key in one.group.buffers]
    return [*targets, *others, *buffers]


def _filled(groups: dict[str, TensorDictBase], keys: list[tuple[str, NestedKey]], tensors: list[Tensor]) -> dict:
    """Copies of groups in which the tensors under `keys`, (group, key), are replaced; constants stay."""
    filled = {name: groups[name].copy() for name in {name for name, _ in keys}}
    for (name, key), tensor in zip(keys, tensors, strict=True):
        filled[name].set(key, tensor)
    return filled
