"""Metrics that diagnose a learner, of one batch for each row; docs/diagnostics.md describes how they look in trouble.

They are no part of the update, which they would slow down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import LossModule

from trainer.algorithms.targets import best
from trainer.config.registries import ACTIVATIONS

DORMANT = 0.025  # a unit with less than this share of its layer's mean activity is dormant


@torch.no_grad()
def diagnose_values(policy: QValueActor, loss: LossModule, batch: Mapping[Any, Tensor]) -> dict[str, float]:
    """Metrics of the present weights on a batch; noisy layers use their mean weights. Waits for the device.

    Args:
        policy: the actor.
        loss: has the weights of the network and of the target network.
        batch: tensors [B, ...].

    Returns:
        - `q_mean`, `q_max`: mean and maximum of the best legal action's value over the batch.
        - `target_q_mean`: as `q_mean`, by the target network.
        - `parameter_norm`: Euclidean norm of all parameters.
        - `dormant_share`: share of units that are hardly ever active (Sokar et al. 2023, definition 3.1).
        - `churn`: share of the batch where network and target network differ in the greedy action (after Schaul et al.
          2022, who compare before and after an update).
        - `greedy_share_<i>`: share of the batch where action i is the greedy one; not for actions of several choices,
          where the others are means over the choices.
    """
    leaves = [batch[key] for key in policy.in_keys if key != "action_mask"]
    mask = batch.get("action_mask")
    with _with_weights(loss, loss.value_network_params) as network, activity(network) as units:
        values = network(*leaves)
    with _with_weights(loss, loss.target_value_network_params) as network:
        target_values = network(*leaves)
    greedy, target_greedy = best(values, mask), best(target_values, mask)
    q = values.gather(-1, greedy.unsqueeze(-1))
    flat = greedy.ndim == 1  # one choice, and not several
    shares = torch.bincount(greedy, minlength=values.shape[-1]) / len(greedy) if flat else ()
    trained = [p for p in loss.value_network_params.values(True, True) if isinstance(p, nn.Parameter)]
    asleep = torch.cat([unit <= DORMANT * unit.mean() for unit in units]).float() if units else torch.zeros(1)
    metrics = {
        "q_mean": q.mean(),
        "q_max": q.max(),
        "target_q_mean": target_values.gather(-1, target_greedy.unsqueeze(-1)).mean(),
        "parameter_norm": torch.nn.utils.get_total_norm([p.detach() for p in trained]),
        "dormant_share": asleep.mean(),
        "churn": (greedy != target_greedy).float().mean(),
        **{f"greedy_share_{i}": share for i, share in enumerate(shares)},
    }
    as_floats = torch.stack([metric.float().to(values.device) for metric in metrics.values()]).tolist()
    return dict(zip(metrics, as_floats, strict=True))


@contextmanager
def _with_weights(loss: LossModule, weights: TensorDictBase) -> Iterator[nn.Module]:
    with weights.data.to_module(loss.value_network, preserve_module_state=False):
        network = cast(Any, loss.value_network).module[0].module
        training = network.training
        network.eval()
        try:
            yield network
        finally:
            network.train(training)


@contextmanager
def activity(network: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the mean absolute output of every unit, a tensor [units] for each activation called in the context."""
    seen: list[Tensor] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        units = out.flatten(2).abs().mean((0, 2)) if out.ndim == 4 else out.flatten(0, -2).abs().mean(0)
        seen.append(units)

    kinds = tuple(map(resolve_name, ACTIVATIONS.values()))
    handles = [module.register_forward_hook(look) for module in network.modules() if isinstance(module, kinds)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
