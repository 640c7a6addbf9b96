"""Observations outside their space: what would be stored otherwise than it was shown is refused, and named."""

from __future__ import annotations

import re
from typing import Any

import hurting_worlds  # noqa: F401  (registers)
import numpy as np
import pytest
import torch
from gymnasium import spaces

from trainer import envs
from trainer.config.algorithms import DQNConfig
from trainer.config.fields import ConfigError
from trainer.config.sections import EnvConfig as config
from trainer.envs.spaces import fields_of
from trainer.networks.q_network import QNetwork

BITS, BYTES, FLOATS = spaces.Box(0, 1, (4,), np.uint8), spaces.Box(0, 255, (4,), np.uint8), spaces.Box(-1, 1, (4,))
WHOLE = spaces.Box(-(2**40), 2**40, (4,), np.int64)


def shows(space: Any, first: Any, then: Any, length: int = 5) -> Any:
    """Two sub-environments that show `first` when they are reset and `then` after their third step."""
    values = [first, first, first, then]
    vector = envs.make(config("Hurting/Shows-v0", kwargs={"space": space, "values": values, "length": length}), 2)
    vector.reset(7)
    return vector


def walk(vector: Any, steps: int = 3) -> Any:
    for _ in range(steps):
        observation, *_ = vector.step(np.zeros(2, np.int64))
    return observation


@pytest.mark.parametrize(
    ("space", "then", "words"),
    [
        (BITS, np.array([0, 1, 50, 200], np.uint8), "observation[2] is 50, where its space declares 0 to 1"),
        (BITS, np.array([0, 1, 0.5, 0]), "observation[2] is 0.5, where its space declares 0 to 1"),
        (BITS, np.array([0, 1, 256, 0]), "observation[2] is 256, where its space declares 0 to 1"),
        (spaces.MultiBinary(4), np.array([0, 1, -1, 0], np.int8), "observation[2] is -1, where its space declares"),
        (spaces.Box(0, 1, (4,), bool), np.array([0, 2, 0, 0]), "observation[1] is 2, where its space declares"),
        (BYTES, np.array([1, 2.5, 3, 4]), "observation[1] is 2.5, which uint8, as its space declares it, cannot hold"),
        (BYTES, np.array([1, 300, 3, 4]), "observation[1] is 300, which uint8"),
        (BYTES, np.array([1, 2, 3, -4]), "observation[3] is -4, which uint8"),
        (BYTES, np.array([1, 2, 3, np.nan]), "observation[3] is nan, which is no finite number"),
        (FLOATS, np.array([1, np.nan, 3, 4], np.float32), "observation[1] is nan, which is no finite number"),
        (FLOATS, np.array([1, 2, -np.inf, 4]), "observation[2] is -inf, which is no finite number"),
        (FLOATS, np.array([1, 1e39, 3, 4]), "observation[1] is 1e+39, which float32, as it is stored, cannot hold"),
        (FLOATS, np.array(["a"] * 4), "which is no number"),
        (FLOATS, None, "has shape () where its space declares (4,)"),
        (FLOATS, [1.0, [2.0, 3.0]], "parts of different lengths"),
        (FLOATS, np.zeros(3, np.float32), "has shape (3,) where its space declares (4,)"),
        (WHOLE, np.array([1, 2**24 + 1, 3, 4]), "observation[1] is 16777217, which float32"),
        (spaces.Discrete(3), 3, "observation is 3, which lies outside its space"),
        (spaces.Discrete(3), 1.5, "observation is 1.5, which lies outside its space"),
        (spaces.Discrete(3), None, "observation is None, which is no number"),
        (spaces.Discrete(3), float("nan"), "observation is nan, which lies outside its space"),
        (spaces.MultiDiscrete([3, 3]), np.array([0.0, 2.9]), "lies outside its space"),
        (spaces.Box(-1, 1, ()), float("inf"), "observation is inf, which is no finite number"),
        (spaces.Dict({"a": FLOATS}), {"a": np.full(4, np.nan)}, "observation.a[0] is nan"),
        (spaces.Dict({"a": FLOATS}), np.zeros(4), "observation.a is missing"),
    ],
)  # fmt: skip
def test_what_storage_would_change_is_refused_in_every_row(space: Any, then: Any, words: str) -> None:
    first = {"MultiBinary": np.zeros(4, np.int8), "Discrete": 0, "Dict": {"a": np.zeros(4, np.float32)}}
    shape = getattr(space, "shape", None)
    vector = shows(space, first.get(type(space).__name__, np.zeros(shape or (), space.dtype)), then)
    walk(vector, 2)
    kept = {name: array.copy() for name, array in vector._observation.items()}
    with pytest.raises(envs.EnvError, match=re.escape(words)) as caught:
        walk(vector, 1)
    text = str(caught.value)
    assert text.startswith(
        "Hurting/Shows-v0: sub-environment 0 (seed 7) failed in step, in step 3 of its episode, step 3"
    )
    assert "\n" not in text and set(kept) == set(vector._observation)
    assert all(array.max() <= 1 for array in vector._observation.values() if array.dtype == bool)


