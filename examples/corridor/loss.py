"""The loss of hysteretic Q-learning (Matignon et al. 2007): errors that lower a value count less.

`delta = R + gamma^m max_a Q_target(s', a) - Q(s, a)`; the loss is `huber(delta)` for `delta >= 0`, else
`patience * huber(delta)`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from corridor.algorithm import HystereticConfig
from trainer.algorithms import targets
from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.networks.values import value_network


def build(section: HystereticConfig, learner: Any, spec: Any) -> Algorithm:
    """The algorithm for an environment.

    Args:
        section: the section `algorithm` of the configuration.
        learner: the section `learner`.
        spec: the environment.
    """
    network = value_network(spec, section, learner.channels_last)
    policy = actor(network, spec)
    loss = targets.ObjectiveLoss(policy, partial(objective, section=section))
    return value_algorithm(section, network, policy, loss, targets.td_error_of, targets.priority_of)


def objective(
    online: targets.Network, target: targets.Network, batch: TensorDictBase, section: HystereticConfig
) -> targets.Errors:
    """Loss, absolute TD error and priority of each transition, float [B].

    Args:
        online: gives the outputs of the network, [B, num_actions, 1], for `batch` or
            `batch["next"]`.
        target: the same by the target network.
        batch: transitions; `targets` has what is computed of them.
        section: of the algorithm.
    """
    value = targets.of_action(online(batch), batch["action"]).squeeze(-1)
    with torch.no_grad():
        following = target(batch["next"])
        best = targets.best(following.squeeze(-1), targets.next_mask(batch))
        wanted = targets.bellman(targets.of_action(following, best), batch, section).squeeze(-1)
    difference = wanted - value
    weight = torch.where(difference < 0, section.patience, 1.0)
    return weight * targets.huber(difference), difference.abs(), difference.abs()
