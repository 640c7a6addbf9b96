"""QR-DQN: quantiles of the return by quantile regression (Dabney et al. 2018b, eq. 9, 10 and algorithm 1).

The K numbers of an action are the return's quantiles at `tau_i = (2 i + 1) / (2 K)`; their mean is its value.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.algorithms import targets
from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.config.algorithms import QRDQNConfig, ValueConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.values import value_network


def build(config: QRDQNConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    network = value_network(spec, config, learner.channels_last, config.num_quantiles)
    policy = actor(network, spec)
    loss = targets.ObjectiveLoss(policy, partial(objective, config=config))
    first = partial(targets.first_priority, config=config)
    return value_algorithm(config, network, policy, loss, targets.td_error_of, targets.priority_of, first)


def objective(
    online: targets.Network, target: targets.Network, batch: TensorDictBase, config: QRDQNConfig
) -> targets.Errors:
    """Quantile regression loss, difference of the means and, as priority, the same difference, [B] each."""
    quantiles = targets.of_action(online(batch), batch["action"])
    with torch.no_grad():
        following = target(batch["next"])
        judge = online(batch["next"]) if config.double else following
        wanted = bootstrap(following, judge, batch, config)
    count = config.num_quantiles
    fractions = (torch.arange(count, device=quantiles.device) + 0.5) / count
    return errors(quantiles, wanted, fractions, config.loss_function)


def bootstrap(following: Tensor, judge: Tensor, batch: TensorDictBase, config: ValueConfig) -> Tensor:
    """Quantiles of the target, [B, K]: `R + gamma^m (1 - terminated) Z'(s', a*)`; a* is best by the mean of `judge`."""
    action = targets.best(judge.mean(-1), targets.next_mask(batch))
    return targets.bellman(targets.of_action(following, action), batch, config)


def errors(quantiles: Tensor, wanted: Tensor, fractions: Tensor, loss_function: str) -> targets.Errors:
    """Loss, absolute TD error of the means, and priority of quantiles [B, K] at fractions [K] or [B, K]."""
    loss = quantile_loss(quantiles, wanted, fractions, loss_function)
    td_error = (wanted.mean(-1) - quantiles.mean(-1)).abs()
    return loss, td_error, td_error


def quantile_loss(quantiles: Tensor, wanted: Tensor, fractions: Tensor, loss_function: str) -> Tensor:
    """`sum_i mean_j |tau_i - [u_ij < 0]| L(u_ij)`, `u_ij = wanted_j - quantile_i`, float [B].

    Dabney et al. 2018b, eq. 10; L is the Huber loss with threshold 1, or the half square (which finds expectiles).

    Args:
        quantiles: predicted, [B, K].
        wanted: samples of the target's distribution, [B, L].
        fractions: tau, [K] or [B, K].
        loss_function: `smooth_l1` or `l2`.
    """
    difference = wanted.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [B, K, L]
    weight = (fractions.unsqueeze(-1) - (difference < 0).float()).abs()
    return (weight * targets.distance(difference, loss_function)).mean(-1).sum(-1)
