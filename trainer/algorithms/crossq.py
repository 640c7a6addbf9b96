"""CrossQ: soft actor-critic without target networks, with batch renormalisation in the critics (Bhatt et al. 2024).

One pass of the critics sees (s, a) and (s', a') together, so both are normalised by the same statistics (figure 2); the
targets are their own values of (s', a'), through which no gradient goes. The actor is updated every
`actor_every_updates`-th time, on critics that normalise by their running statistics.

Batch renormalisation is that of Ioffe 2017 (algorithm 1); see `trainer.networks.renorm`. TorchRL 0.14.1 has the layer,
whose statistics of the first updates are no average: its count is never clamped, so r and d are scaled by more than 1
after twice the warm-up.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.algorithms import actor_critic
from trainer.algorithms.actor_critic import ACTOR, CRITICS, ActorCriticLoss
from trainer.algorithms.algorithm import Algorithm, Evaluation, Groups
from trainer.algorithms.sac import Judgement, draw, least, smallest, soft_actor_critic, temperature
from trainer.config.algorithms import CrossQConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.renorm import RenormCritics

BUFFERS = ("mean", "var", "updates")  # of a layer, in the order of its new values


def build(config: CrossQConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    critics = RenormCritics(spec, config, learner.channels_last, config.num_critics, 1)
    judgement = Judgement(smallest, actor_critic.squared_errors, least)
    keys = tuple(("module", "norms", str(layer), name) for layer in range(len(critics.norms)) for name in BUFFERS)
    return soft_actor_critic(
        config, learner, spec, critics, judgement, targets=(), evaluate=partial(evaluate_critics, keys=keys),
        buffers=keys,
    )  # fmt: skip


def evaluate_critics(
    loss: ActorCriticLoss, judgement: Judgement, config: CrossQConfig, groups: Groups, batch: TensorDictBase,
    noise: Tensor, chosen: Tensor | None = None, *, keys: tuple[tuple[str, ...], ...],
) -> Evaluation:  # fmt: skip
    """The critics' loss, with the new statistics; see `trainer.algorithms.sac.evaluate_critics`."""
    following = batch["next"]
    with torch.no_grad():
        action, log_density = draw(loss.actor(groups[ACTOR], following), noise)
    both = {leaf: torch.cat([batch[leaf], following[leaf]]) for leaf in loss.leaves}
    statistics: list[Tensor] = []
    outputs = loss.q(groups[CRITICS], both, torch.cat([loss.scaled(batch["action"]), action]), statistics=statistics)
    now, then = outputs.chunk(2, 1)
    with torch.no_grad():
        if chosen is not None and config.critics_in_target is not None:
            then = then.index_select(0, chosen[0].topk(config.critics_in_target).indices)
        value = judgement.following(then) - temperature(groups, config) * log_density[:, None]
        wanted = actor_critic.backed_up(batch, value, config)
    of_rows, td_error = judgement.errors(now, wanted)
    buffers = {(CRITICS, key): new for key, new in zip(keys, statistics, strict=True)}
    return Evaluation(actor_critic.mean_loss(of_rows, batch), {"td_error": td_error.mean()}, td_error, buffers)
