"""Exploration: epsilon-greedy actions, schedules of epsilon, and the noise that networks act with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from trainer.config.registries import EXPLORATIONS, NOISES, registered
from trainer.config.sections import CollectorConfig
from trainer.envs import Action, BoxAction

Seed = int | list[int] | np.random.Generator
Epsilon = Callable[[int], tuple[float | np.ndarray, float]]  # frames -> epsilons of a worker's environments, their mean


@dataclass(frozen=True)
class Explored:
    """What an explorer is made for: an agent in a worker.

    Args:
        config: the section `collector`.
        action: the kind of actions.
        num_streams: number of sub-environments of all workers.
        streams: those of this worker.
        seed: of the draws.
    """

    config: CollectorConfig
    action: Action
    num_streams: int
    streams: slice
    seed: int | list[int]

    @property
    def num_envs(self) -> int:
        """N, sub-environments of this worker."""
        return int(self.streams.stop - self.streams.start)


class Explorer(Protocol):
    """Changes actions of a policy so that others are tried; its state is part of a worker's snapshot."""

    def __call__(self, action: np.ndarray, mask: np.ndarray | None, frames: int) -> tuple[np.ndarray, float]:
        """Actions to take in place of the policy's, [N, *shape], and the mean epsilon, for the metrics.

        Args:
            action: of the policy, [N, *shape]; it is not written.
            mask: legal actions, bool [N, A], or None.
            frames: collected so far, by all workers.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state between two steps."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""


MakeExplorer = Callable[[Explored], Explorer]


class EpsilonGreedy:
    """Replaces actions by uniformly drawn legal ones, with probability epsilon; of branched actions each choice so.

    Args:
        num_envs: N.
        action: the kind of actions.
        seed: of the draws.
    """

    BLOCK = 256  # vector steps whose numbers are drawn in one call, as a call costs more than its numbers

    def __init__(self, num_envs: int, action: Action, seed: int | list[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_envs, self._action = num_envs, action
        self._draws, self._next = np.zeros((0, num_envs, *action.explored_shape)), 0

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
            self._draws, self._next = self._rng.random((self.BLOCK, *self._draws.shape[1:])), 0
        if self._draws.ndim > 2:
            return self._of_branches(action, epsilon)
        explores = self._draws[self._next] < epsilon
        self._next += 1
        count = int(np.count_nonzero(explores))
        if not count:
            return action
        action = action.copy()
        action[explores] = self._action.random(self._rng, count, None if mask is None else mask[explores])
        return action

    def _of_branches(self, action: np.ndarray, epsilon: np.ndarray | float) -> np.ndarray:
        """Replace some of the choices of actions [N, *shape]."""
        of_env = np.reshape(epsilon, (-1, *[1] * (action.ndim - 1)))
        explores = self._draws[self._next] < of_env
        self._next += 1
        if not explores.any():
            return action
        return np.where(explores, self._action.random(self._rng, len(action), None), action)


def linear_epsilon(config: CollectorConfig, frames: int) -> float:
    """Exploration rate after `frames` frames of all workers: linear from start to end, then constant."""
    left = max(0.0, 1 - frames / max(1, config.epsilon_decay_frames))
    return config.epsilon_end + (config.epsilon_start - config.epsilon_end) * left


def apex_ladder(config: CollectorConfig, num_streams: int) -> np.ndarray:
    """Exploration rates float64 [S], one for each sub-environment of all workers (Horgan et al. 2018, section 4).

    `epsilon_i = apex_epsilon ** (1 + apex_alpha * i / (S - 1))`
    """
    return _ladder(config.apex_epsilon, config.apex_alpha, num_streams)


def _ladder(first: float, alpha: float, num_streams: int) -> np.ndarray:
    i = np.arange(num_streams)
    return first ** (1 + alpha * i / max(1, num_streams - 1))


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


def same_noise(sigma: float, config: CollectorConfig, num_streams: int, streams: slice) -> np.ndarray:
    """`collector.exploration=linear` of noise on actions: the algorithm's deviation, float32 [1].

    Args:
        sigma: of the algorithm.
        config: the section `collector`.
        num_streams: number of sub-environments of all workers.
        streams: those of this worker.
    """
    return np.full(1, sigma, np.float32)


def apex_noise(sigma: float, config: CollectorConfig, num_streams: int, streams: slice) -> np.ndarray:
    """`collector.exploration=apex` of noise on actions: a deviation for each sub-environment, float32 [N].

    `sigma_i = apex_noise ** (1 + apex_alpha * i / (S - 1))`, as `apex_ladder`; arguments as in `same_noise`.
    """
    return _ladder(config.apex_noise, config.apex_alpha, num_streams)[streams].astype(np.float32)


class ByEpsilon:
    """The explorer of policies that act greedily: `collector.exploration` says how epsilon goes."""

    def __init__(self, of: Explored) -> None:
        self._greedy = EpsilonGreedy(of.num_envs, of.action, of.seed)
        exploration = registered(EXPLORATIONS, of.config.exploration)
        self._epsilon: Epsilon = exploration(of.config, of.num_streams, of.streams, **of.config.exploration_kwargs)
        self.state_dict, self.load_state_dict = self._greedy.state_dict, self._greedy.load_state_dict

    def __call__(self, action: np.ndarray, mask: np.ndarray | None, frames: int) -> tuple[np.ndarray, float]:
        """See `Explorer`."""
        rates, mean = self._epsilon(frames)
        return self._greedy(action, rates, mask), mean


class AsChosen:
    """The explorer of policies whose actions vary by themselves, by noise that they are given: it changes nothing."""

    def __init__(self, of: Explored) -> None:
        pass

    def __call__(self, action: np.ndarray, mask: np.ndarray | None, frames: int) -> tuple[np.ndarray, float]:
        """See `Explorer`."""
        return action, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class GaussianNoise:
    """Adds normal noise to actions in a box, of `sigma` times half of the box's width in each number, and clips them.

    With `collector.exploration=apex` each sub-environment has a `sigma` of its own (`apex_noise`).

    Fujimoto et al. 2018, section 5.3; with `theta` the noise of successive steps is correlated (an Ornstein-Uhlenbeck
    process, Lillicrap et al. 2016, section 7): `x <- x - theta x + sigma n` with standard normal n. It goes on over the
    ends of episodes.

    Args:
        of: what it is made for; the actions are a box.
        sigma: of the noise, of the algorithm.
        theta: None for independent noise.
    """

    def __init__(self, of: Explored, sigma: float, theta: float | None = None) -> None:
        assert isinstance(of.action, BoxAction)
        shape = of.action.shape
        self._low, self._high = (
            np.array(bound, np.float32).reshape(shape) for bound in (of.action.low, of.action.high)
        )
        self._half = (self._high - self._low) / 2
        noise = registered(NOISES, of.config.exploration if of.config.exploration in NOISES else "linear")
        of_envs = noise(sigma, of.config, of.num_streams, of.streams)
        self._sigma, self._keep = of_envs.reshape(-1, *[1] * len(shape)), np.float32(0 if theta is None else 1 - theta)
        self._noise = np.zeros((of.num_envs, *shape), np.float32)
        self._rng = np.random.default_rng(of.seed)

    def __call__(self, action: np.ndarray, mask: np.ndarray | None, frames: int) -> tuple[np.ndarray, float]:
        """See `Explorer`."""
        drawn = self._rng.standard_normal(self._noise.shape, np.float32)
        self._noise = self._keep * self._noise + self._sigma * drawn
        return np.clip(action + self._half * self._noise, self._low, self._high), 0.0

    def state_dict(self) -> dict[str, Any]:
        """The generator's state and the last noise."""
        return {"rng": self._rng.bit_generator.state, "noise": torch.from_numpy(self._noise)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._rng.bit_generator.state, self._noise = state["rng"], state["noise"].numpy()


class RandomAtFirst:
    """Uniformly random legal actions until `collector.random_frames` are collected; then another explorer's.

    Args:
        of: what it is made for.
        then: the other one.
        seed: of the draws.
    """

    def __init__(self, of: Explored, then: Explorer, seed: list[int]) -> None:
        self._action, self._frames, self._then = of.action, of.config.random_frames, then
        self._rng = np.random.default_rng(seed)

    def __call__(self, action: np.ndarray, mask: np.ndarray | None, frames: int) -> tuple[np.ndarray, float]:
        """See `Explorer`."""
        if frames >= self._frames:
            return self._then(action, mask, frames)
        return self._action.random(self._rng, len(action), mask), 1.0

    def state_dict(self) -> dict[str, Any]:
        """The generator's state, and that of the other explorer."""
        return {**self._then.state_dict(), "random_rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._rng.bit_generator.state = state["random_rng"]
        self._then.load_state_dict(state)


def noise_of(shape: tuple[int, ...], seed: Seed | None) -> Callable[[], np.ndarray] | None:
    """A function that draws standard normal numbers, float32 [*shape]; None without a seed, or if there are none."""
    if seed is None or 0 in shape:
        return None
    generator = np.random.default_rng(seed)
    return lambda: generator.standard_normal(shape, np.float32)