@pytest.mark.parametrize(
    ("space", "then", "stored"),
    [
        (BYTES, np.array([1, 2, 3, 255]), [1, 2, 3, 255]),  # of int64, but every number fits
        (BYTES, [1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4]),
        (BITS, np.array([True, False, True, True]), [1, 0, 1, 1]),
        (spaces.MultiBinary(4), [0, 1, 1, 0], [0, 1, 1, 0]),
        (FLOATS, [0.5, 0, 1, -1], [0.5, 0, 1, -1]),
        (WHOLE, np.array([2**24, -(2**24), 2**30, 0]), [2**24, -(2**24), 2**30, 0]),  # float32 holds these
        (spaces.Box(-np.inf, np.inf, (4,), np.float64), np.array([1e30, -1e38, 0, 1]), np.float32([1e30, -1e38, 0, 1])),
        (spaces.Discrete(3, start=5), 7.0, [2]),
    ],
)  # fmt: skip
def test_another_type_with_the_same_numbers_trains(space: Any, then: Any, stored: Any) -> None:
    first = space.start if isinstance(space, spaces.Discrete) else np.zeros(4, space.dtype)
    observation = walk(shows(space, first, then))
    assert observation["observation"].tolist() == [list(stored)] * 2


def test_floats_outside_their_bounds_are_said_once_and_learned_from(capsys: pytest.CaptureFixture[str]) -> None:
    vector = shows(FLOATS, np.zeros(4, np.float32), np.array([0, 1.5, 0, 0], np.float32), length=6)
    assert walk(vector, 3)["observation"].tolist() == [[0, 1.5, 0, 0]] * 2
    walk(vector, 10)
    assert capsys.readouterr().err == (
        "warning: Hurting/Shows-v0: sub-environment 0 (seed 7): observation[1] is 1.5, outside the -1 to 1 that its "
        "space declares; it is learned from as it is\n"
    )


def test_bounds_that_are_met_within_rounding_are_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    space = spaces.Box(np.full(4, -0.1), np.full(4, 0.1), dtype=np.float64)
    walk(shows(space, np.zeros(4), np.array([0.1, -0.1, 0.1 + 1e-9, 0])))
    assert capsys.readouterr().err == ""


def test_a_value_that_is_infinite_in_float32_is_named_and_does_not_enter_the_replay(run) -> None:
    ended = run("env.id=Hurting/Huge-v0", "env.import_modules=[hurting_worlds]", "faults.max_failures=0", "seed=3")
    assert ended.code == 1
    words = (
        r"Hurting/Huge-v0: sub-environment \d \(seed \d+\) failed in step, in step \d of its episode, step \d+ of all: "
        r"observation\[0\] is 1e\+39, which float32, as it is stored, cannot hold"
    )
    assert re.search(words, ended.summary["reason"]), ended.said
    assert "learning_rate" not in ended.summary["reason"]
    (rows,) = (np.fromfile(path, np.float32) for path in ended.run_dir.rglob("observation.bin"))
    assert len(rows) == 2 * 1_000 and np.isfinite(rows).all()


@pytest.mark.parametrize("kwargs", ["", "env.kwargs={length: 10}"])
def test_an_environment_that_shows_what_its_space_does_not_declare_ends_before_it_trains(run, kwargs: str) -> None:
    ended = run("env.id=Hurting/Shows-v0", "env.import_modules=[hurting_worlds]", *([kwargs] if kwargs else []))
    assert ended.code != 0
    assert "observation[0] is 50, where its space declares 0 to 1" in ended.err and "Traceback" not in ended.said


def network(space: Any, **options: Any) -> QNetwork:
    leaves = tuple(field.leaf for field in fields_of(space, 1, "Test-v0"))
    return QNetwork(envs.EnvSpec("Test-v0", leaves, envs.DiscreteAction(2)), DQNConfig(hidden_sizes=[8], **options))


@pytest.mark.parametrize("shape", [(400,), (40, 40), (12, 12, 3)])
@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 255, np.uint8), (10, 20, np.uint8), (-2, 6, np.float32)])
def test_scale_observations_scales_bytes_and_pictures_from_their_bounds(shape, low, high, dtype) -> None:
    (encoder,) = network(spaces.Box(low, high, shape, dtype), scale_observations=True).encoders
    x = torch.from_numpy(np.random.default_rng(0).integers(low, high + 1, (50, *shape)).astype(dtype))
    by_hand = ((x.double() - low) / (high - low) * 2 - 1).float()
    assert by_hand.min() == -1 and by_hand.max() == 1
    expected = by_hand.flatten(1)
    if hasattr(encoder, "convolutions"):  # a picture, but floats of two axes are none
        assert shape != (400,)
        channels = by_hand[:, None] if len(shape) == 2 else by_hand.movedim(-1, 1)
        expected = encoder.convolutions(channels).flatten(1)
    assert torch.allclose(encoder(x), expected, atol=1e-5)


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(4), spaces.MultiBinary(3)])
def test_scale_observations_is_refused_where_it_would_do_nothing(space) -> None:
    with pytest.raises(ConfigError, match=r"algorithm.scale_observations=true .* Test-v0 declares none: leave it out"):
        network(space, scale_observations=True)
