"""The counting environment keeps to its formulae, so that the pipeline's tests may rely on them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from trainer import envs
from trainer.envs.counting import (
    decode_image,
    encode_image,
    episode_length,
    expected_reward,
    is_truncation,
    legal_actions,
)


def counting(config, **kwargs):
    return config("counting", backend="counting", kwargs=kwargs)


def test_formulae_by_hand():
    assert expected_reward(0, 0, 1) == (7 - 128) / 8
    assert expected_reward([3, 4], 2, 5).tolist() == [((93 + 34 + 35) % 257 - 128) / 8, ((124 + 69) % 257 - 128) / 8]
    stream, episode = np.meshgrid(np.arange(100), np.arange(100))
    lengths = episode_length(stream, episode, 1, 20)
    assert (lengths.min(), lengths.max()) == (1, 20)
    assert np.bincount(lengths.ravel(), minlength=21)[1:].min() > 300  # 500 each on average
    assert (episode_length(stream, episode, 7, 7) == 7).all()
    assert abs(is_truncation(stream, episode, 0.25).mean() - 0.25) < 0.03
    assert not is_truncation(stream, episode, 0.0).any() and is_truncation(stream, episode, 1.0).all()
    legal = legal_actions(stream, episode, 3, 6)
    assert legal.shape == (100, 100, 6) and legal.any(-1).all() and 0.4 < legal.mean() < 0.7


@pytest.mark.parametrize("image", [False, True])
def test_every_transition_follows_the_formulae(config, image):
    vector = envs.make(counting(config, num_actions=3, max_length=6, image=image, image_size=12), 5)
    rng = np.random.default_rng(0)

    def numbers(observation):
        shown = observation["observation"]
        return decode_image(shown) if image else shown.astype(np.int64)

    before = numbers(vector.reset(100))
    np.testing.assert_array_equal(before, [[100 + i, 0, 0, -1] for i in range(5)])
    over = np.zeros(5, bool)
    for _ in range(80):
        action = rng.integers(0, 3, 5)
        observation, reward, terminated, truncated = vector.step(action)
        after = numbers(observation)
        for i in range(5):
            stream, episode, step, _ = before[i].tolist()
            if over[i]:
                assert after[i].tolist() == [stream, episode + 1, 0, -1] and reward[i] == 0
                assert not terminated[i] and not truncated[i]
            else:
                assert after[i].tolist() == [stream, episode, step + 1, action[i]]
                assert reward[i] == expected_reward(stream, episode, step + 1)
                ends = step + 1 == episode_length(stream, episode, 1, 6)
                assert truncated[i] == (ends and is_truncation(stream, episode))
                assert terminated[i] == (ends and not is_truncation(stream, episode))
        over, before = terminated | truncated, after
    assert before[:, 1].min() >= 10


def test_streams_are_seeds(config):
    vector = envs.make(counting(config), 2)
    assert vector.reset(7)["observation"][:, :2].tolist() == [[7, 0], [8, 0]]
    assert vector.reset(None)["observation"][:, :2].tolist() == [[7, 1], [8, 1]]
    assert vector.reset(7)["observation"][:, :2].tolist() == [[7, 0], [8, 0]]
    with pytest.raises(envs.EnvError, match="exact for seeds from 0 to 16777214"):
        vector.reset(2**24)


def test_masks_are_enforced(config):
    vector = envs.make(counting(config, with_mask=True, num_actions=4, max_length=5), 3)
    assert vector.spec.action.has_mask
    observation = vector.reset(0)
    for _ in range(40):
        shown = observation["observation"].astype(np.int64)
        np.testing.assert_array_equal(observation["action_mask"], legal_actions(*shown.T[:3], 4))
        observation, *_ = vector.step(observation["action_mask"].argmax(1))
    vector = envs.make(counting(config, with_mask=True, num_actions=4, min_length=9), 3)
    illegal = np.argmin(vector.reset(0)["action_mask"], 1)
    with pytest.raises(envs.EnvError, match=r"sub-environment 0 \(seed 0\) was given the illegal action"):
        for _ in range(9):
            illegal = np.argmin(vector.step(illegal)[0]["action_mask"], 1)
    vector.reset(0)
    with pytest.raises(envs.EnvError, match="illegal action 4"):
        vector.step(np.array([4, 4, 4]))


def test_resets_by_hand(config):
    vector = envs.make(counting(config, min_length=2, max_length=2), 2, autoreset=False)
    vector.reset(0)
    vector.step(np.zeros(2, np.int64))
    observation = vector.reset_where(np.array([True, False]))
    assert observation["observation"].tolist() == [[0, 1, 0, -1], [1, 0, 1, 0]]
    vector.step(np.zeros(2, np.int64))
    with pytest.raises(envs.EnvError, match="reset_where was not called"):
        vector.step(np.zeros(2, np.int64))


def test_a_torn_frame_shows():
    frames = encode_image(np.array([[1, 2, 3, 0], [70_000, 2, 300, 1]]), 12)
    assert decode_image(frames).tolist() == [[1, 2, 3, 0], [70_000, 2, 300, 1]]
    frames[0, 6:] = frames[1, 6:]
    with pytest.raises(ValueError, match="torn"):
        decode_image(frames)


def test_clipped_rewards(config):
    env = counting(config, min_length=20)
    env.clip_rewards = True
    vector = envs.make(env, 4)
    vector.reset(0)
    for _ in range(20):
        _, reward, _, _ = vector.step(np.zeros(4, np.int64))
        np.testing.assert_array_equal(reward, np.sign(vector.raw_reward))
    assert set(np.abs(vector.raw_reward).tolist()) - {0.0, 1.0}


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"raise_at_step": 4}, "asked for by raise_at_step"), ({"nan_at_step": 4}, "its reward is nan")],
)
def test_faults_strike_in_their_step(config, tmp_path, fault, words):
    vector = envs.make(counting(config, fault_stream=11, fault_once=str(tmp_path / "struck"), **fault), 2)
    for seed, strikes in ((0, False), (10, True), (10, False)):  # not the stream; the stream; once only
        vector = envs.make(counting(config, fault_stream=11, fault_once=str(tmp_path / "struck"), **fault), 2)
        vector.reset(seed)
        for _ in range(3):
            vector.step(np.zeros(2, np.int64))
        if strikes:
            with pytest.raises(envs.EnvError, match=words):
                vector.step(np.zeros(2, np.int64))
        else:
            vector.step(np.zeros(2, np.int64))


def test_a_bad_observation_is_passed_on(config):
    vector = envs.make(counting(config, nan_observation_at_step=2), 2)
    vector.reset(0)
    assert np.isfinite(vector.step(np.zeros(2, np.int64))[0]["observation"]).all()
    assert np.isnan(vector.step(np.zeros(2, np.int64))[0]["observation"][0]).all()


def test_kill_and_hang():
    code = (
        "import sys, numpy as np, envs\n"
        "from trainer.envs.counting import CountingVector, Settings\n"
        "vector = CountingVector(Settings(**{sys.argv[1]: 2}), 'counting', 1, 1, True, False)\n"
        "vector.reset(0)\n"
        "vector.step(np.zeros(1, np.int64))\n"
        "print('one', flush=True)\n"
        "vector.step(np.zeros(1, np.int64))\n"
        "print('two', flush=True)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, "kill_at_step"], capture_output=True, text=True, timeout=60)
    assert (killed.returncode, killed.stdout) == (-9, "one\n")
    with subprocess.Popen([sys.executable, "-c", code, "hang_at_step"], stdout=subprocess.PIPE, text=True) as hung:
        assert hung.stdout.readline() == "one\n"
        with pytest.raises(subprocess.TimeoutExpired):
            hung.wait(1)
        hung.kill()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"max_lenght": 3}, "counting knows no env.kwargs.max_lenght; it has num_actions"),
        ({"min_length": 30}, "1 <= min_length <= max_length"),
    ],
)
def test_impossible_settings_are_refused(config, kwargs, words):
    with pytest.raises(envs.EnvError, match=words):
        envs.describe(counting(config, **kwargs))
