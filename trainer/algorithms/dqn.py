"""DQN with double Q-learning and n-step returns, on TorchRL's loss.

Mnih et al. 2015 (Nature 518), eq. 2 with the Huber loss; the double estimator of van Hasselt et al. 2016, eq. 4:
``y = R + gamma^m * (1 - terminated) * Q_target(s', argmax_a Q(s', a))``, where R is the discounted sum of m rewards.
"""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

from envs import EnvSpec
from trainer.algorithms.algorithm import Algorithm
from trainer.config import AlgorithmConfig, LearnerConfig
from trainer.networks import QNetwork


def build(config: AlgorithmConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    network = QNetwork(
        spec, config.hidden_sizes, config.activation, config.cnn, learner.channels_last, config.scale_observations
    )
    policy = QValueActor(
        network,
        in_keys=[leaf.name for leaf in spec.leaves],
        action_space="categorical",
        action_mask_key="action_mask" if spec.has_mask else None,
    )
    loss = DQNLoss(
        policy,
        action_space="categorical",
        delay_value=True,
        double_dqn=config.double,
        loss_function=config.loss_function,
    )
    loss.make_value_estimator(gamma=config.gamma)
    return Algorithm(network, policy, loss, diagnostics)


def diagnostics(batch: TensorDictBase, losses: TensorDictBase) -> dict[str, Tensor]:
    """Loss and mean squared TD error (TorchRL's ``td_error`` is the squared one) of an update, scalars."""
    return {"loss": losses["loss"].detach(), "td_error_squared": batch["td_error"].detach().mean()}
