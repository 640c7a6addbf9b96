"""From observations to actions: frame stacks, greedy and exploring choice. Used by collectors, evaluator and play."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from envs import EnvSpec
from trainer.config import CollectorConfig

Observation = dict[str, np.ndarray]


class FrameStacks:
    """The last frames of every stacked leaf, [N, stack, ...]; an episode starts with its first frame repeated.

    Leaves without a stack pass through.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._leaves = spec.leaves
        self._stacks = {
            leaf.name: np.zeros((num_envs, leaf.stack, *leaf.shape), leaf.dtype)
            for leaf in spec.leaves
            if leaf.stack > 1
        }

    def push(self, observation: Observation, fresh: np.ndarray) -> None:
        """Add a frame [N, ...] of each leaf; where ``fresh`` (bool [N]) it is the first of an episode."""
        for name, stack in self._stacks.items():
            frame = observation[name]
            stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = frame
            stack[fresh] = frame[fresh, None]

    def seen(self, observation: Observation) -> list[np.ndarray]:
        """What the network sees: leaves in the spec's order, [N, (stack,) ...]."""
        return [self._stacks.get(leaf.name, observation[leaf.name]) for leaf in self._leaves]


def greedy(network: nn.Module, seen: list[np.ndarray], mask: np.ndarray | None) -> np.ndarray:
    """The best legal action of each row, int64 [N].

    Args:
        network: leaves [N, ...] to values [N, A].
        seen: the leaves.
        mask: bool [N, A] of legal actions, or None.
    """
    values = network(*map(torch.from_numpy, seen))
    if mask is not None:
        values = values.masked_fill(~torch.from_numpy(mask), -torch.inf)
    return values.argmax(-1).numpy()


def explore(
    action: np.ndarray, epsilon: np.ndarray | float, mask: np.ndarray | None, num_actions: int, rng: np.random.Generator
) -> np.ndarray:
    """``action`` int64 [N], each replaced with probability epsilon by a uniformly drawn legal one."""
    chosen = np.flatnonzero(rng.random(len(action)) < epsilon)
    if not len(chosen):
        return action
    action = action.copy()
    if mask is None:
        action[chosen] = rng.integers(0, num_actions, len(chosen))
    else:
        action[chosen] = np.where(mask[chosen], rng.random((len(chosen), num_actions)), -1.0).argmax(1)
    return action


def linear_epsilon(config: CollectorConfig, frames: int) -> float:
    """Exploration rate after ``frames`` frames of all workers: linear from start to end, then constant."""
    left = max(0.0, 1 - frames / max(1, config.epsilon_decay_frames))
    return config.epsilon_end + (config.epsilon_start - config.epsilon_end) * left


def apex_ladder(config: CollectorConfig, num_streams: int) -> np.ndarray:
    """Exploration rates float64 [S], one for each sub-environment of all workers (Horgan et al. 2018, section 4).

    ``epsilon_i = apex_epsilon ** (1 + apex_alpha * i / (S - 1))``
    """
    i = np.arange(num_streams)
    return config.apex_epsilon ** (1 + config.apex_alpha * i / max(1, num_streams - 1))
