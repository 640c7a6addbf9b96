"""TQC: soft actor-critic with quantile critics, truncated together (Kuznetsov et al. 2020, algorithm 1).

Each of n critics has K quantiles. Those of all critics for the next state are sorted together, the largest
`dropped_quantiles` n are dropped, and the rest are the targets of every critic, by quantile regression (eq. 12). The
actor maximises the mean of all quantiles. TorchRL's TQCLoss computes the same (`tests/algorithms/test_tqc.py`).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from trainer.algorithms.algorithm import Algorithm
from trainer.algorithms.qrdqn import quantile_loss
from trainer.algorithms.sac import Judgement, average, soft_actor_critic
from trainer.config.algorithms import TQCConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.continuous import Critics


def build(config: TQCConfig, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    critics = Critics(spec, config, learner.channels_last, config.num_critics, config.critic_quantiles)
    judgement = Judgement(partial(truncated, dropped=config.dropped_quantiles), errors, average)
    return soft_actor_critic(config, learner, spec, critics, judgement)


def truncated(outputs: Tensor, dropped: int) -> Tensor:
    """The smallest n (K - dropped) quantiles of all critics, sorted: [n, B, K] to [B, n (K - dropped)]."""
    count, _, quantiles = outputs.shape
    return outputs.movedim(0, -2).flatten(-2).sort(-1).values[..., : count * (quantiles - dropped)]


def errors(outputs: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Quantile regression loss, mean over quantiles and sum over critics, and the error of the mean, [B] each.

    Args:
        outputs: quantiles, float [n, B, K].
        wanted: targets, float [B, L].
    """
    count = outputs.shape[-1]
    fractions = (torch.arange(count, device=outputs.device) + 0.5) / count
    loss = quantile_loss(outputs, wanted, fractions, "smooth_l1").sum(0) / count
    return loss, (wanted.mean(-1) - outputs.detach().mean((0, -1))).abs()
