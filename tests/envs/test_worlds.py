"""The rules of the worlds, each in a position made by hand, and what all worlds have in common."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from trainer import envs
from trainer.envs.worlds import (
    WORLDS,
    Cleanup,
    Iowa,
    Tag,
    TreasureHunt,
    cleanup,
    draws,
    grid,
    iowa,
    pictures,
    tag,
    treasurehunt,
)

UP, DOWN, LEFT, RIGHT, CLEAN, ZAP = range(6)
ALL = pytest.mark.parametrize("name", WORLDS)


def actions(*of_agents):
    """The actions of one world's agents, int64 [1, num_agents]."""
    return np.array([of_agents])


def cells(*of_agents):
    """The cells of one world's agents, int64 [1, num_agents, 2]."""
    return np.array([of_agents])


def hunt(*of_agents, **kwargs):
    """A treasurehunt without any treasure, its agents on these cells."""
    world = TreasureHunt(1, num_agents=len(of_agents), spawn_probability=0, **kwargs)
    world.place(cells(*of_agents))
    return world


def town(*of_agents, **kwargs):
    """A cleanup without pollution and apples, its agents on these cells, all looking down."""
    quiet = {"pollution_probability": 0, "apple_probability": 0, "initial_apples": 0}
    world = Cleanup(1, num_agents=len(of_agents), **{**quiet, **kwargs})
    world.place(cells(*of_agents))
    return world


def where(mask):
    """The cells of a mask [height, width] as a set of (row, column)."""
    return set(map(tuple, np.argwhere(mask).tolist()))


# What all worlds have in common


@pytest.mark.parametrize(
    ("name", "agents", "num_actions", "entries", "dtype"),
    [
        ("treasurehunt", 2, 4, 150, "bool"),  # 6 kinds x 25
        ("iowa", 2, 4, 175, "bool"),  # 7 kinds x 25
        ("tag", 5, 4, 325, "bool"),  # 4 kinds x 81 + 1
        ("cleanup", 10, 6, 1101, "float32"),  # 9 kinds x 121 + 12
    ],
)
def test_shapes(name, agents, num_actions, entries, dtype):
    world = WORLDS[name](3)
    assert world.agents == tuple(f"agent_{i}" for i in range(agents))
    assert (world.num_worlds, world.num_actions, world.turn) == (3, num_actions, 0)
    assert (world.observation_shape, world.observation_dtype) == ((entries,), dtype)
    first = world.reset(0)
    observation, reward = world.step(np.zeros((3, agents), np.int64))
    for array in (first, observation):
        assert (array.shape, array.dtype) == ((3, agents, entries), np.dtype(dtype))
    assert (reward.shape, reward.dtype, world.turn) == ((3, agents), np.float32, 1)


@ALL
def test_settings_of_any_size(name):
    world = WORLDS[name](2, num_agents=3, height=9, width=13, radius=1, max_turns=7)
    assert world.reset(1).shape[:2] == (2, 3)
    assert world.max_turns == 7
    assert world.render(1).shape == (9 * 16, 13 * 16, 3)
    assert world.render(1).dtype == np.uint8
    assert ((world.cells >= 1) & (world.cells <= np.array([7, 11]))).all()


def episode(world, seed, acts):
    """All observations, rewards and cells of an episode, each [turns, num_worlds, ...]."""
    rows = [(world.reset(seed), np.zeros(acts.shape[1:], np.float32), world.cells)]
    rows += [(*world.step(row), world.cells) for row in acts]
    return [np.array(column) for column in zip(*rows, strict=True)]


@ALL
def test_a_seed_is_an_episode_whatever_the_vector(name):
    settings = {"spawn_probability": 0.1} if name in ("treasurehunt", "iowa") else {}
    vector = WORLDS[name](3, **settings)
    acts = np.random.default_rng(0).integers(vector.num_actions, size=(vector.max_turns, 3, len(vector.agents)))
    whole = episode(vector, 40, acts)
    for x, again in zip(whole, episode(vector, 40, acts), strict=True):
        np.testing.assert_array_equal(x, again)
    single = WORLDS[name](1, **settings)
    for i in range(3):
        for x, alone in zip(whole, episode(single, 40 + i, acts[:, i : i + 1]), strict=True):
            np.testing.assert_array_equal(x[:, i], alone[:, 0])
    assert (whole[0][:, 0] != whole[0][:, 1]).any()  # and another seed is another one


