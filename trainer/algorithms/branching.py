"""DQN for several choices at once: branching dueling Q-networks (Tavakoli et al. 2018, Action Branching Architectures).

`y = R + gamma^m (1 - terminated) 1/D sum_d Q'_d(s', argmax_a Q_d(s', a))` (eq. 6), one target for all D branches, and
the loss `1/D sum_d L(y - Q_d(s, a_d))` (eq. 7). The priority is the mean of the branches' absolute errors, which is the
paper's sum (eq. 8) over D. The paper also divides the gradient that enters the trunk by D + 1, which Adam and the
gradient's norm undo for the most part; here it is not divided.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.acting.acting import best_choices
from trainer.algorithms import targets
from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.config.algorithms import DQNConfig
from trainer.config.fields import ConfigError
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.branches import BranchedNetwork


def build(config: DQNConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator.

    Raises:
        ConfigError: `algorithm.network` is set.
    """
    if config.network != "auto":
        raise ConfigError(
            f"algorithm.network={config.network} gives values of numbered actions, and {spec.id} has several choices "
            "at once: leave it out; algorithm.encoders, algorithm.cnn and algorithm.activation can be yours"
        )
    network = BranchedNetwork(spec, config, learner.channels_last)
    policy = actor(network, spec)
    loss = targets.ObjectiveLoss(policy, partial(objective, config=config))
    return value_algorithm(
        config, network, policy, loss, targets.td_error_of, targets.priority_of, choose=best_choices
    )  # fmt: skip


def objective(
    online: targets.Network, target: targets.Network, batch: TensorDictBase, config: DQNConfig
) -> targets.Errors:
    """Loss, absolute TD error and priority, the means over branches, [B] each."""
    values = of_choices(online(batch, method="forward"), batch["action"].flatten(1))
    with torch.no_grad():
        following = target(batch["next"], method="forward")
        judge = online(batch["next"], method="forward") if config.double else following
        wanted = branched_target(following, judge.argmax(-1), batch, config)
    difference = wanted - values
    td_error = difference.abs().mean(-1)
    return targets.distance(difference, config.loss_function).mean(-1), td_error, td_error


def branched_target(following: Tensor, choice: Tensor, batch: TensorDictBase, config: DQNConfig) -> Tensor:
    """The target y, [B, 1], by the values [B, D, M] of the next state and the choices int64 [B, D] there."""
    return targets.bellman(of_choices(following, choice).mean(-1, keepdim=True), batch, config)


def of_choices(values: Tensor, choice: Tensor) -> Tensor:
    """The value of one choice of each branch: [B, D, M] and int64 [B, D] to [B, D]."""
    chosen = torch.arange(values.shape[-1], device=choice.device) == choice.unsqueeze(-1)
    return torch.where(chosen, values, 0.0).sum(-1)  # as `trainer.algorithms.targets.of_action`
