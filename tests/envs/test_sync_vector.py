"""The in-process vector: it returns what plain environments do when stepped by hand; its failures name the culprit."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from trainer import envs

BOX = spaces.Box(-1, 1, (4,), np.float32)


def atoms(observation):
    """The arrays of a plain observation, in the order of the vector's leaves."""
    return list(observation) if isinstance(observation, tuple) else [observation]


@pytest.mark.parametrize(
    ("env_id", "modules", "steps"),
    [
        ("CartPole-v1", [], 120),
        ("MountainCar-v0", [], 210),  # truncated after 200
        ("Taxi-v4", [], 210),
        ("Blackjack-v1", [], 60),
        ("FrozenLake-v1", [], 60),
        ("MinAtar/Breakout-v1", [], 60),
        ("LunarLander-v3", [], 130),
        ("popgym-CountRecallEasy-v0", ["popgym"], 60),
        ("popgym-AutoencodeEasy-v0", ["popgym"], 110),
    ],
)
def test_equals_plain_environments(config, episodes_by_hand, env_id, modules, steps):
    for module in [*modules, *(["minatar"] if "MinAtar" in env_id else []), *(["Box2D"] if "Lunar" in env_id else [])]:
        pytest.importorskip(module, reason=f"{module} is not installed")
    env = config(env_id, import_modules=modules, vectorization="sync")
    vector = envs.make(env, 3)
    spec = vector.spec
    actions = np.random.default_rng(0).integers(0, spec.num_actions, (steps, 3))
    by_hand = episodes_by_hand([envs.make_single(env) for _ in range(3)], actions, 7)
    got = [(vector.reset(7), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool))]
    ends = 0
    for number, (observations, rewards, terminated, truncated, infos) in enumerate(by_hand):
        observation, reward, got_terminated, got_truncated = got[-1]
        np.testing.assert_array_equal(reward, np.float32(rewards))
        assert got_terminated.tolist() == terminated and got_truncated.tolist() == truncated
        for position, leaf in enumerate(spec.leaves):
            expected = np.stack([np.asarray(atoms(row)[position]).reshape(leaf.shape) for row in observations])
            np.testing.assert_array_equal(observation[leaf.name], expected)
        if spec.action.has_mask:
            np.testing.assert_array_equal(observation["action_mask"], [info["action_mask"] == 1 for info in infos])
        ends += sum(terminated) + sum(truncated)
        if number < steps:
            got.append(vector.step(actions[number]))
    assert ends >= 3
    assert spec.action.has_mask == (env_id == "Taxi-v4")
    vector.close()


def test_what_is_returned_stays_in_the_same_arrays(sampled):
    vector = envs.make(sampled(BOX), 2)
    first = vector.reset(0)
    array = first["observation"]
    observation, reward, terminated, truncated = vector.step(np.zeros(2, np.int64))
    again = vector.step(np.zeros(2, np.int64))
    assert observation is first and again[0] is first and first["observation"] is array
    assert again[1] is reward and again[2] is terminated and again[3] is truncated
    assert reward is vector.raw_reward


def test_seeds_are_used_once(sampled):
    vector = envs.make(sampled(BOX), 3)
    seeds = []
    for env in vector.envs:
        reset = env.unwrapped.reset
        env.unwrapped.reset = lambda seed=None, options=None, reset=reset: (seeds.append(seed), reset(seed=seed))[1]
    vector.reset(40)
    for _ in range(4):  # three steps of an episode, then the reset
        vector.step(np.zeros(3, np.int64))
    vector.reset(None)
    assert seeds == [40, 41, 42, None, None, None, None, None, None]


def test_without_autoreset_the_caller_resets(sampled):
    vector = envs.make(sampled(BOX), 2, autoreset=False)
    vector.reset(0)
    vector.reset_where(np.array([True, False]))
    for _ in range(3):
        observation, reward, terminated, _ = vector.step(np.zeros(2, np.int64))
    assert terminated.all() and reward.tolist() == [3, 3]
    final = observation["observation"].copy()
    observation = vector.reset_where(np.array([True, False]))
    assert (observation["observation"][0] != final[0]).all()
    np.testing.assert_array_equal(observation["observation"][1], final[1])
    with pytest.raises(envs.EnvError, match="sub-environment 1 .*reset_where was not called"):
        vector.step(np.zeros(2, np.int64))


def test_clipping_keeps_the_raw_reward(config):
    vector = envs.make(config("Taxi-v4", clip_rewards=True), 2)
    vector.reset(0)
    _, reward, _, _ = vector.step(np.array([5, 5]))  # a drop-off at the wrong place costs 10
    assert reward.tolist() == [-1, -1] and vector.raw_reward.tolist() == [-10, -10]


