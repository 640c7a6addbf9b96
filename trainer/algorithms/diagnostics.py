"""Figures that tell a practitioner what a learner does, of one batch, whenever a row is logged.

They are kept out of the update, which they would slow down. docs/diagnostics.md says what each looks like when it goes
wrong.
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

DORMANT = 0.025  # share of its layer's mean activity below which a unit sleeps


@torch.no_grad()
def diagnose_values(policy: QValueActor, loss: LossModule, batch: Mapping[Any, Tensor]) -> dict[str, float]:
    """Figures of the weights of now on `batch`, by mean weights where a network is noisy; waits for the device.

    Args:
        policy: the actor.
        loss: holds its weights, and the target network's.
        batch: tensors [B, ...].

        - `q_mean`, `q_max`: of the best legal action's value over the batch; `target_q_mean`: by the target network.
    - `parameter_norm`: Euclidean, of all trained values.
    - `dormant_share`: units that are hardly ever active (Sokar et al. 2023, definition 3.1).
    - `churn`: share of the batch whose greedy action differs between online and target network (after Schaul et al.
      2022, who compare before and after an update).
    - `greedy_share_<i>`: how often action i is the greedy one.
    """
    leaves = [batch[key] for key in policy.in_keys if key != "action_mask"]
    mask = batch.get("action_mask")
    with _with_weights(loss, loss.value_network_params) as network, _activity(network) as activity:
        values = network(*leaves)
    with _with_weights(loss, loss.target_value_network_params) as network:
        delayed = network(*leaves)
    greedy, before = best(values, mask), best(delayed, mask)
    q = values.gather(-1, greedy[:, None])
    shares = torch.bincount(greedy, minlength=values.shape[-1]) / len(greedy)
    trained = [p for p in loss.value_network_params.values(True, True) if isinstance(p, nn.Parameter)]
    asleep = torch.cat([unit <= DORMANT * unit.mean() for unit in activity]).float() if activity else torch.zeros(1)
    figures = {
        "q_mean": q.mean(),
        "q_max": q.max(),
        "target_q_mean": delayed.gather(-1, before[:, None]).mean(),
        "parameter_norm": torch.nn.utils.get_total_norm([p.detach() for p in trained]),
        "dormant_share": asleep.mean(),
        "churn": (greedy != before).float().mean(),
        **{f"greedy_share_{i}": share for i, share in enumerate(shares)},
    }
    numbers = torch.stack([figure.float().to(values.device) for figure in figures.values()]).tolist()
    return dict(zip(figures, numbers, strict=True))


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
def _activity(network: nn.Module) -> Iterator[list[Tensor]]:
    """Mean absolute output of every unit, a tensor [units] for each activation that runs within."""
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
