"""Soft actor-critic for numbered actions (Christodoulou 2019, section 3): all expectations over actions are exact.

With `pi = softmax(logits)` over the legal actions and the minimum Q over the critics:

- Critics (eq. 10 to 12): `y = R + gamma^m (1 - terminated) sum_a pi(a|s') (Q'(s', a) - alpha ln pi(a|s'))`.
- Actor (eq. 12): `sum_a pi(a|s) (alpha ln pi(a|s) - Q(s, a))`.
- Temperature (eq. 11): `-ln alpha (sum_a pi(a|s) ln pi(a|s) + target entropy)`.

TorchRL's DiscreteSACLoss computes the same (`tests/algorithms/test_sac_discrete.py`), but knows no masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from trainer.acting.acting import Acting, noise_of_logits, sampled_action
from trainer.acting.exploration import AsChosen
from trainer.algorithms import actor_critic
from trainer.algorithms.actor_critic import ACTOR, CRITICS, TEMPERATURE, ActorCriticLoss
from trainer.algorithms.algorithm import (
    ActionValues,
    Algorithm,
    Evaluation,
    Group,
    Groups,
    Part,
    Phase,
    target_updates_of,
)
from trainer.algorithms.sac import temperature
from trainer.algorithms.targets import best
from trainer.config.algorithms import EntropyConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.continuous import Categorical, Critics

ENTROPY_SHARE = 0.98  # of the largest possible entropy: the target of section 3 of the paper's code


def build(config: EntropyConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    actor = Categorical(spec, config, learner.channels_last)
    critics = Critics(spec, config, learner.channels_last, config.num_critics, spec.num_actions)
    learned = config.temperature if config.learn_temperature else None
    loss = ActorCriticLoss(spec, actor, critics, (CRITICS,), learned, writes="logits")
    of_critics = Part((CRITICS,), partial(evaluate_critics, loss, config))
    trains = (ACTOR, TEMPERATURE) if config.learn_temperature else (ACTOR,)
    of_actor = Part(trains, partial(evaluate_actor, loss, config), prefix="actor_")
    loss.parts |= {"loss_qvalue": of_critics, "loss_actor": of_actor}
    groups = actor_critic.groups_of(config, (CRITICS,))
    if config.learn_temperature:
        groups = (*groups, Group(TEMPERATURE, learning_rate=config.temperature_learning_rate))
    return Algorithm(
        actor, loss.policy, Acting(sampled_action, noise_of_logits, AsChosen), loss, groups,
        (Phase((of_critics, of_actor)),), target_updates_of(config), ACTOR, partial(diagnose, loss),
        action_values=ActionValues(CRITICS, partial(value, loss)),
    )  # fmt: skip


def evaluate_critics(loss: ActorCriticLoss, config: EntropyConfig, groups: Groups, batch: TensorDictBase) -> Evaluation:
    """The critics' loss.

    Args:
        loss: the networks.
        config: of the algorithm.
        groups: by name.
        batch: [B].
    """
    with torch.no_grad():
        share, log_share = policy(loss.actor(groups[ACTOR], batch["next"], "forward"), batch["next"])
        value = loss.q(groups[f"target_{CRITICS}"], batch["next"], None).amin(0)
        soft = (share * (value - temperature(groups, config) * log_share)).sum(-1, keepdim=True)
        wanted = actor_critic.backed_up(batch, soft, config)
    outputs = loss.q(groups[CRITICS], batch, None)
    chosen = torch.arange(outputs.shape[-1], device=outputs.device) == batch["action"][:, None]
    of_rows, td_error = actor_critic.squared_errors((outputs * chosen).sum(-1, keepdim=True), wanted)
    return Evaluation(actor_critic.mean_loss(of_rows, batch), {"td_error": td_error.mean()}, td_error)


def evaluate_actor(loss: ActorCriticLoss, config: EntropyConfig, groups: Groups, batch: TensorDictBase) -> Evaluation:
    """The loss of actor and temperature; arguments as `evaluate_critics`."""
    share, log_share = policy(loss.actor(groups[ACTOR], batch, "forward"), batch)
    alpha = temperature(groups, config)
    value = loss.q(groups[CRITICS], batch, None).amin(0)
    objective = (share * (alpha * log_share - value)).sum(-1).mean()
    entropy = -(share * log_share).sum(-1).detach()
    if config.learn_temperature:
        legal = batch.get("action_mask", None)
        count = torch.full_like(entropy, share.shape[-1]) if legal is None else legal.sum(-1)
        wanted = ENTROPY_SHARE * count.log() if config.target_entropy is None else config.target_entropy
        objective = objective - (groups[TEMPERATURE]["log_alpha"] * (wanted - entropy)).mean()
    return Evaluation(objective, {"entropy": entropy.mean(), "temperature": alpha})


def policy(logits: Tensor, seen: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Probabilities of the actions, float [B, A], and their logarithms; 0 and 0 where an action is illegal."""
    mask = seen.get("action_mask", None)
    if mask is None:
        log_share = logits.log_softmax(-1)
        return log_share.exp(), log_share
    # A large number in place of infinity, whose gradient would be NaN.
    log_share = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).log_softmax(-1)
    return log_share.exp(), log_share.masked_fill(~mask, 0.0)


def value(loss: ActorCriticLoss, weights: TensorDictBase, seen: Mapping[str, Tensor]) -> Tensor:
    """The least of the critics' values of numbered actions, float [B]; see `ActionValues`."""
    return loss.q(weights, seen, None).amin(0).gather(-1, seen["action"][:, None]).squeeze(-1)


@torch.no_grad()
def diagnose(loss: ActorCriticLoss, batch: Mapping[Any, Tensor]) -> dict[str, float]:
    """Metrics of the present weights on a batch, of the most probable action. Waits for the device.

    Args:
        loss: has the weights.
        batch: tensors [B, ...].

    Returns:
        `q_mean`, `q_max`, `target_q_mean`, `q_spread`, `parameter_norm` as in `actor_critic.diagnose`, and
        `greedy_share_<i>` as in `trainer.algorithms.diagnostics.diagnose_values`.
    """
    seen = TensorDict({leaf: batch[leaf] for leaf in loss.leaves}, [len(batch["action"])])
    weights = loss.qvalue_network_params.data
    greedy = best(loss.actor(loss.actor_network_params.data, seen, "forward"), batch.get("action_mask"))[:, None]
    outputs, target = loss.q(weights, seen, None), loss.q(loss.target_qvalue_network_params.data, seen, None)
    q = outputs.amin(0).gather(-1, greedy)
    shares = torch.bincount(greedy[:, 0], minlength=outputs.shape[-1]) / len(greedy)
    metrics = {
        "q_mean": q.mean(),
        "q_max": q.max(),
        "target_q_mean": target.amin(0).gather(-1, greedy).mean(),
        "q_spread": outputs.std(0, correction=0).gather(-1, greedy).mean(),
        "parameter_norm": torch.nn.utils.get_total_norm(list(weights.values(True, True))),
        **{f"greedy_share_{i}": share for i, share in enumerate(shares)},
    }
    as_floats = torch.stack([metric.float().to(q.device) for metric in metrics.values()]).tolist()
    return dict(zip(metrics, as_floats, strict=True))