@ALL
def test_step_is_made_of_its_parts(name):
    whole, parts = WORLDS[name](4), WORLDS[name](4)
    whole.reset(3)
    parts.reset(3)
    generator = np.random.default_rng(0)
    for _ in range(10):
        acts = generator.integers(whole.num_actions, size=(4, len(whole.agents)))
        observation, reward = whole.step(acts)
        for agent in range(len(parts.agents)):
            np.testing.assert_array_equal(parts.observe(agent), parts.observe()[:, agent])
            parts.act(agent, acts[:, agent])
        np.testing.assert_array_equal(parts.reward, reward)
        parts.entities_turn()
        np.testing.assert_array_equal(parts.observe(), observation)


def test_observing_before_each_shows_what_the_agents_before_did():
    world = hunt((5, 5), (5, 8))
    seen = world.observe(1).reshape(6, 5, 5)
    assert where(seen[treasurehunt.AGENT]) == {(2, 2)}  # only itself: the other is 3 cells away
    world.act(0, np.array([RIGHT]))
    seen = world.observe(1).reshape(6, 5, 5)
    assert where(seen[treasurehunt.AGENT]) == {(2, 2), (2, 0)}


@ALL
def test_agents_start_on_different_cells_and_anywhere(name):
    settings = {"initial_apples": 0} if name == "cleanup" else {}
    world = WORLDS[name](4_000, num_agents=2, height=9, width=9, radius=1, **settings)
    world.reset(5)
    row, column = np.moveaxis(world.cells, -1, 0)
    place = row * 9 + column
    assert (place[:, 0] != place[:, 1]).all()
    possible = {int(x) for x in np.flatnonzero(grid.walled(9, 9))}
    if name == "cleanup":  # the middle third: rows 3 to 5, without the river's arm in columns 3 and 4
        possible = {9 * i + j for i in (3, 4, 5) for j in (1, 2, 5, 6, 7)}
    for agent in range(2):
        found, counts = np.unique(place[:, agent], return_counts=True)
        assert set(found.tolist()) == possible
        assert stats.chisquare(counts).pvalue > 0.001


