"""What algorithms with actor and critics share: a module with their groups, functions of them, diagnostics.

n is the number of critics, K of a critic's outputs, B the batch size, A of an action's numbers. Actions in losses are
scaled to [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.objectives import LossModule

from trainer.algorithms.algorithm import ActionValues, Group, Part
from trainer.algorithms.diagnostics import DORMANT, activity
from trainer.algorithms.targets import discounts
from trainer.config.algorithms import ActorCriticConfig
from trainer.envs import EnvSpec

ACTOR, CRITICS, TEMPERATURE = "actor_network_params", "qvalue_network_params", "temperature_params"
SATURATED = 0.97  # a scaled action beyond this is next to its bound


class ActorCriticLoss(LossModule):
    """TorchRL's loss module around parts: all groups, and the networks that are called with them.

    Args:
        spec: the environment.
        actor: of those who act.
        critics: an ensemble.
        targets: of `ACTOR` and `CRITICS` those that have target networks.
        temperature: the first one, of algorithms that learn it; None: there is none.
        writes: what the actor gives, the name of TorchRL's key.
    """

    actor_network: TensorDictSequential  # TorchRL needs these annotations
    actor_network_params: TensorDictParams
    target_actor_network: TensorDictSequential
    target_actor_network_params: TensorDictParams
    qvalue_network: TensorDictModule
    qvalue_network_params: TensorDictParams
    target_qvalue_network: TensorDictModule
    target_qvalue_network_params: TensorDictParams

    def __init__(
        self, spec: EnvSpec, actor: nn.Module, critics: nn.Module, targets: tuple[str, ...] = (CRITICS,),
        temperature: float | None = None, writes: str = "action",
    ) -> None:  # fmt: skip
        super().__init__()
        self.leaves, self.targets = [leaf.name for leaf in spec.leaves], targets
        self.policy = TensorDictSequential(TensorDictModule(actor, self.leaves, [writes]))
        value = TensorDictModule(critics, [*self.leaves, "action"], ["state_action_value"])
        self.convert_to_functional(self.policy, "actor_network", create_target_params=ACTOR in targets)
        self.convert_to_functional(value, "qvalue_network", create_target_params=CRITICS in targets)
        if temperature is not None:
            log_alpha = nn.Parameter(torch.tensor(math.log(temperature)))
            self.temperature_params = TensorDictParams(TensorDict({"log_alpha": log_alpha}, []))
        self.parts: dict[str, Part] = {}  # by the entry of `forward`
        self.in_keys, self.out_keys = [*self.leaves, "action", "next"], ["loss_qvalue", "loss_actor"]

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """The loss of each part on a batch [B], float [] each, with noise from torch's global generator."""
        groups = {name: getattr(self, name) for part in self.parts.values() for name in part.trains}
        groups |= {f"target_{name}": getattr(self, f"target_{name}") for name in self.targets}
        found = {}
        for name, part in self.parts.items():
            noise = [torch.randn(len(tensordict), *shape) for shape in part.noise]
            found[name] = part.evaluate(groups, tensordict, *noise).loss
        return TensorDict(found)

    def actor(self, weights: TensorDictBase, seen: TensorDictBase, method: str = "distribution") -> Any:
        """A method of the actor on the leaves of `seen` [B], with these weights."""
        with weights.to_module(self.actor_network, preserve_module_state=False):
            network = self.actor_network.module[0].module
            return getattr(network, method)(*[seen[leaf] for leaf in self.leaves])

    def q(self, weights: TensorDictBase, seen: Mapping[Any, Any], action: Tensor | None, **more: Any) -> Tensor:
        """Outputs of the critics with these weights, float [n, B, K]; `action` is scaled, [B, A]."""
        with weights.to_module(self.qvalue_network, preserve_module_state=False):
            return self.qvalue_network.module(*[seen[leaf] for leaf in self.leaves], action=action, **more)

    def scaled(self, action: Tensor) -> Tensor:
        """Actions [B, *shape] of the environment, scaled: [B, A]."""
        return self.qvalue_network.module.bounds.to_scaled(action)


