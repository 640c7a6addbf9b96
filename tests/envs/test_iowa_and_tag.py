"""Iowa's decks and the rules of Tag, in positions made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.envs.world_scenes import DOWN, LEFT, RIGHT, UP, actions, cells, where
from trainer.envs.worlds import (
    Iowa,
    Tag,
    iowa,
    tag,
)

# Iowa


@pytest.mark.parametrize(
    ("kind", "win", "lose", "risk"),
    [("deck_a", 1.1, -1.4, 0.5), ("deck_b", 1.1, -11.4, 0.1), ("deck_c", 0.6, 0.1, 0.5), ("deck_d", 0.6, -1.9, 0.1)],
)
def test_decks(kind, win, lose, risk):
    world = Iowa(2_000, spawn_probability=0)
    world.reset(0)
    world.place(cells((5, 5), (9, 9)))
    world.grid[:, 5, 6] = world.grid[:, 9, 10] = iowa.KINDS.index(kind)
    _, reward = world.step(np.full((2_000, 2), RIGHT))
    lost = np.isclose(reward, lose)
    assert (lost | np.isclose(reward, win)).all()
    assert stats.binomtest(int(lost.sum()), lost.size, risk).pvalue > 0.001
    assert abs(np.corrcoef(lost.T)[0, 1]) < 0.1  # each agent draws its own card
    assert (world.step(np.full((2_000, 2), LEFT))[1] == 0).all()
    assert not (world.grid == iowa.KINDS.index(kind)).any()


# Tag


def playground(*of_agents, it):
    world = Tag(1, num_agents=len(of_agents))
    world.place(cells(*of_agents), it)
    return world


def test_it_is_handed_on_after_a_move():
    world = playground((5, 5), (5, 8), it=0)
    observation, reward = world.step(actions(RIGHT, DOWN))  # now at (5, 6) and (6, 8)
    assert (world.it.tolist(), reward.tolist()) == ([0], [[0, 10]])
    assert observation[0, :, -1].tolist() == [True, False]
    _, reward = world.step(actions(DOWN, RIGHT))  # (6, 6) and (6, 9)
    assert (world.it.tolist(), reward.tolist()) == ([0], [[0, 10]])
    _, reward = world.step(actions(RIGHT, LEFT))  # (6, 7) and (6, 8): beside each other only after the second's move
    assert (world.it.tolist(), reward.tolist()) == ([0], [[0, 10]])
    observation, reward = world.step(actions(RIGHT, RIGHT))  # blocked, but beside it; the new one runs away at once
    assert (world.it.tolist(), reward.tolist()) == ([1], [[10, 0]])
    assert observation[0, :, -1].tolist() == [False, True]
    assert where(world.grid[0] == tag.IT) == {(6, 9)}
    assert where(world.grid[0] == tag.AGENT) == {(6, 7)}


def test_it_comes_back_in_the_same_turn_if_nobody_runs():
    world = playground((5, 5), (5, 6), it=0)
    _, reward = world.step(actions(RIGHT, LEFT))  # both blocked: 0 hands it to 1, who hands it back
    assert (world.it.tolist(), reward.tolist()) == ([0], [[0, 10]])


def test_one_who_has_acted_keeps_it():
    world = playground((1, 5), (1, 7), (9, 9), it=1)
    _, reward = world.step(actions(UP, LEFT, UP))  # 0 bumps into the wall, then 1 comes to (1, 6)
    assert (world.it.tolist(), reward.tolist()) == ([0], [[0, 10, 10]])


def test_a_corner_is_not_beside():
    world = playground((5, 5), (7, 7), it=1)
    world.step(actions(RIGHT, UP))
    assert (world.cells.tolist(), world.it.tolist()) == ([[[5, 6], [6, 7]]], [1])


def test_of_several_the_one_above_then_below_left_right():
    ring = {"above": (4, 5), "below": (6, 5), "left": (5, 4), "right": (5, 6)}
    order = ["above", "below", "left", "right"]
    for first in range(4):
        beside = order[first:][::-1]  # whatever the order in the list
        world = playground((5, 5), *(ring[name] for name in beside), it=0)
        world.act(0, np.array([RIGHT]))  # blocked
        assert world.it.tolist() == [1 + beside.index(order[first])]


def test_one_is_it_at_random():
    world = Tag(5_000)
    world.reset(2)
    assert stats.chisquare(np.bincount(world.it, minlength=5)).pvalue > 0.001
    assert ((world.grid == tag.IT).sum((1, 2)) == 1).all()
    assert ((world.grid == tag.AGENT).sum((1, 2)) == 4).all()
    generator = np.random.default_rng(0)
    for _ in range(20):
        _, reward = world.step(generator.integers(4, size=(5_000, 5)))
    assert (reward.sum(1) == 40).all()
    assert ((world.grid == tag.IT).sum((1, 2)) == 1).all()


def test_a_window_of_tag():
    world = playground((1, 1), (3, 4), (9, 9), it=1)
    seen = world.observe()
    window = seen[0, 0, :-1].reshape(4, 9, 9)
    assert where(window[tag.AGENT]) == {(4, 4)}
    assert where(window[tag.IT]) == {(6, 7)}
    assert window[tag.WALL].sum() == 81 - 25
    assert seen[0, :, -1].tolist() == [False, True, False]
