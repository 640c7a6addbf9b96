"""The gymnasium backend: ids, packages, Atari; what is refused says what to do."""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pytest

from trainer import envs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env_id": "CartPol-v1"}, r"CartPol-v1: no environment of that id .*the nearest are CartPole-v1"),
        ({"env_id": "LunarLander-v2"}, "the nearest are LunarLander-v3"),
        ({"env_id": "Qqqqqqqqqqq/Zzzzzzzzz-v77"}, "none is similar.*env.import_modules"),
        ({"env_id": "no_such_module:Some-v0"}, "a package is missing .*`pip install no_such_module`"),
        ({"import_modules": ["no_such_module"]}, "env.import_modules names 'no_such_module'.*No module named"),
        ({"backend": "gymnasum"}, "env.backend=gymnasum is none of .*did you mean gymnasium?"),
        ({"preprocessing": "atary"}, "env.preprocessing=atary is none of none, atari; did you mean atari?"),
        ({"vectorization": "fast"}, "env.vectorization=fast is none of auto, sync, native"),
        ({"frame_stack": 0}, "env.frame_stack=0"),
        ({"env_id": "MountainCar-v0", "vectorization": "native"}, "env.vectorization=native failed .*use sync"),
        ({"env_id": "CartPole-v1", "preprocessing": "atari"}, "CartPole-v1: its constructor failed"),
    ],
)
def test_refusals_are_one_sentence(config, changes, words):
    env = config(**{"env_id": "CartPole-v1", **changes})
    with pytest.raises(envs.EnvError, match=words) as caught:
        envs.describe(env)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"env_id": "tag", "backend": "grid", "max_episode_steps": 9},
            "heed env.max_episode_steps=9.*kwargs.max_turns",
        ),
        ({"env_id": "tag", "backend": "grid", "clip_rewards": True}, "heed env.clip_rewards=True; leave it out"),
        ({"backend": "pettingzoo", "preprocessing": "atari"}, "heed env.preprocessing=atari; leave it out"),
        ({"screen_size": 42}, "env.screen_size=42 is heeded by env.preprocessing=atari alone; leave it out"),
        ({"backend": "counting", "max_episode_steps": 9}, "max_length"),
        ({"backend": "counting_agents", "max_episode_steps": 9}, "max_length"),
        ({"backend": "envpool", "vectorization": "sync"}, "env.backend=envpool does not heed env.vectorization=sync"),
    ],
)
def test_a_key_that_a_backend_does_not_heed_is_refused(config, changes, words):
    with pytest.raises(envs.EnvError, match=words) as caught:
        envs.describe_world(config(**{"env_id": "any", **changes}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        ("Box2D is not installed, run pip install swig", "box2d"),
        ("opencv-python package not installed", "atari"),
        ("MuJoCo is not installed", "mujoco"),
    ],
)
def test_a_missing_package_names_our_extra(config, text, extra):
    def entry_point(render_mode=None):
        raise gym.error.DependencyNotInstalled(text)

    gym.register(f"Missing{extra}-v0", entry_point)
    with pytest.raises(envs.EnvError, match=rf"install it with `pip install -e '\.\[{extra}\]'`"):
        envs.describe(config(f"Missing{extra}-v0"))


def test_missing_ale_py_names_our_extra(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # Python's own way to make an import fail
    with pytest.raises(envs.EnvError, match=r"ALE/Pong-v5: a package is missing .*-e '\.\[atari\]'`"):
        envs.describe(config("ALE/Pong-v5"))


def test_module_ids_and_import_modules(config, tmp_path, monkeypatch):
    (tmp_path / "some_package.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('SomePackage-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(envs.EnvError, match="if a package registers it, name that in env.import_modules"):
        envs.describe(config("SomePackage-v0"))
    assert envs.describe(config("SomePackage-v0", import_modules=["some_package"])).max_episode_steps == 9
    spec = envs.describe(config("some_package:SomePackage-v0"))
    assert (spec.id, spec.num_actions, spec.leaves[0].shape) == ("some_package:SomePackage-v0", 2, (4,))


def test_atari_frames(config):
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    env = config("ALE/Pong-v5", preprocessing="atari", frame_stack=4, max_episode_steps=5, clip_rewards=True)
    vector = envs.make(env, 2)
    (leaf,) = vector.spec.leaves
    assert (leaf.shape, leaf.dtype, leaf.kind, leaf.axes, leaf.stack) == ((84, 84), "uint8", "image", "hw", 4)
    assert leaf.seen_shape == (4, 84, 84) and vector.spec.num_actions == 6
    singles = [envs.make_single(env) for _ in range(2)]
    expected = np.stack([single.reset(seed=3 + i)[0] for i, single in enumerate(singles)])
    observation = vector.reset(3)
    np.testing.assert_array_equal(observation["observation"], expected)
    before = [single.unwrapped.ale.getEpisodeFrameNumber() for single in singles]
    for number in range(1, 6):
        observation, _, terminated, truncated = vector.step(np.array([2, 3]))
        expected = np.stack([single.step(action)[0] for single, action in zip(singles, (2, 3), strict=True)])
        np.testing.assert_array_equal(observation["observation"], expected)
        assert not terminated.any() and truncated.all() == (number == 5)  # the limit counts steps of 4 frames
    after = [single.unwrapped.ale.getEpisodeFrameNumber() for single in singles]
    assert [b - a for a, b in zip(before, after, strict=True)] == [20, 20]
    vector.close()


def test_raw_atari_frames_and_minatar_are_images(config):
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    pytest.importorskip("minatar", reason="minatar is not installed")
    leaf = envs.describe(config("ALE/Breakout-v5")).leaves[0]
    assert (leaf.shape, leaf.axes) == ((210, 160, 3), "hwc")
    leaf = envs.describe(config("MinAtar/Seaquest-v1")).leaves[0]
    assert (leaf.shape, leaf.dtype, leaf.axes) == ((10, 10, 10), "bool", "hwc")


def test_render(config):
    pytest.importorskip("pygame", reason="pygame is not installed")
    vector = envs.make(config("CartPole-v1"), 1, render_mode="rgb_array")
    vector.reset(0)
    assert vector.render().shape == (400, 600, 3)
    single = envs.make_single(config("CartPole-v1"), render_mode="rgb_array")
    single.reset(seed=0)
    assert single.render().shape == (400, 600, 3)
    vector.close()
    single.close()
