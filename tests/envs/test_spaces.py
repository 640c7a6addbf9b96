"""Every kind of space becomes the leaves that it should, and its values arrive unchanged; the rest is refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from trainer import envs
from trainer.envs.spaces import fields_of

F32 = np.float32


def leaf_of(space, stack=1):
    (field,) = fields_of(space, stack, "Test-v0")
    return field.leaf


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "kind", "axes"),
    [
        (spaces.Box(-1, 1, (4,), np.float64), (4,), "float32", "vector", ""),
        (spaces.Box(-1, 1, (), F32), (1,), "float32", "vector", ""),
        (spaces.Box(0, 255, (128,), np.uint8), (128,), "uint8", "vector", ""),
        (spaces.Box(-9, 9, (6, 7), np.int8), (6, 7), "float32", "vector", ""),
        (spaces.Box(0, 255, (84, 84), np.uint8), (84, 84), "uint8", "image", "hw"),
        (spaces.Box(0, 9, (24, 18), np.uint8), (24, 18), "uint8", "vector", ""),  # a board, not a frame
        (spaces.Box(0, 255, (210, 160, 3), np.uint8), (210, 160, 3), "uint8", "image", "hwc"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), (4, 84, 84), "uint8", "image", "chw"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), (7, 7, 3), "uint8", "image", "hwc"),
        (spaces.Box(0, 1, (10, 10, 4), np.bool_), (10, 10, 4), "bool", "image", "hwc"),
        (spaces.Box(0, 1, (10, 10, 10), np.bool_), (10, 10, 10), "bool", "image", "hwc"),
        (spaces.Box(0, 1, (4, 4, 16), np.uint8), (4, 4, 16), "bool", "image", "hwc"),
        (spaces.Box(-1, 1, (3, 6, 7), F32), (3, 6, 7), "float32", "image", "chw"),
        (spaces.Box(-1, 1, (1, 3, 1), F32), (1, 3, 1), "float32", "vector", ""),
        (spaces.Discrete(5), (1,), "int64", "discrete", ""),
        (spaces.MultiDiscrete([3, 4]), (2,), "int64", "discrete", ""),
        (spaces.MultiDiscrete([[2, 3], [4, 5], [6, 7]]), (3, 2), "int64", "discrete", ""),
        (spaces.MultiBinary(3), (3,), "bool", "binary", ""),
        (spaces.MultiBinary([2, 3]), (2, 3), "bool", "binary", ""),
    ],
)
def test_a_space_becomes_one_leaf(space, shape, dtype, kind, axes):
    leaf = leaf_of(space)
    assert (leaf.name, leaf.shape, leaf.dtype, leaf.kind, leaf.axes) == ("observation", shape, dtype, kind, axes)


def test_categories_are_listed_in_c_order():
    assert leaf_of(spaces.MultiDiscrete([[2, 3], [4, 5]])).nvec == (2, 3, 4, 5)
    assert leaf_of(spaces.Discrete(7, start=-3)).nvec == (7,)


def test_frames_are_stacked_of_boxes_only():
    assert leaf_of(spaces.Box(0, 255, (84, 84), np.uint8), stack=4).seen_shape == (4, 84, 84)
    assert leaf_of(spaces.Box(-1, 1, (3,)), stack=4).seen_shape == (4, 3)
    parts = {"box": spaces.Box(-1, 1, (3,)), "one": spaces.Discrete(3), "bits": spaces.MultiBinary(3)}
    stacks = {field.leaf.name: field.leaf.stack for field in fields_of(spaces.Dict(parts), 4, "Test-v0")}
    assert stacks == {"observation.box": 4, "observation.one": 1, "observation.bits": 1}
    with pytest.raises(envs.EnvError, match="env.frame_stack=4 stacks Boxes alone"):
        leaf_of(spaces.Discrete(3), stack=4)


NESTED = spaces.Dict(
    {
        "reward": spaces.Box(-1, 1, (3,), F32),
        "next": spaces.Tuple((spaces.Discrete(4, start=2), spaces.Dict({"deep": spaces.MultiBinary(3)}))),
        "hinge cabinet": spaces.Box(0, 255, (5, 5, 3), np.uint8),
        "grid": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 2], [3, -4]]),
        "scalar": spaces.Box(-1, 1, (), np.float64),
    }
)
# leaf name -> how to find it by hand in a sampled observation
FOUND = {
    "observation.reward": lambda o: o["reward"],
    "observation.next.0": lambda o: [o["next"][0] - 2],
    "observation.next.1.deep": lambda o: o["next"][1]["deep"].astype(bool),
    "observation.hinge_cabinet": lambda o: o["hinge cabinet"],
    "observation.grid": lambda o: o["grid"] - [[1, 2], [3, -4]],
    "observation.scalar": lambda o: [F32(o["scalar"])],
}


def test_nested_spaces_arrive_unchanged(sampled):
    vector = envs.make(sampled(NESTED, spaces.Discrete(2)), 3)
    assert {leaf.name for leaf in vector.spec.leaves} == set(FOUND)
    observation = vector.reset(5)
    for _ in range(9):
        for leaf in vector.spec.leaves:
            expected = np.stack([FOUND[leaf.name](env.unwrapped.shown[-1]) for env in vector.envs])
            assert observation[leaf.name].shape == (3, *leaf.shape)
            assert observation[leaf.name].dtype == leaf.dtype
            np.testing.assert_array_equal(observation[leaf.name], expected)
        observation, *_ = vector.step(np.zeros(3, np.int64))
    counted = observation["observation.grid"]
    assert counted.min() >= 0 and (counted < [[3, 4], [5, 6]]).all()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(4, start=10), lambda o: [o - 10]),
        (spaces.MultiDiscrete([3, 4], start=[5, -6]), lambda o: o - [5, -6]),
        (spaces.Box(-7, 7, (2, 2), np.int32), lambda o: o.astype(F32)),
        (spaces.Box(0, 1, (3,), np.uint8), lambda o: o.astype(bool)),
        (spaces.Tuple((spaces.Box(-1, 1, (2,)),)), lambda o: o[0]),
    ],
)
def test_single_spaces_arrive_unchanged(sampled, space, expected):
    vector = envs.make(sampled(space), 2)
    (leaf,) = vector.spec.leaves
    observation = vector.reset(1)
    for _ in range(6):
        by_hand = np.stack([expected(env.unwrapped.shown[-1]) for env in vector.envs])
        np.testing.assert_array_equal(observation[leaf.name], by_hand)
        observation, *_ = vector.step(np.zeros(2, np.int64))


def test_actions_get_the_start_of_their_space(sampled):
    vector = envs.make(sampled(spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=-5)), 3)
    assert (vector.spec.num_actions, vector.spec.action.start) == (3, -5)
    vector.reset(0)
    vector.step(np.array([0, 1, 2]))
    assert [env.unwrapped.actions for env in vector.envs] == [[-5], [-4], [-3]]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(5), "observation has the space Text"),
        (spaces.Graph(spaces.Box(-1, 1, (2,)), None), "observation has the space Graph"),
        (spaces.Sequence(spaces.Discrete(2)), "observation has the space Sequence"),
        (spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), "observation has the space OneOf"),
        (spaces.Dict({"a": spaces.Dict({"words": spaces.Text(5)})}), "observation.a.words has the space Text"),
        (spaces.Dict({"a b": spaces.Discrete(2), "a_b": spaces.Discrete(2)}), "would both be called"),
        (spaces.Dict({"action_mask": spaces.MultiBinary(2)}), "nothing to look at"),
        (spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Discrete(2)}), "there are 2 actions"),
    ],
)
def test_other_observations_are_refused(sampled, space, words):
    env = sampled(space)
    with pytest.raises(envs.EnvError, match=words) as caught:
        envs.describe(env)
    assert str(caught.value).startswith(env.id)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, np.inf, (2,)),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Tuple((spaces.Discrete(2),)),
    ],
)
def test_other_actions_are_refused(sampled, space):
    kind = type(space).__name__
    with pytest.raises(envs.EnvError, match=rf"action space {kind}.* (supported is Discrete|is unbounded)"):
        envs.describe(sampled(spaces.Discrete(2), space))


def test_minigrid_gets_a_hint(config):
    pytest.importorskip("minigrid", reason="minigrid is not installed")
    with pytest.raises(envs.EnvError, match=r"observation\.mission has the space MissionSpace.*ImgObsWrapper"):
        envs.describe(config("MiniGrid-Empty-5x5-v0", import_modules=["minigrid"]))


@pytest.mark.parametrize(("env_id", "low"), [("MountainCar-v0", (-1.2, -0.07)), ("CartPole-v1", ())])
def test_a_leaf_has_bounds_only_where_all_are_finite(env_id: str, low: tuple[float, ...], config) -> None:
    assert envs.describe(config(env_id)).leaves[0].low == pytest.approx(low)
