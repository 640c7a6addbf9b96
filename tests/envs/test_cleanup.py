"""Cleanup: river, orchard, beams and windows, in positions made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.envs.world_scenes import CLEAN, DOWN, LEFT, RIGHT, UP, ZAP, actions, cells, town, where
from trainer.envs.worlds import (
    Cleanup,
    cleanup,
)

# Cleanup


def test_the_plan():
    ground = cleanup.plan(21, 31)
    assert (ground == cleanup.RIVER).sum() == 6 * 29 + 7 * 2
    assert where(ground[7:14] == cleanup.RIVER) == {(i, j) for i in range(7) for j in (10, 11)}
    assert (ground == cleanup.ORCHARD).sum() == 6 * 29
    assert (ground == cleanup.SAND).sum() == 7 * 27
    assert (ground == cleanup.WALL).sum() == 2 * 31 + 2 * 19


def test_the_start_of_cleanup():
    world = Cleanup(2, pollution_probability=0, apple_probability=0)
    world.reset(0)
    assert (world.objects == cleanup.APPLE).sum((1, 2)).tolist() == [20, 20]
    assert (world.objects == cleanup.ORCHARD).sum((1, 2)).tolist() == [154, 154]
    row, column = np.moveaxis(world.cells, -1, 0)
    assert (world.objects[np.arange(2)[:, None], row, column] == cleanup.SAND).all()
    assert (world.facing == DOWN).all()


def test_an_apple_is_eaten_and_grows_again():
    world = town((15, 5), (16, 5))
    world.objects[0, 15, 6] = world.objects[0, 16, 5] = cleanup.APPLE
    _, reward = world.step(actions(RIGHT, UP))  # the second goes where the first was; the apple below it stays
    assert reward.tolist() == [[1, 0]]
    assert world.objects[0, 15, 6] == cleanup.ORCHARD
    assert world.objects[0, 16, 5] == cleanup.APPLE
    _, reward = world.step(actions(UP, DOWN))
    assert reward.tolist() == [[0, 1]]
    assert not (world.objects == cleanup.APPLE).any()
    world = town((15, 5), apple_probability=1)
    world.objects[0, 15, 6] = cleanup.APPLE
    assert world.step(actions(RIGHT))[1].tolist() == [[1]]
    assert world.objects[0, 15, 6] == cleanup.APPLE  # again, below the agent
    assert world.step(actions(ZAP))[1].tolist() == [[0]]  # who has to enter the cell for it


@pytest.mark.parametrize(("polluted", "apples"), [(94, 174), (95, 0)])  # of 188
def test_apples_stop_growing_when_more_than_half_of_the_river_is_polluted(polluted, apples):
    world = town((10, 5), apple_probability=1)
    river, orchard = (np.argwhere(cleanup.plan(21, 31) == kind).T for kind in (cleanup.RIVER, cleanup.ORCHARD))
    world.objects[0][tuple(river[:, :polluted])] = cleanup.POLLUTED
    world.objects[0][tuple(orchard)] = cleanup.ORCHARD
    assert world.polluted_share.tolist() == [polluted / 188]
    world.entities_turn()
    assert (world.objects == cleanup.APPLE).sum() == apples


def test_the_river_comes_before_the_orchard():
    world = town((10, 5), apple_probability=1, pollution_probability=1)
    world.objects[0][cleanup.plan(21, 31) == cleanup.ORCHARD] = cleanup.ORCHARD
    world.entities_turn()  # clean before it, dirty when it is the apples' turn
    assert world.polluted_share.tolist() == [1]
    assert not (world.objects == cleanup.APPLE).any()


def test_pollution_and_apples_come_as_often_as_they_should():
    world = Cleanup(2_000, initial_apples=0)
    world.reset(8)
    polluted, apples = (world.objects == cleanup.POLLUTED).sum(), (world.objects == cleanup.APPLE).sum()
    assert stats.binomtest(int(polluted), 2_000 * 188, 0.009).pvalue > 0.001
    assert stats.binomtest(int(apples), 2_000 * 174, 0.002).pvalue > 0.001


# The agent stands at (10, 20) and looks down: three cells ahead, three on each side from its own row on.
AHEAD = {(11, 20), (12, 20), (13, 20)}
ITS_RIGHT = {(10, 19), (11, 19), (12, 19)}
ITS_LEFT = {(10, 21), (11, 21), (12, 21)}


@pytest.mark.parametrize(
    ("wall", "reached"),
    [
        (None, AHEAD | ITS_RIGHT | ITS_LEFT),
        ((12, 20), {(11, 20)} | ITS_RIGHT | ITS_LEFT),
        ((10, 19), AHEAD | ITS_LEFT),
    ],
)
@pytest.mark.parametrize("beam", [CLEAN, ZAP])
def test_beams_reach_so_far_and_stop_at_walls(beam, wall, reached):
    world = town((10, 20))
    world.objects[0, 6:15, 15:26] = cleanup.POLLUTED
    if wall is not None:
        world.objects[0][wall] = cleanup.WALL
    world.step(actions(beam))
    assert where(world.beams[0]) == reached
    assert set(world.beams[world.beams > 0].tolist()) == {cleanup.CLEAN if beam == CLEAN else cleanup.ZAP}
    assert where(world.objects[0] == cleanup.RIVER) & {(i, j) for i in range(7, 15) for j in range(15, 26)} == (
        reached if beam == CLEAN else set()
    )


def test_beams_go_where_the_agent_looks():
    for move, ahead in ((UP, (-1, 0)), (LEFT, (0, -1)), (RIGHT, (0, 1)), (DOWN, (1, 0))):
        world = town((10, 20))
        world.step(actions(move))
        world.place(cells((10, 20)))
        world.step(actions(ZAP))
        along = np.array(ahead)
        side = along[::-1]
        expected = [i * along for i in (1, 2, 3)] + [i * along + s * side for i in (0, 1, 2) for s in (-1, 1)]
        assert where(world.beams[0]) == {(10 + int(y), 20 + int(x)) for y, x in expected}


def test_a_blocked_move_turns_the_agent():
    world = town((10, 1))
    world.step(actions(LEFT))
    assert (world.cells.tolist(), world.facing.tolist()) == ([[[10, 1]]], [[LEFT]])
    world.step(actions(CLEAN))
    assert where(world.beams[0]) == {(9, 1), (11, 1)}  # a wall ahead; the sides begin beside the agent


def test_a_beam_lies_for_one_turn_and_each_pays_once():
    # Agent 1 shoots down at agent 0 and agent 2, who cannot get away: each is blocked by the one above it.
    world = town((11, 20), (10, 20), (12, 20))
    observation, reward = world.step(actions(UP, ZAP, UP))
    assert reward.tolist() == [[0, 0, -1]]  # agent 0 had acted before
    zap = observation[0, :, : 9 * 121].reshape(3, 9, 11, 11)[:, cleanup.ZAP]
    assert zap.sum((1, 2)).tolist() == [9, 9, 9]  # everyone sees it
    assert zap[:, 5, 5].tolist() == [1, 0, 1]  # and whether it stands in it
    observation, reward = world.step(actions(UP, UP, UP))
    assert reward.tolist() == [[-1, 0, 0]]  # the beam ended when agent 1 acted, before agent 2
    assert not world.beams.any()
    assert not observation[0, :, : 9 * 121].reshape(3, 9, 121)[:, cleanup.ZAP].any()


def test_who_sees_a_zap_can_leave_it():
    world = town((12, 20), (10, 20))
    world.step(actions(DOWN, ZAP))
    assert world.beams[0, 13, 20] == cleanup.ZAP  # where agent 0 stands now
    assert world.step(actions(DOWN, UP))[1].tolist() == [[0, 0]]


def test_walking_into_a_zap_costs():
    world = town((10, 20), (14, 20))
    assert world.step(actions(ZAP, UP))[1].tolist() == [[0, -1]]
    world = town((10, 20), (14, 20))
    assert world.step(actions(CLEAN, UP))[1].tolist() == [[0, 0]]


def test_the_newest_beam_lies_on_top_and_stays_when_the_older_ends():
    world = town((10, 20), (10, 21))
    world.step(actions(ZAP, CLEAN))
    beams = world.beams[0]
    cleaned = {(11, 21), (12, 21), (13, 21), (10, 20), (11, 20), (12, 20), (10, 22), (11, 22), (12, 22)}
    assert where(beams == cleanup.CLEAN) == cleaned
    assert where(beams == cleanup.ZAP) == (AHEAD | ITS_RIGHT | ITS_LEFT) - cleaned
    world.act(0, np.array([UP]))
    assert where(world.beams[0]) == cleaned


def test_agents_block_in_cleanup():
    world = town((15, 5), (15, 7))
    world.objects[0, 15, 6] = cleanup.APPLE
    _, reward = world.step(actions(RIGHT, LEFT))
    assert reward.tolist() == [[1, 0]]
    assert world.cells.tolist() == [[[15, 6], [15, 7]]]


def test_a_window_of_cleanup():
    world = town((1, 1), (3, 4))
    world.objects[0, 2, 2] = cleanup.POLLUTED
    world.step(actions(UP, CLEAN))  # (1, 1) looks up; the beam of (3, 4) lies in rows 3 to 6, columns 3 to 5
    seen = world.observe()[0, 0]
    window = seen[: 9 * 121].reshape(9, 11, 11)  # the world's (0, 0) is at (4, 4)
    assert window[cleanup.WALL].sum() == 121 - 36
    assert where(window[cleanup.POLLUTED]) == {(6, 6)}
    assert window[cleanup.RIVER].sum() == 35
    assert where(window[cleanup.AGENT]) == {(5, 5), (7, 8)}
    assert where(window[cleanup.CLEAN]) == {
        (i + 4, j + 4) for i, j in {(4, 4), (5, 4), (6, 4)} | {(3, 3), (4, 3)} | {(5, 3), (3, 5), (4, 5), (5, 5)}
    }
    assert not window[cleanup.ZAP].any()


def test_the_position_code():
    world = town((10, 10))
    code = world.observe()[0, 0, -12:]  # half of the way down, a third of it to the right
    np.testing.assert_allclose(code[:3], [1, 0, 0], atol=1e-6)  # sin of pi/2, pi, 2 pi
    np.testing.assert_allclose(code[3:6], [0, -1, 1], atol=1e-6)
    third = np.pi / 3
    np.testing.assert_allclose(code[6:9], [np.sin(third), np.sin(2 * third), np.sin(4 * third)], atol=1e-6)
    np.testing.assert_allclose(code[9:], [0.5, -0.5, -0.5], atol=1e-6)
    every = town(*[(i, j) for i in range(7, 14) for j in (*range(1, 10), *range(12, 30))])
    assert len(np.unique(every.observe()[0, :, -12:], axis=0)) == 7 * 27
