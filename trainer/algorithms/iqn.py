"""IQN: the return's quantiles at fractions that each update draws (Dabney et al. 2018a, eq. 3 and algorithm 1).

`Z_tau(s, a) = f(psi(s) * phi(tau))_a`. The value of an action is the mean over even fractions in (0, risk_level]: 1 is
risk-neutral; below 1 only the worst outcomes count (the paper's CVaR, section 3.2).
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase

from trainer.algorithms import targets
from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.algorithms.qrdqn import bootstrap, errors
from trainer.config.algorithms import IQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.implicit_quantiles import ImplicitQuantileNetwork


def build(config: IQNConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    network = ImplicitQuantileNetwork(spec, config, learner.channels_last)
    policy = actor(network, spec)
    loss = targets.ObjectiveLoss(policy, partial(objective, config=config))
    return value_algorithm(config, network, policy, loss, targets.td_error_of, targets.priority_of)


def objective(
    online: targets.Network, target: targets.Network, batch: TensorDictBase, config: IQNConfig
) -> targets.Errors:
    """Quantile regression loss, difference of the means and, as priority, the same difference, [B] each."""
    action = batch["action"]
    shape, device = (len(action), config.num_fractions), action.device
    fractions = torch.rand(shape, device=device)
    quantiles = targets.of_action(online(batch, method="quantiles", fractions=fractions), action)
    with torch.no_grad():
        drawn = torch.rand(shape, device=device)
        following = target(batch["next"], method="quantiles", fractions=drawn)
        judges = drawn * config.risk_level  # as for acting
        if config.double:
            judge = online(batch["next"], method="quantiles", fractions=judges)
        elif config.risk_level < 1:
            judge = target(batch["next"], method="quantiles", fractions=judges)
        else:
            judge = following
        wanted = bootstrap(following, judge, batch, config)
    return errors(quantiles, wanted, fractions, config.loss_function)
