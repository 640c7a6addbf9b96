"""Soft actor-critic: the return plus the policy's entropy (Haarnoja et al. 2018b, "Algorithms and Applications").

- Critics (eq. 5 and 6): `y = R + gamma^m (1 - terminated) (min_i Q'_i(s', a') - alpha ln pi(a'|s'))` with a' drawn from
  the policy; all critics minimise the squared error.
- Actor (eq. 9): `alpha ln pi(a|s) - min_i Q_i(s, a)` of actions a that it draws.
- Temperature (eq. 17, with ln alpha in place of alpha): `-ln alpha (ln pi(a|s) + target entropy)`.

The policy is a Gaussian through tanh; its density is that of actions scaled to [-1, 1] (appendix C).

All gradients are computed at the same weights, as in TorchRL's SACLoss, whose losses and gradients are equal
(`tests/algorithms/test_sac.py`). That module draws its noise from the global generator, and has no separate functions
of critics and actor; here each part is recorded alone, and is given its noise.

REDQ (Chen et al. 2021, algorithm 1) is a set of options: many critics; each target takes the minimum over a few of them
(`critics_in_target`); the actor maximises their mean, and is updated less often. DroQ (Hiraoka et al. 2022) has two
critics with dropout and layer normalisation in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.nn.functional import softplus

from trainer.acting.acting import Acting, noise_of_actions, point_in_box
from trainer.acting.exploration import AsChosen
from trainer.algorithms import actor_critic
from trainer.algorithms.actor_critic import ACTOR, CRITICS, TEMPERATURE, ActorCriticLoss
from trainer.algorithms.algorithm import Algorithm, Evaluation, Group, Groups, Part, Phase, target_updates_of
from trainer.config.algorithms import EntropyConfig, GaussianConfig, SACConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.continuous import Actor, Critics
from trainer.networks.renorm import RenormCritics

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
GAUSSIAN = Acting(point_in_box, noise_of_actions, AsChosen)


@dataclass(frozen=True)
class Judgement:
    """How the outputs of the critics, [n, B, K], are used.

    Args:
        following: outputs for the next state to what is backed up, [B, L].
        errors: outputs and targets [B, L] to the loss and the absolute TD error, [B] each.
        value: outputs to the value that the actor maximises, [B].
    """

    following: Callable[[Tensor], Tensor]
    errors: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    value: Callable[[Tensor], Tensor]


def build(config: SACConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    value = least if config.actor_value == "min" else average
    critics = Critics(
        spec, config, learner.channels_last, config.num_critics, 1, config.critic_layer_norm, config.critic_dropout
    )
    judgement = Judgement(smallest, actor_critic.squared_errors, value)
    return soft_actor_critic(config, learner, spec, critics, judgement)


def soft_actor_critic(
    config: GaussianConfig, learner: LearnerConfig, spec: EnvSpec, critics: Critics | RenormCritics,
    judgement: Judgement,
    evaluate: Callable[..., Evaluation] | None = None, targets: tuple[str, ...] = (CRITICS,),
    buffers: tuple[NestedKey, ...] = (),
) -> Algorithm:  # fmt: skip
    """The algorithm with these critics.

    Args:
        config: of the algorithm.
        learner: the section `learner`.
        spec: the environment.
        critics: the ensemble.
        judgement: how their outputs are used.
        evaluate: the critics' loss; None: `evaluate_critics`.
        targets: groups with target networks.
        buffers: of the critics that updates write.
    """
    actor = Actor(spec, config, learner.channels_last, 2)
    learned = config.temperature if config.learn_temperature else None
    loss = ActorCriticLoss(spec, actor, critics, targets, learned)
    size = actor.bounds.size
    few = config.critics_in_target is not None and config.critics_in_target < config.num_critics
    noise = ((size,), *critics.noise, *critics.noise, *([(critics.count,)] if few else []))
    of_critics = Part((CRITICS,), partial(evaluate or evaluate_critics, loss, judgement, config), noise)
    trains = (ACTOR, TEMPERATURE) if config.learn_temperature else (ACTOR,)
    entropy = -float(size) if config.target_entropy is None else config.target_entropy
    of_actor = Part(
        trains, partial(evaluate_actor, loss, judgement, config, entropy), ((size,), *critics.noise), "actor_"
    )
    loss.parts |= {"loss_qvalue": of_critics, "loss_actor": of_actor}
    phases: tuple[Phase, ...] = (Phase((of_critics, of_actor)),)
    if config.actor_every_updates > 1:
        phases = (Phase((of_critics,)), Phase((of_actor,), config.actor_every_updates))
    groups = actor_critic.groups_of(config, targets, buffers)
    if config.learn_temperature:
        groups = (*groups, Group(TEMPERATURE, learning_rate=config.temperature_learning_rate))
    return Algorithm(
        actor, loss.policy, GAUSSIAN, loss, groups, phases, target_updates_of(config), ACTOR,
        partial(actor_critic.diagnose, loss, judgement.value),
        action_values=actor_critic.action_values(loss, judgement.value),
    )  # fmt: skip


def evaluate_critics(
    loss: ActorCriticLoss, judgement: Judgement, config: GaussianConfig, groups: Groups, batch: TensorDictBase,
    noise: Tensor, *more: Tensor,
) -> Evaluation:  # fmt: skip
    """The critics' loss.

    Args:
        loss: the networks.
        judgement: of the critics' outputs.
        config: of the algorithm.
        groups: by name.
        batch: [B].
        noise: of the next action, float32 [B, A].
        more: for the dropout of the target network, and of the critics (`Critics.forward`); then, if only some critics
            make the target, float32 [B, n]: those with the largest numbers in the first row.
    """
    layers = len(loss.qvalue_network.module.noise)
    of_target, of_critics, chosen = more[:layers], more[layers : 2 * layers], more[2 * layers :]
    with torch.no_grad():
        action, log_density = draw(loss.actor(groups[ACTOR], batch["next"]), noise)
        outputs = loss.q(groups[f"target_{CRITICS}"], batch["next"], action, noise=of_target)
        if chosen and config.critics_in_target is not None:
            outputs = outputs.index_select(0, chosen[0][0].topk(config.critics_in_target).indices)
        following = judgement.following(outputs) - temperature(groups, config) * log_density[:, None]
        wanted = actor_critic.backed_up(batch, following, config)
    outputs = loss.q(groups[CRITICS], batch, loss.scaled(batch["action"]), noise=of_critics)
    of_rows, td_error = judgement.errors(outputs, wanted)
    return Evaluation(actor_critic.mean_loss(of_rows, batch), {"td_error": td_error.mean()}, td_error)


def evaluate_actor(
    loss: ActorCriticLoss, judgement: Judgement, config: GaussianConfig, target_entropy: float, groups: Groups,
    batch: TensorDictBase, noise: Tensor, *of_critics: Tensor,
) -> Evaluation:  # fmt: skip
    """The loss of actor and temperature.

    Args:
        loss: the networks.
        judgement: of the critics' outputs.
        config: of the algorithm.
        target_entropy: of the policy.
        groups: by name.
        batch: [B].
        noise: of the actor's draws, float32 [B, A].
        of_critics: for the critics' dropout (`Critics.forward`).
    """
    action, log_density = draw(loss.actor(groups[ACTOR], batch), noise)
    alpha = temperature(groups, config)
    extra = {"noise": of_critics} if of_critics else {}
    value = judgement.value(loss.q(groups[CRITICS], batch, action, **extra))
    objective = (alpha * log_density - value).mean()
    if config.learn_temperature:
        log_alpha = groups[TEMPERATURE]["log_alpha"]
        objective = objective - (log_alpha * (log_density.detach() + target_entropy)).mean()
    return Evaluation(objective, {"entropy": -log_density.detach().mean(), "temperature": alpha})


def temperature(groups: Groups, config: EntropyConfig) -> Tensor:
    """alpha, float []; no gradient goes through it."""
    if config.learn_temperature:
        return groups[TEMPERATURE]["log_alpha"].detach().exp()
    return torch.tensor(config.temperature, device=next(iter(groups[ACTOR].values(True, True))).device)


def draw(distribution: tuple[Tensor, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
    """A Gaussian draw through tanh, float [B, A], and the logarithm of its density, float [B].

    `ln pi = sum(ln N(x) - ln(1 - tanh(x)^2))`, with `ln(1 - tanh(x)^2) = 2 (ln 2 - x - softplus(-2 x))`, which is exact
    for every x.

    Args:
        distribution: mean and logarithm of the standard deviation of the Gaussian, float [B, A] each.
        noise: standard normal, float32 [B, A].
    """
    mean, log_std = distribution
    x = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - HALF_LOG_2_PI
    return x.tanh(), (log_normal - 2 * (math.log(2) - x - softplus(-2 * x))).sum(-1)


def smallest(outputs: Tensor) -> Tensor:
    """The smallest of the critics' values, [n, B, 1] to [B, 1]."""
    return outputs.amin(0)


def least(outputs: Tensor) -> Tensor:
    """The smallest of the critics' values, [n, B, 1] to [B]."""
    return outputs.amin(0).squeeze(-1)


def average(outputs: Tensor) -> Tensor:
    """The mean of the critics' outputs, [n, B, K] to [B]."""
    return outputs.mean((0, -1))
