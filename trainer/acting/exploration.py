"""Exploration: epsilon-greedy actions, how epsilon falls or differs between sub-environments, noise of noisy layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.config.sections import CollectorConfig
from trainer.envs import Action

Seed = int | list[int] | np.random.Generator
Epsilon = Callable[[int], tuple[float | np.ndarray, float]]  # frames -> rates of a worker's environments, their mean


class EpsilonGreedy:
    """Replaces actions by uniformly drawn legal ones, with probability epsilon.

    Args:
        num_envs: N.
        action: what is done.
        seed: of its draws.
    """

    BLOCK = 256  # vector steps whose draws are made at once: a generator's call costs more than its numbers

    def __init__(self, num_envs: int, action: Action, seed: int | list[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_envs, self._action = num_envs, action
        self._draws, self._next = np.zeros((0, num_envs)), 0

    def state_dict(self) -> dict[str, Any]:
        """The generator, and the draws that are left."""
        return {"rng": self._rng.bit_generator.state, "draws": torch.from_numpy(self._draws), "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the draws of an earlier `state_dict`."""
        self._rng.bit_generator.state = state["rng"]
        self._draws, self._next = state["draws"].numpy(), state["next"]

    def __call__(self, action: np.ndarray, epsilon: np.ndarray | float, mask: np.ndarray | None) -> np.ndarray:
        """`action` [N, *shape], some of it replaced; epsilon: a number or float [N]; mask: bool [N, A] or None."""
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
    """`collector.exploration=linear`: one rate for all, which falls with the frames.

    Args:
        config: the section.
        num_streams: sub-environments of all workers.
        streams: which of them are the worker's.
    """

    def epsilon(frames: int) -> tuple[float, float]:
        rate = linear_epsilon(config, frames)
        return rate, rate

    return epsilon


def apex(config: CollectorConfig, num_streams: int, streams: slice) -> Epsilon:
    """`collector.exploration=apex`: a rate for each sub-environment, which stays; arguments as of `linear`."""
    rates = apex_ladder(config, num_streams)[streams]
    found = rates, float(rates.mean())
    return lambda frames: found


def noise_of(network: nn.Module, seed: Seed | None) -> Callable[[], np.ndarray] | None:
    """What draws the noise of noisy layers, float32 [size], new for each call (Fortunato et al. 2018).

    Args:
        network: of the layers.
        seed: of the draws; None: mean weights act.

    Returns:
        None where there is nothing to draw.
    """
    size = 0 if seed is None else getattr(network, "noise_size", 0)
    if not size:
        return None
    generator = np.random.default_rng(seed)
    return lambda: generator.standard_normal(size, np.float32)