def test_random_numbers_are_uniform_and_streams_unrelated():
    u = draws.uniforms(draws.stream_keys(0, 200)[:, None], draws.numbers(0, 0, 500))
    assert stats.chisquare(np.histogram(u, 100, (0, 1))[0]).pvalue > 0.001
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01  # of a seed and the next one
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01
    later = draws.uniforms(draws.stream_keys(0, 200)[:, None], draws.numbers(1, 0, 500))
    assert abs(np.corrcoef(u.ravel(), later.ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("probability", [0.0, 0.004, 0.3, 1.0])
def test_trials_succeed_as_often_as_they_should(probability):
    world, trial = draws.successes(draws.stream_keys(9, 3_000), 0, 0, 40, probability)
    hits = np.zeros((3_000, 40), np.int64)
    np.add.at(hits, (world, trial), 1)
    assert hits.max(initial=0) <= 1
    if probability in (0, 1):
        assert (hits == probability).all()
        return
    assert stats.binomtest(int(hits.sum()), hits.size, probability).pvalue > 0.001
    assert stats.chisquare(hits.sum(0)).pvalue > 0.001  # every trial alike
    pairs = (hits[:, 1:] * hits[:, :-1]).sum()  # neighbours independent
    assert stats.binomtest(int(pairs), 3_000 * 39, probability**2).pvalue > 0.001


@ALL
def test_what_cannot_be_is_refused(name):
    make = WORLDS[name]
    with pytest.raises(envs.EnvError, match="start at 1"):
        make(1, num_agents=0)
    with pytest.raises(envs.EnvError, match="no cell within its walls"):
        make(1, height=2)
    with pytest.raises(envs.EnvError, match="400 agents do not fit"):
        make(1, num_agents=400)
    world = make(1)
    for wrong in (-1, world.num_actions):
        with pytest.raises(envs.EnvError, match=f"action {wrong} does not exist"):
            world.step(np.full((1, len(world.agents)), wrong))


def test_shares_are_refused_beyond_one():
    with pytest.raises(envs.EnvError, match="spawn_probability=1.5 must lie between 0 and 1"):
        TreasureHunt(1, spawn_probability=1.5)
    with pytest.raises(envs.EnvError, match="initial_apples=400 do not fit on the 174 orchard cells"):
        Cleanup(1, initial_apples=400)
    with pytest.raises(envs.EnvError, match="four times"):
        Iowa(1, decks=[(1, 0.5, 2.5)])


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


# Pictures and PettingZoo


def test_a_picture():
    world = hunt((5, 5))
    world.grid[0, 5, 6] = treasurehunt.GEM
    picture = world.render()
    assert picture.shape == (21 * 16, 21 * 16, 3)
    assert picture[0, 0].tolist() == treasurehunt.COLOURS[treasurehunt.WALL].tolist()
    assert picture[5 * 16 + 8, 6 * 16 + 8].tolist() == treasurehunt.COLOURS[treasurehunt.GEM].tolist()
    assert picture[5 * 16 + 8, 5 * 16 + 8].tolist() == pictures.agent_colours(1)[0].tolist()
    assert picture[5 * 16, 5 * 16].tolist() == [0, 0, 0]  # its frame


@pytest.fixture
def parallel():
    pytest.importorskip("pettingzoo")
    from trainer.envs.worlds import parallel

    return parallel


@ALL
def test_pettingzoo_tests_pass(parallel, name):
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel.parallel_env(name), num_cycles=250)
        parallel_seed_test(lambda: parallel.parallel_env(name))


@ALL
def test_pettingzoo_plays_the_worlds_episodes(parallel, name):
    env, world = parallel.parallel_env(name, "rgb_array"), WORLDS[name](1)
    observation, infos = env.reset(seed=7)
    first = world.reset(7)
    generator = np.random.default_rng(0)
    for turn in range(world.max_turns):
        for i, agent in enumerate(env.possible_agents):
            np.testing.assert_array_equal(observation[agent], first[0, i])
            assert env.observation_space(agent).contains(observation[agent])
        acts = generator.integers(world.num_actions, size=(1, len(world.agents)))
        first, paid = world.step(acts)
        by_agent = dict(zip(env.agents, acts[0], strict=True))
        observation, reward, terminated, truncated, infos = env.step(by_agent)
        assert list(reward.values()) == paid[0].tolist()
        assert not any(terminated.values())
        assert set(truncated.values()) == {turn == world.max_turns - 1}
    assert env.agents == []
    assert env.render().shape == world.render().shape
    with pytest.raises(envs.EnvError, match="reset comes before the next step"):
        env.step(by_agent)


def test_pettingzoo_episodes_without_a_seed(parallel):
    env, other = parallel.parallel_env("tag"), parallel.parallel_env("tag")
    shown = []
    for each in (env, other):
        each.reset(seed=1)
        shown.append([each.reset()[0]["agent_0"] for _ in range(5)])
    np.testing.assert_array_equal(shown[0], shown[1])  # they follow from the last seed
    assert len(np.unique(shown[0], axis=0)) == 5


def test_pettingzoo_refuses(parallel):
    with pytest.raises(envs.EnvError, match="did you mean treasurehunt"):
        parallel.parallel_env("treasurehunts")
    with pytest.raises(envs.EnvError, match="render_mode=human"):
        parallel.parallel_env("tag", "human")
    env = parallel.parallel_env("tag", num_agents=2)
    env.reset(seed=0)
    with pytest.raises(envs.EnvError, match="agent_1 was given no action"):
        env.step({"agent_0": 0})
