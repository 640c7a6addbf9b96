"""Exploration: epsilon-greedy actions, schedules of epsilon, and the noise of noisy layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.config.sections import CollectorConfig
from trainer.envs import Action

Seed = int | list[int] | np.random.Generator
Epsilon = Callable[[int], tuple[float | np.ndarray, float]]  # frames -> epsilons of a worker's environments, their mean


class EpsilonGreedy:
    """Replaces actions by uniformly drawn legal ones, with probability epsilon.

    Args:
        num_envs: N.
        action: the kind of actions.
        seed: of the draws.
    """

    BLOCK = 256  # vector steps whose numbers are drawn in one call, as a call costs more than its numbers

    def __init__(self, num_envs: int, action: Action, seed: int | list[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_envs, self._action = num_envs, action
        self._draws, self._next = np.zeros((0, num_envs)), 0

    def state_dict(self) -> dict[str, Any]:
        """The generator's state, and the numbers that are drawn and not used yet."""
        return {"rng": self._rng.bit_generator.state, "draws": torch.from_numpy(self._draws), "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the draws of an earlier `state_dict`."""
        self._rng.bit_generator.state = state["rng"]
        self._draws, self._next = state["draws"].numpy(), state["next"]

    def __call__(self, action: np.ndarray, epsilon: np.ndarray | float, mask: np.ndarray | None) -> np.ndarray:
        """Replace some of the actions [N, *shape]; `epsilon` is a number or float [N], `mask` bool [N, A] or None."""
        if self._next == len(self._draws):
            self._draws, self._next = self._rng.random((self.BLOCK, self._num_envs)), 0
        explores = self._draws[self._next] < epsilon
        self._next += 1
        count = int(np.count_nonzero(explores))
        if not count:
            return action
        action = action.copy()
        action[explores] = self._action.random(self._rng, count, None if mask is None else mask[explores])
        return action


def linear_epsilon(config: CollectorConfig, frames: int) -> float:
    """Exploration rate after `frames` frames of all workers: linear from start to end, then constant."""
    left = max(0.0, 1 - frames / max(1, config.epsilon_decay_frames))
    return config.epsilon_end + (config.epsilon_start - config.epsilon_end) * left


def apex_ladder(config: CollectorConfig, num_streams: int) -> np.ndarray:
    """Exploration rates float64 [S], one for each sub-environment of all workers (Horgan et al. 2018, section 4).

    `epsilon_i = apex_epsilon ** (1 + apex_alpha * i / (S - 1))`
    """
    i = np.arange(num_streams)
    return config.apex_epsilon ** (1 + config.apex_alpha * i / max(1, num_streams - 1))


def linear(config: CollectorConfig, num_streams: int, streams: slice) -> Epsilon:
    """`collector.exploration=linear`: one epsilon for all sub-environments, which falls with the frames.

    Args:
        config: the section `collector`.
        num_streams: number of sub-environments of all workers.
        streams: those of this worker.
    """

    def epsilon(frames: int) -> tuple[float, float]:
        rate = linear_epsilon(config, frames)
        return rate, rate

    return epsilon


def apex(config: CollectorConfig, num_streams: int, streams: slice) -> Epsilon:
    """`collector.exploration=apex`: a constant epsilon for each sub-environment; arguments as in `linear`."""
    rates = apex_ladder(config, num_streams)[streams]
    found = rates, float(rates.mean())
    return lambda frames: found


def noise_of(network: nn.Module, seed: Seed | None) -> Callable[[], np.ndarray] | None:
    """A function that draws the noise of a network's noisy layers, float32 [size] (Fortunato et al. 2018).

    Args:
        network: that may have noisy layers.
        seed: of the draws; None: the mean weights act.

    Returns:
        The function; None without noisy layers or without a seed.
    """
    size = 0 if seed is None else getattr(network, "noise_size", 0)
    if not size:
        return None
    generator = np.random.default_rng(seed)
    return lambda: generator.standard_normal(size, np.float32)
