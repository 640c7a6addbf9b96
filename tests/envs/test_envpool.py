"""EnvPool behind our interface; skipped where it is not installed, except for what is said then."""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pytest

from trainer import envs


def test_a_missing_envpool_names_our_extra(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        envs.EnvError, match=r"needs the package envpool; install it with `pip install -e '\.\[envpool\]'`"
    ):
        envs.describe(config("CartPole-v1", backend="envpool"))


@pytest.fixture
def pooled(config):
    """Configurations for EnvPool."""
    pytest.importorskip("envpool", reason="the optional package envpool is not installed")
    return lambda env_id, **changes: config(env_id, backend="envpool", **changes)


def test_transitions_and_next_step_resets(pooled):
    vector = envs.make(pooled("CartPole-v1", max_episode_steps=25), 16)
    assert (vector.spec.num_actions, vector.spec.max_episode_steps) == (2, 25)
    single = gym.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    rng = np.random.default_rng(0)
    before = vector.reset(3)["observation"].copy()
    over, steps, ends = np.zeros(16, bool), np.zeros(16, int), 0
    for _ in range(100):
        action = rng.integers(0, 2, 16)
        observation, reward, terminated, truncated = vector.step(action)
        after = observation["observation"]
        steps = np.where(over, 0, steps + 1)
        for i in range(16):
            if over[i]:
                assert (np.abs(after[i]) <= 0.05).all() and reward[i] == 0 and not terminated[i] and not truncated[i]
                continue
            single.state, single.steps_beyond_terminated = before[i].astype(np.float64), None
            expected, _, ended, _, _ = single.step(action[i])
            np.testing.assert_allclose(after[i], expected, rtol=1e-5, atol=1e-5)  # also the final observation
            assert reward[i] == 1 and truncated[i] == (steps[i] == 25)
            assert terminated[i] == (ended and not truncated[i])  # EnvPool reports one of the two only
        ends += int((terminated | truncated).sum())
        over, before = terminated | truncated, after.copy()
    assert ends >= 32


def test_sub_environment_i_has_seed_plus_i(pooled):
    first = envs.make(pooled("CartPole-v1"), 3).reset(10)["observation"]
    second = envs.make(pooled("CartPole-v1"), 1).reset(12)["observation"]
    np.testing.assert_array_equal(first[2], second[0])
    vector = envs.make(pooled("CartPole-v1"), 3)
    vector.reset(99)
    np.testing.assert_array_equal(vector.reset(10)["observation"], first)
    assert (vector.reset(None)["observation"] != first).all()


def test_atari_and_discrete_leaves(pooled):
    env = pooled("Pong-v5", preprocessing="atari", frame_stack=4)
    vector = envs.make(env, 2)
    (leaf,) = vector.spec.leaves
    assert (leaf.shape, leaf.dtype, leaf.axes, leaf.stack) == ((84, 84), "uint8", "hw", 4)
    observation = vector.reset(0)
    assert observation["observation"].shape == (2, 84, 84) and observation["observation"].max() > 80
    observation, reward, _, _ = vector.step(np.array([0, 1]))
    assert reward.tolist() == [0, 0]
    assert envs.describe(pooled("Taxi-v3")).leaves[0].nvec == (500,)
    vector.close()


@pytest.mark.parametrize(
    ("env_id", "changes", "words"),
    [
        ("CartPol-v1", {}, "EnvPool knows no environment of that id .*CartPole-v1"),
        ("CartPole-v1", {"kwargs": {"nonsense": 1}}, "EnvPool refused env.kwargs={'nonsense': 1}"),
    ],
)
def test_refusals(pooled, env_id, changes, words):
    with pytest.raises(envs.EnvError, match=words):
        envs.describe(pooled(env_id, **changes))


def test_resets_by_hand_are_refused(pooled):
    with pytest.raises(envs.EnvError, match="resets by itself"):
        envs.make(pooled("CartPole-v1"), 2, autoreset=False)
