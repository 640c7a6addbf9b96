"""Treasurehunt: moves, what lies in cells, and windows, in positions made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.envs.world_scenes import DOWN, LEFT, RIGHT, UP, actions, cells, hunt, where
from trainer.envs.worlds import (
    Iowa,
    TreasureHunt,
    grid,
    treasurehunt,
)

# Moves and windows, in treasurehunt


def test_two_agents_want_one_cell():
    world = hunt((5, 5), (5, 7))
    world.grid[0, 5, 6] = treasurehunt.GEM
    _, reward = world.step(actions(RIGHT, LEFT))
    assert reward.tolist() == [[10, 0]]  # the first in the list gets it, the second is blocked by the first
    assert world.cells.tolist() == [[[5, 6], [5, 7]]]


def test_actions_take_effect_in_the_order_of_the_list():
    world = hunt((5, 6), (5, 5))
    world.step(actions(RIGHT, RIGHT))
    assert world.cells.tolist() == [[[5, 7], [5, 6]]]  # the second follows into what the first has left
    world = hunt((5, 5), (5, 6))
    world.step(actions(RIGHT, RIGHT))
    assert world.cells.tolist() == [[[5, 5], [5, 7]]]  # the first was still blocked by the second


def test_moves():
    world = hunt((5, 5))
    for action, cell in ((UP, [4, 5]), (LEFT, [4, 4]), (DOWN, [5, 4]), (RIGHT, [5, 5])):
        world.step(actions(action))
        assert world.cells.tolist() == [[cell]]
    assert where(world.grid[0] == treasurehunt.AGENT) == {(5, 5)}


@pytest.mark.parametrize(("kind", "reward"), [("gem", 10), ("food", 5), ("bone", -10), ("empty", 0)])
def test_entering_a_cell_takes_what_lies_there(kind, reward):
    world = hunt((5, 5))
    world.grid[0, 5, 6] = treasurehunt.KINDS.index(kind)
    assert world.step(actions(RIGHT))[1].tolist() == [[reward]]
    assert world.step(actions(LEFT))[1].tolist() == [[0]]
    assert world.grid[0, 5, 6] == treasurehunt.EMPTY
    assert world.step(actions(RIGHT))[1].tolist() == [[0]]  # it is gone


def test_bumping_into_a_wall_costs_and_into_an_agent_does_not():
    world = hunt((1, 1), (1, 2))
    assert world.step(actions(UP, LEFT))[1].tolist() == [[-1, 0]]
    assert world.step(actions(RIGHT, UP))[1].tolist() == [[0, -1]]
    assert world.cells.tolist() == [[[1, 1], [1, 2]]]


def test_a_window_at_the_border_shows_walls_outside():
    world = hunt((1, 1))
    world.grid[0, 1, 2] = treasurehunt.GEM
    world.grid[0, 3, 1] = treasurehunt.BONE
    seen = world.observe().reshape(6, 5, 5)
    # Rows -1 and 0 and columns -1 and 0 of the world: 10 + 6 cells.
    assert where(seen[treasurehunt.WALL]) == {(i, j) for i in range(5) for j in range(5) if i < 2 or j < 2}
    assert where(seen[treasurehunt.AGENT]) == {(2, 2)}
    assert where(seen[treasurehunt.GEM]) == {(2, 3)}
    assert where(seen[treasurehunt.BONE]) == {(4, 2)}
    assert where(seen[treasurehunt.EMPTY]) == {(2, 4), (3, 2), (3, 3), (3, 4), (4, 3), (4, 4)}
    assert not seen[treasurehunt.FOOD].any()
    world.place(cells((19, 19)))
    assert world.observe().reshape(6, 5, 5)[treasurehunt.WALL].sum() == 16


def test_worlds_do_not_see_each_other():
    world = TreasureHunt(2, num_agents=1, spawn_probability=0)
    world.place(np.array([[[19, 19]], [[1, 1]]]))  # neighbours in memory, but for the padding
    seen = world.observe().reshape(2, 6, 5, 5)
    assert seen[:, treasurehunt.AGENT].sum((1, 2)).tolist() == [1, 1]
    assert seen[:, treasurehunt.WALL].sum((1, 2)).tolist() == [16, 16]


@pytest.mark.parametrize(
    ("make", "probability", "kinds"),
    [(TreasureHunt, 0.005, (2, 3, 4)), (Iowa, 0.01, (2, 3, 4, 5))],
)
def test_things_appear_as_often_as_they_should_and_evenly(make, probability, kinds):
    world = make(3_000)
    world.reset(11)  # the first entities' turn, on an empty world
    free = grid.walled(*world.grid.shape[1:]).sum() - 2
    things = np.isin(world.grid, kinds)
    assert stats.binomtest(int(things.sum()), int(3_000 * free), probability).pvalue > 0.001
    assert stats.chisquare([(world.grid == kind).sum() for kind in kinds]).pvalue > 0.001
    assert stats.chisquare(things[:, 1:-1, 1:-1].sum(0).ravel()).pvalue > 0.001  # anywhere (2 of 361 cells hold agents)
    before = world.grid.copy()
    world.entities_turn()
    np.testing.assert_array_equal(world.grid[before != 0], before[before != 0])  # what lies there stays
    empty = int((before == 0).sum())
    assert stats.binomtest(int((world.grid != before).sum()), empty, probability).pvalue > 0.001


def test_entities_come_first():
    world = TreasureHunt(1, num_agents=1, spawn_probability=1)
    world.place(cells((5, 5)))
    seen = world.step(actions(RIGHT))[0].reshape(6, 5, 5)
    assert not seen[treasurehunt.EMPTY].any()  # also the cell that the agent has just left
    assert world.turn == 1
