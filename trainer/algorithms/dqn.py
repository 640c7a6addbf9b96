"""DQN with double Q-learning and n-step returns, on TorchRL's loss.

Mnih et al. 2015 (Nature 518), eq. 2 with the Huber loss; the double estimator of van Hasselt et al. 2016, eq. 4:
`y = R + gamma^m * (1 - terminated) * Q_target(s', argmax_a Q(s', a))`, where R is the discounted sum of m rewards.
"""

from __future__ import annotations

from functools import partial

from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.objectives import DQNLoss
from torchrl.objectives.value import TD0Estimator

from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.algorithms.targets import first_priority, rescale, unrescale
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.values import value_network


def build(config: DQNConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    network = value_network(spec, config, learner.channels_last)
    policy = actor(network, spec)
    loss = WeighedDQNLoss(
        policy,
        action_space="categorical",
        delay_value=True,
        double_dqn=config.double,
        loss_function=config.loss_function,
        reduction="none",
    )
    loss.make_value_estimator(gamma=config.gamma)
    if config.value_rescaling:
        estimator = RescaledTD0(gamma=config.gamma, value_network=loss.value_network)
        estimator.set_keys(value=loss.tensor_keys.value)
        loss.make_value_estimator(estimator)
    return value_algorithm(config, network, policy, loss, td_error, td_error, partial(first_priority, config=config))


class WeighedDQNLoss(DQNLoss):
    """TorchRL's loss, made with `reduction="none"`: the mean over the batch, with importance weights if there are any.

    TorchRL's own reduction divides by the sum of the weights; see `trainer.algorithms.targets.ObjectiveLoss`.
    """

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Entry `loss`, float []; see TorchRL."""
        return TensorDict(loss=super().forward(tensordict)["loss"].mean())


def td_error(batch: TensorDictBase) -> Tensor:
    """Absolute TD errors [B]; TorchRL's loss writes the squared ones."""
    return batch["td_error"].squeeze(-1).sqrt()


class RescaledTD0(TD0Estimator):
    """TorchRL's one-step target of rescaled values: `h(R + gamma^m h^-1(Q'))` (Pohlen et al. 2018, eq. 3)."""

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        target_params: TensorDictBase | None = None,
        next_value: Tensor | None = None,
        **kwargs,
    ) -> Tensor:
        """Targets [B, 1]; see TorchRL."""
        if next_value is None:
            next_value = self._next_value(tensordict, target_params, kwargs=kwargs)
        return rescale(super().value_estimate(tensordict, next_value=unrescale(next_value)))
