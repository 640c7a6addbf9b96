"""Loss, gradient and its clipping as one function of plain tensors, which can be recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from trainer.algorithms import Algorithm
from trainer.learning.feed import Batch, to_tensordict

if TYPE_CHECKING:
    from trainer.learning.update import Updater

Keys = list[tuple[str, NestedKey]]


def make_gradients(updater: Updater, batch: Batch, count: int | None = None) -> tuple[Callable, list[str]]:
    """Make a function of plain tensors that computes the loss and the clipped gradient.

    Args:
        updater: with the loss, and the tensors for the sizes.
        batch: an example of the batches, for its keys and size.
        count: None; or N, for N agents with the same shapes: every tensor has a first axis [N]. The result of one agent
            does not depend on the others, not even where these are NaN.

    Returns:
        `gradients(*trained, *targets, not_finite, sums, *batch.values()) -> (*clipped gradients, priorities)`, which
        adds the metrics to `sums`, and sets `not_finite` to 1 if the loss or a gradient is not finite; and the names of
        the metrics.
    """
    config, algorithm = updater.config, updater.algorithm
    ((part,),) = algorithm.phases  # an algorithm of several parts would need a function for each
    number = len(updater.trained_keys)
    keys, batch_size = list(batch), batch["next", "reward"].shape[-2]
    names: list[str] = []
    autocast = torch.autocast(updater.device.type, torch.bfloat16) if config.precision == "bfloat16" else nullcontext()

    def evaluate(leaves: Sequence[Tensor], targets: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple:
        sample = to_tensordict(dict(zip(keys, rest, strict=True)), batch_size)
        groups = _filled(updater.groups, updater.trained_keys + updater.target_keys, [*leaves, *targets])
        with autocast:
            found = part.evaluate(groups, sample)
        return found.loss, (found.loss, found.metrics, found.priority)

    def differentiate(leaves: Sequence[Tensor], targets: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple:
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_(True) for p in leaves]
            out, parts = evaluate(leaves, targets, rest)
            return torch.autograd.grad(out, leaves), parts

    if count is not None:  # vmap works with torch.func.grad, not with torch.autograd.grad
        one = torch.func.grad(evaluate, has_aux=True)
        differentiate = torch.vmap(one, randomness="different")

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        trained, targets = tensors[:number], tensors[number : 2 * number]
        not_finite, sums, *rest = tensors[2 * number :]
        grads, (out, shown, priority) = differentiate(trained, targets, rest)
        with torch.no_grad():
            in_order, norm = clipped(grads, trained, config.max_grad_norm, count)
            not_finite.copy_(torch.maximum(not_finite, (~torch.isfinite(norm + out)).float()))
            metrics = {"loss": out, **shown, "grad_norm": norm}
            names[:] = metrics
            sums[..., : len(metrics)].add_(torch.stack([m.float() for m in metrics.values()], -1))
        return *in_order, priority

    # Run once, on copies, to find the names.
    if count is None:
        gradients(*[t.clone() for t in (*updater.inputs, *batch.values())])
    return gradients, names


def clipped(
    grads: list[Tensor] | tuple[Tensor, ...], trained: Sequence[Tensor], most: float | None, count: int | None
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
        norm = torch.nn.utils.get_total_norm(grads, foreach=True)
    else:
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    if most is not None:
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        if count is None:
            grads = torch._foreach_mul(grads, factor)
        else:
            grads = [g * factor.view(count, *[1] * (g.ndim - 1)) for g in grads]
    in_order = [
        g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for g, p in zip(grads, trained, strict=True)
    ]
    return in_order, norm


def parameter_groups(algorithm: Algorithm) -> tuple[dict[str, TensorDictBase], Keys, Keys]:
    """The groups of an algorithm by name; (group, key) of each trained tensor, and of its copy in a target network."""
    loss, targets = algorithm.loss, algorithm.targets
    trained = [
        (name, key)
        for name in algorithm.trained
        for key, leaf in getattr(loss, name).items(True, True)
        if isinstance(leaf, torch.nn.Parameter)
    ]
    groups = {name: getattr(loss, name).data for name in (*algorithm.trained, *targets.values())}
    return groups, trained, [(targets[name], key) for name, key in trained]


def _filled(groups: dict[str, TensorDictBase], keys: list[tuple[str, NestedKey]], tensors: list[Tensor]) -> dict:
    """Copies of groups in which the tensors under `keys`, (group, key), are replaced; constants stay."""
    filled = {name: groups[name].copy() for name in {name for name, _ in keys}}
    for (name, key), tensor in zip(keys, tensors, strict=True):
        filled[name].set(key, tensor)
    return filled
