"""Small environments and configurations for the tests of envs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

_numbers = itertools.count()


class SampledEnv(gym.Env):
    """Shows what its observation space samples and keeps all of it; episodes last 3 steps and pay 1, 2, 3."""

    def __init__(self, observation_space, action_space, masks=None, fault=None, render_mode=None):
        self.observation_space, self.action_space = observation_space, action_space
        self.masks, self.fault = masks, fault
        self.shown, self.actions = [], []
        self.count = 0

    def _show(self):
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]

    def _info(self):
        mask = None if self.masks is None else self.masks[len(self.shown) % len(self.masks)]
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self._show(), self._info()

    def step(self, action):
        self.actions.append(action)
        assert self.action_space.contains(action), action
        self.count += 1
        result = (self._show(), float(self.count), self.count == 3, False, self._info())
        return result if self.fault is None else self.fault(self, result)


@pytest.fixture
def config() -> Callable[..., SimpleNamespace]:
    """Makes what the trainer's EnvConfig looks like to envs."""

    def make(env_id: str, **changes: Any) -> SimpleNamespace:
        values = {
            "id": env_id,
            "backend": "gymnasium",
            "kwargs": {},
            "import_modules": [],
            "preprocessing": "none",
            "screen_size": 84,
            "frame_stack": 1,
            "vectorization": "auto",
            "max_episode_steps": None,
            "clip_rewards": False,
            "mask_key": "action_mask",
            "wrappers": [],
            "instance_key": None,
            "first_instance": 0,
        }
        assert set(changes) <= set(values)
        return SimpleNamespace(**{**values, **changes})

    return make


@pytest.fixture
def sampled(config) -> Callable[..., SimpleNamespace]:
    """Registers a SampledEnv of given spaces and gives its configuration."""

    def make(observation_space, action_space=None, masks=None, fault=None, **changes: Any) -> SimpleNamespace:
        env_id = f"Sampled{next(_numbers)}-v0"
        actions = gym.spaces.Discrete(2) if action_space is None else action_space
        gym.register(
            env_id,
            lambda render_mode=None: SampledEnv(copy.deepcopy(observation_space), actions, masks, fault, render_mode),
        )
        return config(env_id, **changes)

    return make


@pytest.fixture
def episodes_by_hand() -> Callable[..., list[tuple[Any, ...]]]:
    """Steps plain environments as the vector should: (observations, rewards, terminated, truncated, infos) a step.

    The environments are reset with `seed + i`; the step after an end resets, ignoring the action.
    """

    def run(singles: list[gym.Env], actions: np.ndarray, seed: int) -> list[tuple[Any, ...]]:
        first = [env.reset(seed=seed + i) for i, env in enumerate(singles)]
        rows = [[(observation, 0.0, False, False, info) for observation, info in first]]
        for row in actions:
            step = []
            for env, action, (_, _, terminated, truncated, _) in zip(singles, row, rows[-1], strict=True):
                if terminated or truncated:
                    observation, info = env.reset()
                    step.append((observation, 0.0, False, False, info))
                else:
                    step.append(env.step(action))
            rows.append(step)
        return [tuple(list(column) for column in zip(*step, strict=True)) for step in rows]

    return run