def backed_up(batch: TensorDictBase, following: Tensor, config: ActorCriticConfig) -> Tensor:
    """`R + gamma^m (1 - terminated) x` for x [B, L] of the next state: [B, L]."""
    return batch["next", "reward"] + discounts(batch, config.gamma) * following


def mean_loss(of_rows: Tensor, batch: TensorDictBase) -> Tensor:
    """The mean of losses [B], with importance weights if the batch has them."""
    weight = batch.get("priority_weight", None)
    return (of_rows if weight is None else of_rows * weight).mean()


def squared_errors(q: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the critics' squared errors, and the mean of their absolute ones, [B] each.

    Args:
        q: float [n, B, 1].
        wanted: targets, float [B, 1].
    """
    error = (q - wanted).squeeze(-1)
    return error.square().sum(0), error.detach().abs().mean(0)


def groups_of(
    config: ActorCriticConfig, targets: tuple[str, ...], buffers: tuple[NestedKey, ...] = ()
) -> tuple[Group, ...]:
    """The groups of actor and critics; `buffers` are those of the critics that updates write."""
    found = (Group(ACTOR, learning_rate=config.actor_learning_rate), Group(CRITICS, buffers=buffers))
    return tuple(replace(group, target=f"target_{group.name}" if group.name in targets else None) for group in found)


def action_values(loss: ActorCriticLoss, judge: Callable[[Tensor], Tensor]) -> ActionValues:
    """Values of actions in a box by the critics; `judge` takes their outputs [n, B, K] to values [B]."""

    def of(weights: TensorDictBase, seen: Mapping[str, Tensor]) -> Tensor:
        return judge(loss.q(weights, seen, loss.scaled(seen["action"])))

    return ActionValues(CRITICS, of)


@torch.no_grad()
def diagnose(loss: ActorCriticLoss, judge: Callable[[Tensor], Tensor], batch: Mapping[Any, Tensor]) -> dict[str, float]:
    """Metrics of the present weights on a batch, for the deterministic action. Waits for the device.

    Args:
        loss: has the weights.
        judge: outputs [n, B, K] of the critics to values [B].
        batch: tensors [B, ...].

    Returns:
        - `q_mean`, `q_max`: mean and maximum of the action's value over the batch.
        - `target_q_mean`: as `q_mean`, by the critics' target network, if there is one.
        - `q_spread`: standard deviation over the critics, mean over the batch.
        - `action_saturation`: share of the actions' numbers that lie next to a bound.
        - `parameter_norm`, `dormant_share`: of the critics; see `trainer.algorithms.diagnostics.diagnose_values`.
    """
    seen = TensorDict({leaf: batch[leaf] for leaf in loss.leaves}, [len(batch["action"])])
    weights = loss.qvalue_network_params.data
    action = loss.scaled(loss.actor(loss.actor_network_params.data, seen, "forward"))
    with activity(loss.qvalue_network.module) as units:
        outputs = loss.q(weights, seen, action)
    q = judge(outputs)
    asleep = torch.cat([(unit <= DORMANT * unit.mean()) for unit in units]).float() if units else torch.zeros(1)
    metrics = {
        "q_mean": q.mean(),
        "q_max": q.max(),
        "q_spread": outputs.mean(-1).std(0, correction=0).mean(),
        "action_saturation": (action.abs() > SATURATED).float().mean(),
        "parameter_norm": torch.nn.utils.get_total_norm([p for p in weights.values(True, True)]),
        "dormant_share": asleep.mean(),
    }
    if CRITICS in loss.targets:
        metrics["target_q_mean"] = judge(loss.q(loss.target_qvalue_network_params.data, seen, action)).mean()
    as_floats = torch.stack([metric.float().to(q.device) for metric in metrics.values()]).tolist()
    return dict(zip(metrics, as_floats, strict=True))
