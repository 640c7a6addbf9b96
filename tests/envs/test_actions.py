"""Actions as values: what a space declares, what is drawn, stored and handed to the environment."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from trainer import envs
from trainer.acting.exploration import EpsilonGreedy
from trainer.commands.run import main
from trainer.envs import BoxAction, DiscreteAction, EnvSpec, Leaf
from trainer.envs.playback import Playback
from trainer.envs.spaces import action_of, mask_field
from trainer.envs.torchrl import VectorEnvironment
from trainer.replay.streams import row_spec

LEAF = Leaf("observation", (2,), "float32", "vector")
ARM = BoxAction((2,), (-2.0, 0.0), (-1.0, 10.0))


def test_a_space_becomes_an_action() -> None:
    assert action_of(spaces.Discrete(3, start=-5), "Test-v0") == DiscreteAction(3, start=-5)
    low, high = np.array([[-1, 0], [1, 2]], np.float64), np.array([[0, 1], [3, 4]], np.float64)
    box = action_of(spaces.Box(low, high, dtype=np.float64), "Test-v0")
    assert box == BoxAction((2, 2), (-1, 0, 1, 2), (0, 1, 3, 4))
    assert (box.dtype, box.has_mask) == ("float32", False)


def test_an_algorithm_of_numbered_actions_refuses_a_box_in_one_sentence(config) -> None:
    spec = envs.describe(config("Pendulum-v1"))
    assert spec.action == BoxAction((1,), (-2.0,), (2.0,))
    with pytest.raises(envs.EnvError) as caught:
        _ = spec.num_actions
    assert str(caught.value).startswith(
        "Pendulum-v1: its actions are points in a box, and not numbered; "
        "gymnasium.wrappers.DiscretizeAction(env, bins) makes it so"
    )


def test_a_run_is_refused_before_its_folder_is_made(capsys, tmp_path) -> None:
    folder = tmp_path / "run"
    assert main(["env.id=Pendulum-v1", "algorithm=dqn", "logger.terminal=none", f"run_dir={folder}"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: Pendulum-v1: an action is a point in a box, and algorithm=dqn chooses one of numbered actions: set "
        "algorithm=sac or redq or droq or tqc or crossq or td3 or ddpg; gymnasium.wrappers.DiscretizeAction(env, bins)"
    )
    assert main(["env.id=CartPole-v1", "algorithm=td3", "logger.terminal=none", f"run_dir={folder}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "error: CartPole-v1: an action is one of 2 numbers, and algorithm=td3 moves within a box: set"
    )
    assert "algorithm=dqn or " in said and not folder.exists()


def test_an_unbounded_box_is_refused_with_the_wrapper_that_bounds_it() -> None:
    for low in (-np.inf, 0.0):
        with pytest.raises(envs.EnvError, match=r"is unbounded, .*TransformAction.*Box\(-1, 1, \(2,\)\)\) sets bounds"):
            action_of(spaces.Box(low, np.inf, (2,)), "Test-v0")


def test_a_mask_beside_a_box_is_refused() -> None:
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(2)})
    with pytest.raises(envs.EnvError, match="its actions are a Box"):
        mask_field(space, ARM, "Test-v0")


def test_rows_hold_the_action_as_the_spec_says() -> None:
    assert row_spec(EnvSpec("a", (LEAF,), ARM))["action"] == ((2,), "float32")
    columns = row_spec(EnvSpec("a", (LEAF,), DiscreteAction(3, has_mask=True)))
    assert columns["action"] == ((), "int64") and columns["action_mask"] == ((3,), "bool")


def test_an_explorer_draws_from_the_whole_box_and_leaves_the_rest() -> None:
    explorer, action = EpsilonGreedy(1_000, ARM, seed=0), np.full((1_000, 2), 99, np.float32)
    explored = explorer(action, 0.5, None)
    drawn = explored[explored[:, 0] != 99]
    assert (action == 99).all() and explored.dtype == np.float32
    assert 400 < len(drawn) < 600  # binomial: 500, standard deviation 16
    assert (drawn >= [-2, 0]).all() and (drawn <= [-1, 10]).all()
    assert drawn.mean(0) == pytest.approx([-1.5, 5], abs=0.5) and drawn.min(0) == pytest.approx([-2, 0], abs=0.1)


def test_a_bound_that_float32_does_not_hold_is_not_overstepped_by_rounding() -> None:
    third = BoxAction((), (0.1,), (0.1 + 1e-12,))
    assert third.random(np.random.default_rng(0), 9, None).tolist() == [np.float32(0.1)] * 9


@pytest.mark.parametrize(("action", "acted"), [(DiscreteAction(3), 2), (ARM, [-1.5, 3.0])])
def test_playback_gives_what_was_done(action: envs.Action, acted: object) -> None:
    back, one = Playback(2, 2, action), np.array([1])
    done = np.zeros((2, *action.shape), action.dtype)
    done[0] = acted
    back.decided(one, np.array([0]), {"observation": np.ones((1, 2), np.float32)}, done[:1])
    back.paid(one, np.ones((1, 2), np.float32))
    back.ended(one, lambda rows, seats: {"observation": np.zeros((1, 2), np.float32)})
    assert action.given(back.given).tolist() == [False, False]
    assert back.begin(one).tolist() == [True] and action.given(back.given).tolist() == [False, True]
    assert back.given[1].tolist() == acted and back.given.dtype == action.dtype
    again = Playback(2, 2, action)
    again.set_state(back.state())
    assert again.given[1].tolist() == acted and action.given(again.given).tolist() == [False, True]
    back.advance(one, np.zeros(2, np.float32))
    assert action.given(back.given).tolist() == [False, False]


def test_a_vector_takes_points_of_a_box(config) -> None:
    vector = envs.make(config("Pendulum-v1"), 2)
    vector.reset(0)
    _, reward, _, _ = vector.step(np.array([[2.0], [-0.5]], np.float32))
    assert [env.unwrapped.last_u for env in vector.envs] == [2.0, -0.5] and (reward <= 0).all()
    vector.close()


def test_torchrl_is_told_the_box(config) -> None:
    env = VectorEnvironment(envs.make(config("Pendulum-v1"), 3))
    drawn = env.action_spec.rand()
    assert drawn.shape == (3, 1) and drawn.dtype == torch.float32 and (drawn.abs() <= 2).all()
    env.close()
