"""A wrapper: observations with noise."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Noisy(gym.ObservationWrapper):
    """Adds normal noise to an observation.

    Args:
        env: with one array of floats as observation.
        scale: standard deviation of the noise.
    """

    def __init__(self, env: gym.Env, scale: float = 0.1) -> None:
        super().__init__(env)
        self.scale = scale
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """The observation with noise of the environment's own generator, so that a seed gives the same episode."""
        noise = self.np_random.normal(0.0, self.scale, observation.shape)
        return (observation + noise).astype(np.float32)
