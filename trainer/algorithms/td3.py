"""TD3: twin critics, a delayed actor and a smoothed target (Fujimoto et al. 2018, algorithm 1).

`y = R + gamma^m (1 - terminated) min_i Q'_i(s', clip(pi'(s') + clip(e, -c, c), -1, 1))` with normal e; the actor
maximises the first critic, after the critics' step, in every `policy_delay`-th update, when the target networks move
too. Collectors add normal noise to the actions.

DDPG (Lillicrap et al. 2016) is a set of options: one critic, no delay, no noise in the target.

TorchRL's TD3Loss computes the same (`tests/algorithms/test_td3.py`), but draws its noise itself.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.acting.acting import Acting, point_in_box
from trainer.acting.exploration import GaussianNoise
from trainer.algorithms import actor_critic
from trainer.algorithms.actor_critic import ACTOR, CRITICS, ActorCriticLoss
from trainer.algorithms.algorithm import Algorithm, Evaluation, Groups, Part, Phase, TargetUpdates
from trainer.config.algorithms import TD3Config
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.continuous import Actor, Critics


def build(config: TD3Config, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    actor = Actor(spec, config, learner.channels_last, 1)
    critics = Critics(spec, config, learner.channels_last, config.num_critics, 1)
    loss = ActorCriticLoss(spec, actor, critics, targets=(ACTOR, CRITICS))
    noise = ((actor.bounds.size,),) if config.target_noise else ()
    of_critics = Part((CRITICS,), partial(evaluate_critics, loss, config), noise)
    of_actor = Part((ACTOR,), partial(evaluate_actor, loss), (), "actor_")
    loss.parts |= {"loss_qvalue": of_critics, "loss_actor": of_actor}
    explorer = partial(GaussianNoise, sigma=config.action_noise, theta=config.action_noise_theta)
    every = config.policy_delay if config.target_tau is not None else config.target_update_every_updates
    return Algorithm(
        actor, loss.policy, Acting(point_in_box, no_noise, explorer), loss,
        actor_critic.groups_of(config, (ACTOR, CRITICS)),
        (Phase((of_critics,)), Phase((of_actor,), config.policy_delay)), TargetUpdates(every, config.target_tau), ACTOR,
        partial(actor_critic.diagnose, loss, first), action_values=actor_critic.action_values(loss, first),
    )  # fmt: skip


def evaluate_critics(
    loss: ActorCriticLoss, config: TD3Config, groups: Groups, batch: TensorDictBase, noise: Tensor | None = None
) -> Evaluation:
    """The critics' loss.

    Args:
        loss: the networks.
        config: of the algorithm.
        groups: by name.
        batch: [B].
        noise: of the next action, float32 [B, A]; None: there is none.
    """
    with torch.no_grad():
        action = loss.actor(groups[f"target_{ACTOR}"], batch["next"], "numbers").float().tanh()
        if noise is not None:
            clip = config.target_noise_clip
            action = (action + (config.target_noise * noise).clamp(-clip, clip)).clamp(-1, 1)
        following = loss.q(groups[f"target_{CRITICS}"], batch["next"], action).amin(0)
        wanted = actor_critic.backed_up(batch, following, config)
    q = loss.q(groups[CRITICS], batch, loss.scaled(batch["action"]))
    of_rows, td_error = actor_critic.squared_errors(q, wanted)
    return Evaluation(actor_critic.mean_loss(of_rows, batch), {"td_error": td_error.mean()}, td_error)


def evaluate_actor(loss: ActorCriticLoss, groups: Groups, batch: TensorDictBase) -> Evaluation:
    """The actor's loss: minus the first critic's value of its action."""
    action = loss.actor(groups[ACTOR], batch, "numbers").float().tanh()
    return Evaluation(-first(loss.q(groups[CRITICS], batch, action)).mean(), {})


def first(outputs: Tensor) -> Tensor:
    """The first critic's value, [n, B, 1] to [B]."""
    return outputs[0].squeeze(-1)


def no_noise(network: torch.nn.Module, rows: int) -> tuple[int, ...]:
    """The actor is deterministic."""
    return (0,)
