"""C51: the return's distribution on fixed atoms (Bellemare et al. 2017, algorithm 1).

`z_i = v_min + i dz`, `dz = (v_max - v_min) / (K - 1)`, `p(s, a) = softmax(numbers(s, a))`; the distribution of
`R + gamma^m (1 - terminated) z` under `p_target(s', a*)` is projected onto the atoms, the cross-entropy minimised.
With value rescaling the atoms lie evenly between h(v_min) and h(v_max). Values begin at 0.

TorchRL's DistributionalDQNLoss computes the same, but through the CPU and Python numbers, so it can neither be recorded
nor captured (17 graph breaks; slower compiled than eager). `tests/algorithms/test_c51.py` checks that both are equal.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from trainer.algorithms import targets
from trainer.algorithms.algorithm import Algorithm, actor, value_algorithm
from trainer.config.algorithms import C51Config
from trainer.config.sections import LearnerConfig
from trainer.envs import EnvSpec
from trainer.networks.values import value_network

SUPPORT = 10.0  # of Bellemare et al. 2017, where nobody has chosen one by an environment's rewards
EVEN = 0.01  # uniform share of the initial distribution
MAX_SLOPE = 1e4  # difference in log-odds of the first and the last atom at which one atom has all probability


class Atoms(nn.Module):
    """Log-odds [B, A, K] to expected returns [B, A] over K atoms."""

    def __init__(self, atoms: Tensor) -> None:
        super().__init__()
        self.atoms: Tensor
        self.register_buffer("atoms", atoms, persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """[B, A, K] to [B, A]."""
        return numbers.softmax(-1) @ self.atoms


def build(config: C51Config, learner: LearnerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm for an environment. Parameters are drawn from torch's global generator."""
    values = Atoms(torch.linspace(*limits(config), config.num_atoms))
    network = value_network(spec, config, learner.channels_last, config.num_atoms, values)
    network.shift(initial_log_odds(*limits(config), config.num_atoms))
    policy = actor(network, spec)
    loss = targets.ObjectiveLoss(policy, partial(objective, config=config))
    return value_algorithm(config, network, policy, loss, targets.td_error_of, targets.priority_of)


def limits(config: C51Config) -> tuple[float, float]:
    """The first and the last atom."""
    first = -SUPPORT if config.v_min is None else config.v_min
    last = SUPPORT if config.v_max is None else config.v_max
    if not config.value_rescaling:
        return first, last
    low, high = targets.rescale(torch.tensor([first, last], dtype=torch.float64)).tolist()
    return low, high


def initial_log_odds(low: float, high: float, count: int) -> Tensor:
    """Log-odds, float32 [K], of K even atoms from `low` to `high`, with the mean 0 or as near to it as possible.

    With uniform probabilities values would begin in the middle of the support: if that is half of the best return, no
    action seems worth taking. Of all distributions with the mean 0 this is the one of the largest entropy,
    `p_i ~ exp(slope z_i)`, mixed with a little of the uniform one, so that every return can be learned. For a support
    that is symmetric about 0 it is uniform.
    """
    middle = (low + high) / 2
    if middle == 0:
        return torch.zeros(count)
    atoms = torch.linspace(low, high, count, dtype=torch.float64)
    mean = min(
        max(-EVEN * middle / (1 - EVEN), low), high
    )  # of the part that is not uniform, so that the mixture has 0
    below, above = -MAX_SLOPE, MAX_SLOPE
    for _ in range(64):  # bisection, as the mean grows with the slope
        slope = (below + above) / 2
        p = (atoms * slope / (high - low)).softmax(0)
        below, above = (slope, above) if p @ atoms < mean else (below, slope)
    return ((1 - EVEN) * p + EVEN / count).log().float()


def objective(
    online: targets.Network, target: targets.Network, batch: TensorDictBase, config: C51Config
) -> targets.Errors:
    """Cross-entropy, difference of expected returns and, as priority, the Kullback-Leibler divergence, [B] each."""
    low, high = limits(config)
    atoms = torch.linspace(low, high, config.num_atoms, device=batch["next", "reward"].device)
    log_p = targets.of_action(online(batch), batch["action"]).float().log_softmax(-1)
    with torch.no_grad():
        following = target(batch["next"])
        judge = online(batch["next"]) if config.double else following
        action = targets.best(judge.softmax(-1) @ atoms, targets.next_mask(batch))
        p = targets.of_action(following, action).float().softmax(-1)  # float: autocast may have made it bfloat16
        projected = project(p, targets.bellman(atoms, batch, config), low, high)
        expected = projected @ atoms
    loss = -(projected * log_p).sum(-1)
    entropy = -torch.xlogy(projected, projected).sum(-1)
    return loss, (expected - log_p.exp() @ atoms).abs(), (loss - entropy).clamp(min=0)


def project(p: Tensor, position: Tensor, v_min: float, v_max: float) -> Tensor:
    """Project probabilities `p` [B, K] at the returns `position` [B, K] onto the K atoms, split between neighbours."""
    count = p.shape[-1]
    place = (position.clamp(v_min, v_max) - v_min) * ((count - 1) / (v_max - v_min))
    lower = place.floor().clamp(max=count - 2)
    share = (place - lower).clamp(max=1)  # rounding may put a place slightly above the last atom
    index = lower.long()
    projected = torch.zeros_like(p).scatter_add(-1, index, p * (1 - share))
    return projected.scatter_add(-1, index + 1, p * share)
