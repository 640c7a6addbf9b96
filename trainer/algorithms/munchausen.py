"""Munchausen-DQN: the reward plus the scaled log-policy (Vieillard et al. 2020, eq. 2, with the clipping of section 3).

`y = r + alpha [t ln pi(a|s)]_clip^0 + gamma^m (1 - terminated) sum_a' pi(a'|s') (Q'(s', a') - t ln pi(a'|s'))`, where
`pi = softmax(Q' / t)` over the legal actions and Q' is the target network. With n-step returns the log-policy is added
only for the first action, as a batch has only its state.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.algorithms import targets
from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.config.algorithms import MunchausenConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.values import value_network


def build(config: MunchausenConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    network = value_network(spec, config, learner.channels_last)
    policy = actor(network, spec)
    loss = targets.ObjectiveLoss(policy, partial(objective, config=config))
    return value_algorithm(config, network, policy, loss, targets.td_error_of, targets.priority_of)


def objective(
    online: targets.Network, target: targets.Network, batch: TensorDictBase, config: MunchausenConfig
) -> targets.Errors:
    """Loss, absolute TD error and priority, [B] each."""
    value = targets.of_action(online(batch), batch["action"]).squeeze(-1)
    with torch.no_grad():
        wanted = soft_target(target(batch).squeeze(-1), target(batch["next"]).squeeze(-1), batch, config)
    difference = wanted - value
    return targets.distance(difference, config.loss_function), difference.abs(), difference.abs()


def soft_target(now: Tensor, following: Tensor, batch: TensorDictBase, config: MunchausenConfig) -> Tensor:
    """The target y, [B], see the beginning of this file, from the target network's values [B, A] of s and s'."""
    temperature = config.munchausen_temperature
    if config.value_rescaling:
        now, following = targets.unrescale(now), targets.unrescale(following)
    log_policy = scaled_log_policy(now, batch.get("action_mask", None), temperature)
    bonus = log_policy.gather(-1, batch["action"].unsqueeze(-1)).clamp(config.munchausen_clip, 0)
    log_next = scaled_log_policy(following, targets.next_mask(batch), temperature)
    policy = (log_next / temperature).exp()
    # An illegal action has probability 0 and log-probability -inf, whose product would be NaN.
    terms = torch.where(policy > 0, policy * (following - log_next), 0)
    soft_value = terms.sum(-1, keepdim=True)
    wanted = batch["next", "reward"] + config.munchausen_alpha * bonus
    wanted = wanted + targets.discounts(batch, config.gamma) * soft_value
    return (targets.rescale(wanted) if config.value_rescaling else wanted).squeeze(-1)


def scaled_log_policy(values: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """`t ln softmax(values / t)` over the legal actions, [B, A]; an illegal one's is -inf."""
    masked = values if mask is None else values.masked_fill(~mask, -torch.inf)
    return temperature * (masked / temperature).log_softmax(-1)
