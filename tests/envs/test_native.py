"""Gymnasium's CartPoleVectorEnv deserves its place in NATIVE: it does what single CartPoles do.

Looked at in gymnasium 1.4.0: it keeps the final observation, the rewards and both flags at the time limit, counts steps
from 0 after a reset, works in float64 as the single environment does, and takes its limit from the registered spec. No
defect was found.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from trainer import envs
from trainer.envs.batched import BatchedVector
from trainer.envs.gymnasium import NATIVE
from trainer.envs.vector import SyncVector

N = 32


def stepped_by_hand(state, action):
    """(next state, terminated) of a single CartPole that is put into a state."""
    single = gym.make("CartPole-v1").unwrapped
    single.reset()
    single.state = state
    observation, _, terminated, _, _ = single.step(action)
    return observation, terminated


def test_auto_takes_it_for_listed_ids_only(config):
    assert NATIVE == {"CartPole-v1"}
    assert isinstance(envs.make(config("CartPole-v1"), 2), BatchedVector)
    assert isinstance(envs.make(config("CartPole-v1"), 2, autoreset=False), SyncVector)
    assert isinstance(envs.make(config("CartPole-v1", kwargs={"sutton_barto_reward": True}), 2), SyncVector)
    assert isinstance(envs.make(config("CartPole-v1", vectorization="sync"), 2), SyncVector)
    assert isinstance(envs.make(config("MountainCar-v0"), 2), SyncVector)


def test_every_transition_is_a_single_cartpole_s(config):
    vector = envs.make(config("CartPole-v1", max_episode_steps=60), N)
    assert vector.spec == envs.describe(config("CartPole-v1", max_episode_steps=60, vectorization="sync"))
    rng = np.random.default_rng(0)
    before = vector.reset(1)["observation"].copy()
    over, steps = np.zeros(N, bool), np.zeros(N, int)
    terminations = truncations = 0
    for _ in range(200):
        states = vector._env.state.T.copy()  # float64
        # balancing by hand, so that some episodes reach the limit
        action = np.where(rng.random(N) < 0.6, rng.integers(0, 2, N), before[:, 2] + 0.5 * before[:, 3] > 0)
        observation, reward, terminated, truncated = vector.step(action)
        after = observation["observation"]
        steps = np.where(over, 0, steps + 1)
        for i in range(N):
            if over[i]:
                assert (np.abs(after[i]) <= 0.05).all() and reward[i] == 0
                assert not terminated[i] and not truncated[i]
            else:
                expected, ended = stepped_by_hand(states[i], int(action[i]))
                np.testing.assert_allclose(after[i], expected, rtol=1e-6, atol=1e-7)
                assert reward[i] == 1 and terminated[i] == ended
                assert truncated[i] == (steps[i] == 60)
        terminations, truncations = terminations + int(terminated.sum()), truncations + int(truncated.sum())
        over, before = terminated | truncated, after.copy()
    assert terminations >= 10 and truncations >= 10


def test_default_limit_and_seeds(config):
    vector = envs.make(config("CartPole-v1"), 4)
    assert vector.spec.max_episode_steps == vector._env.max_episode_steps == 500
    first = vector.reset(3)["observation"].copy()
    assert (vector.reset(4)["observation"] != first).all()
    np.testing.assert_array_equal(vector.reset(3)["observation"], first)
    assert len(np.unique(first[:, 0])) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}, "not next-step autoreset; use sync"),
        ({}, "has other spaces than the environment itself; use sync"),
    ],
)
def test_others_are_refused(config, changes, words):
    class Other(gym.vector.VectorEnv):
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP, **changes}
        single_observation_space = gym.spaces.Box(-1, 1, (3,))
        single_action_space = gym.spaces.Discrete(2)

        def __init__(self, num_envs):
            self.num_envs = num_envs

    env_id = f"Other{len(changes)}-v0"
    gym.register(env_id, "gymnasium.envs.classic_control:CartPoleEnv", vector_entry_point=Other)
    with pytest.raises(envs.EnvError, match=words):
        envs.make(config(env_id, vectorization="native"), 2)
