"""What all worlds have in common, their pictures, and their form as PettingZoo environments."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from tests.envs.world_scenes import RIGHT, hunt, where
from trainer import envs
from trainer.envs.worlds import (
    WORLDS,
    Cleanup,
    Iowa,
    TreasureHunt,
    draws,
    grid,
    pictures,
    treasurehunt,
)

ALL = pytest.mark.parametrize("name", WORLDS)


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