@pytest.mark.parametrize(("limit", "length"), [(None, 3), (2, 2)])
def test_max_episode_steps_overrides(sampled, limit, length):
    vector = envs.make(sampled(BOX, max_episode_steps=limit), 1)
    vector.reset(0)
    flags = []
    for _ in range(length):
        flags.append([bool(flag[0]) for flag in vector.step(np.zeros(1, np.int64))[2:]])
    assert flags[:-1] == [[False, False]] * (length - 1)
    assert flags[-1] == ([True, False] if limit is None else [False, True])
    assert vector.spec.max_episode_steps == limit


def test_both_flags_are_kept(sampled):
    vector = envs.make(sampled(BOX, max_episode_steps=3), 1)
    vector.reset(0)
    flags = [vector.step(np.zeros(1, np.int64))[2:] for _ in range(3)]
    assert flags[-1][0].all() and flags[-1][1].all()


def test_masks_of_observations_leave_the_leaves(sampled):
    space = spaces.Dict({"action_mask": spaces.Box(0, 1, (3,), np.int8), "x": BOX})
    vector = envs.make(sampled(space, spaces.Discrete(3)), 4)
    assert [leaf.name for leaf in vector.spec.leaves] == ["observation.x"] and vector.spec.action.has_mask
    observation = vector.reset(0)
    emptied = 0
    for _ in range(12):
        raw = np.stack([env.unwrapped.shown[-1]["action_mask"] for env in vector.envs]) == 1
        emptied += int((~raw.any(1)).sum())
        raw[~raw.any(1)] = True
        assert observation["action_mask"].dtype == bool
        np.testing.assert_array_equal(observation["action_mask"], raw)
        observation, *_ = vector.step(np.zeros(4, np.int64))
    assert emptied > 0  # rows in which nothing was legal became all True


def test_masks_of_info_may_be_missing_at_an_end_only(sampled):
    mask = np.array([1, 0], np.int8)
    vector = envs.make(sampled(BOX, masks=[None, *[mask] * 5]), 1)
    # shown 1 as it was made, 2 (reset), 3, 4 with masks, then 5 (the end) with one; 6, after the reset, has none.
    assert vector.reset(0)["action_mask"].tolist() == [[True, False]]
    for _ in range(3):
        vector.step(np.zeros(1, np.int64))
    with pytest.raises(envs.EnvError, match=r"info\['action_mask'\] is missing"):
        vector.step(np.zeros(1, np.int64))
    vector = envs.make(sampled(BOX, masks=[None, *[mask] * 4]), 1)  # observation 5 is the final one
    vector.reset(0)
    for _ in range(3):
        observation, _, terminated, _ = vector.step(np.zeros(1, np.int64))
    assert terminated.all() and observation["action_mask"].all()


def change(position, value, at=6):
    """A fault: with the `at`-th observation of an environment with seed 21, its step's result has another value."""

    def fault(env, result):
        if len(env.shown) == at and env.np_random_seed == 21:
            return (*result[:position], value() if callable(value) else value, *result[position + 1 :])
        return result

    return fault


def explode():
    raise ZeroDivisionError("boom")


@pytest.mark.parametrize(
    ("space", "fault", "words"),
    [
        (BOX, change(1, explode, at=3), r"failed in step with action 0, in step 2 of its .* ZeroDivisionError: boom"),
        (BOX, change(0, np.zeros(3, np.float32)), r"observation has shape \(3,\) where its space declares \(4,\)"),
        (BOX, change(0, np.zeros(1, np.float32)), r"observation has shape \(1,\) where its space declares \(4,\)"),
        (BOX, change(1, float("nan")), "its reward is nan"),
        (BOX, change(1, None), "its reward is nan"),
        (BOX, change(1, [1.0, 2.0]), "its reward is a list of 2, and must be one number"),
        (spaces.Discrete(3), change(0, 3), "observation is 3, which lies outside its space"),
        (spaces.Discrete(3, start=1), change(0, 0), "observation is 0, which lies outside its space"),
        (spaces.Dict({"a": BOX, "b": BOX}), change(0, {"a": np.zeros(4)}), "observation.b is missing"),
    ],
)
def test_a_failing_sub_environment_is_named(sampled, space, fault, words):
    env = sampled(space, fault=fault)
    vector = envs.make(env, 3)
    vector.reset(20)
    with pytest.raises(envs.EnvError, match=words) as caught:
        for _ in range(6):
            vector.step(np.zeros(3, np.int64))
    assert str(caught.value).startswith(f"{env.id}: sub-environment 1 (seed 21) failed in ")
    assert "of all" in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, Exception)


def test_a_failing_reset_or_constructor_is_named(config, sampled):
    vector = envs.make(sampled(BOX), 3)
    vector.envs[2].unwrapped.reset = lambda seed=None, options=None: explode()
    with pytest.raises(envs.EnvError, match=r"sub-environment 2 \(seed 12\) failed in reset, before its first reset"):
        vector.reset(10)
    with pytest.raises(envs.EnvError, match="constructor failed, given env.kwargs={'nonsense': 1}: TypeError"):
        envs.make(config("CartPole-v1", vectorization="sync", kwargs={"nonsense": 1}), 2)
