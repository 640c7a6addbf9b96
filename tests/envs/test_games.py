"""What all turn-based games have in common, and as PettingZoo environments."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from trainer import envs
from trainer.envs.games import GAMES
from trainer.envs.games.players import PLAYERS, random_player

SETTINGS = [
    ("ludo", {}),
    ("ludo", {"num_players": 4, "reward": "dense", "encoding": "onehot"}),
    ("ludo", {"encoding": "actions"}),
    ("ludo", {"num_players": 4, "reward": "progress", "sort_tokens": True}),
    ("connect_four", {}),
    ("connect_four", {"encoding": "threats"}),
    ("tictactoe", {}),
]
ALL = pytest.mark.parametrize(
    ("name", "settings"), SETTINGS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(SETTINGS)]
)

ARRAYS = ("to_move", "action_mask", "rewards", "over", "winner", "length")


def everything(game):
    """Copies of all that a game shows."""
    shown = {name: getattr(game, name).copy() for name in ARRAYS}
    return shown | {name: array.copy() for name, array in game.observe().items()}


def assert_equal(one, other, rows=slice(None)):
    for name in one:
        np.testing.assert_array_equal(one[name][rows], other[name][rows], err_msg=name)


@ALL
def test_arrays(name, settings):
    game = GAMES[name](5, **settings)
    game.reset(3)
    n, p, actions = 5, game.num_players, game.num_actions
    leaf = game.spec.leaves[0]
    shapes = {
        "to_move": ((n,), np.int64),
        "action_mask": ((n, actions), np.bool_),
        "rewards": ((n, p), np.float32),
        "over": ((n,), np.bool_),
        "winner": ((n,), np.int64),
        "length": ((n,), np.int64),
        "observation": ((n, *leaf.shape), np.dtype(leaf.dtype)),
    }
    assert game.spec.action.has_mask and game.spec.num_actions == actions and game.num_games == n
    first = {attribute: getattr(game, attribute) for attribute in ARRAYS}
    memory = game.observe()["observation"]
    for _ in range(4):
        for key, (shape, dtype) in shapes.items():
            array = everything(game)[key]
            assert (array.shape, array.dtype) == (shape, dtype), key
        game.step(random_player(game, np.random.default_rng(0)))
    for attribute, array in first.items():
        assert getattr(game, attribute) is array
    assert np.shares_memory(game.observe()["observation"], memory)  # made once


@ALL
def test_a_seed_is_a_game_whatever_the_batch(name, settings):
    batch = GAMES[name](3, **settings)
    batch.reset(40)
    singles = [GAMES[name](1, **settings) for _ in range(3)]
    for i, single in enumerate(singles):
        single.reset(40 + i)
    generator = np.random.default_rng(0)
    for _ in range(400):  # several games, one after the other
        action = random_player(batch, generator)
        batch.step(action)
        shown = everything(batch)
        for i, single in enumerate(singles):
            single.step(action[i : i + 1])
            assert_equal(everything(single), {key: array[i : i + 1] for key, array in shown.items()})
        over = batch.over.copy()
        batch.reset_where(over)
        for i in np.flatnonzero(over):
            singles[i].reset_where(np.array([True]))
    batch.reset(40)
    again = GAMES[name](3, **settings)
    again.reset(40)
    assert_equal(everything(batch), everything(again))


@ALL
def test_some_games_are_advanced_and_the_others_left_alone(name, settings):
    parts, whole = GAMES[name](6, **settings), GAMES[name](6, **settings)
    parts.reset(1)
    whole.reset(1)
    generator, where = np.random.default_rng(0), np.arange(6) % 2 == 0
    for _ in range(300):
        action = random_player(whole, generator)
        before = everything(parts)
        parts.step(action, where)
        assert (parts.rewards[~where] == 0).all()
        del before["rewards"]
        assert_equal(before, everything(parts), ~where)
        shown = everything(parts)
        parts.step(action, ~where)
        whole.step(action)
        assert_equal(shown, everything(whole), where)
        assert_equal(everything(parts), everything(whole), ~where)
        over = whole.over.copy()
        parts.reset_where(over)
        whole.reset_where(over)
        assert (whole.rewards == 0).all() and not whole.over.any()
    parts.step(action, np.zeros(6, bool))  # none
    parts.reset_where(np.zeros(6, bool))
    assert parts.observe(rows=np.zeros(0, np.int64))["observation"].shape == (0, *parts.spec.leaves[0].shape)


@ALL
def test_play_to_the_end(name, settings):
    game, generator = GAMES[name](300, **settings), np.random.default_rng(0)
    game.reset(9)
    lengths = np.zeros(300, np.int64)
    while not game.over.all():
        assert game.action_mask.any(1).all()
        mover, running = game.to_move.copy(), ~game.over
        game.step(random_player(game, generator))
        lengths += running
        ended = running & game.over
        assert (game.rewards[~running] == 0).all()
        won = ended & (game.winner >= 0)
        assert (game.winner[won] == mover[won]).all() and (game.to_move[ended] == mover[ended]).all()
        if "reward" not in settings:
            assert (game.rewards[won, mover[won]] == 1).all() and (game.rewards[won, 1 - mover[won]] == -1).all()
            assert (game.rewards[~won] == 0).all()
    np.testing.assert_array_equal(game.length, lengths)
    assert game.action_mask.all()
    if game.spec.max_episode_steps:
        assert game.length.max() <= game.spec.max_episode_steps
    shown = everything(game)
    game.step(np.zeros(300, np.int64))
    shown["rewards"][:] = 0
    assert_equal(shown, everything(game))
    # Also at the end every seat can be asked what it sees.
    views = [game.observe(seats=np.full(300, seat))["observation"].copy() for seat in range(game.num_players)]
    assert (views[0] != views[1]).reshape(300, -1).any(1).all()


@ALL
def test_rows_and_seats_of_what_is_seen(name, settings):
    game, generator = GAMES[name](20, **settings), np.random.default_rng(0)
    game.reset(4)
    for _ in range(6):
        game.step(random_player(game, generator))
    whole = {key: array.copy() for key, array in game.observe().items()}
    rows = np.array([3, 17, 4])
    assert_equal(game.observe(rows), {key: array[rows] for key, array in whole.items()})
    seats = (game.to_move[rows] + np.array([0, 1, 1])) % game.num_players
    seen = game.observe(rows, seats)
    np.testing.assert_array_equal(seen["observation"][0], whole["observation"][3])
    assert (seen["observation"][1] != whole["observation"][17]).any()
    assert seen["action_mask"][1:].all()


@ALL
def test_illegal_actions_are_refused_before_anything_changes(name, settings):
    game, generator = GAMES[name](4, **settings), np.random.default_rng(0)
    game.reset(2)
    while game.action_mask[2].all():
        game.step(random_player(game, generator))
        game.reset_where(game.over.copy())
    before = everything(game)
    illegal = int(np.flatnonzero(~game.action_mask[2])[0])
    for wrong in (illegal, -1, game.num_actions):
        action = random_player(game, generator)
        action[2] = wrong
        with pytest.raises(envs.EnvError, match=f"{name}: action {wrong} is illegal in game 2; its action_mask allows"):
            game.step(action)
        assert_equal(before, everything(game))
    action[2] = illegal
    game.step(action, np.array([True, True, False, True]))  # nobody asked


@ALL
def test_a_state_goes_on_elsewhere(name, settings):
    game, other = GAMES[name](8, **settings), GAMES[name](8, **settings)
    game.reset(6)
    generator = np.random.default_rng(0)
    for _ in range(50):
        game.step(random_player(game, generator))
        game.reset_where(game.over.copy())
    other.set_state(game.state())
    for _ in range(200):
        action = random_player(game, generator)
        for each in (game, other):
            each.step(action)
            each.reset_where(each.over.copy())
        assert_equal(everything(game), everything(other))


def test_random_players_choose_evenly_among_legal_actions():
    game = GAMES["tictactoe"](9_000)
    game.step(np.full(9_000, 4))
    counts = np.bincount(random_player(game, np.random.default_rng(0)), minlength=9)
    assert counts[4] == 0
    assert (np.abs(np.delete(counts, 4) - 1_125) < 150).all()  # 4.8 standard deviations
    rows = np.array([5, 5, 8])
    assert random_player(game, np.random.default_rng(0), rows).shape == (3,)


@ALL
def test_listed_players_play(name, settings):
    game, generator = GAMES[name](30, **settings), np.random.default_rng(0)
    for player in PLAYERS[name].values():
        game.reset(1)
        while not game.over.all():
            whole = player(game, np.random.default_rng(1))
            assert whole.shape == (30,) and game.action_mask[np.arange(30), whole].all()
            rows = np.flatnonzero(game.to_move == 0)
            assert game.action_mask[rows, player(game, generator, rows)].all()
            game.step(whole)


def test_what_cannot_be_is_refused():
    for make in GAMES.values():
        with pytest.raises(envs.EnvError, match="num_games=0 must be at least 1"):
            make(0)
    for name in ("tictactoe", "connect_four"):
        with pytest.raises(envs.EnvError, match="num_players=3 is none of 2"):
            GAMES[name](1, num_players=3)


# PettingZoo


@pytest.fixture
def aec():
    pytest.importorskip("pettingzoo")
    from trainer.envs.games import aec

    return aec


@ALL
def test_pettingzoo_tests_pass(aec, name, settings):
    from pettingzoo.test import api_test, seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What it says of every game with a mask, and of every empty board.
        for always in (
            "Observation space for each agent probably",
            "Observation is not",
            "Observation numpy array is all",
        ):
            warnings.filterwarnings("ignore", always)
        api_test(aec.aec_env(name, **settings), num_cycles=400)
        seed_test(lambda: aec.aec_env(name, **settings), num_cycles=100)


@ALL
def test_pettingzoo_plays_the_games_and_every_player_gets_all_its_rewards(aec, name, settings):
    env, game = aec.aec_env(name, "rgb_array", **settings), GAMES[name](1, **settings)
    generator = np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        game.reset(seed)
        paid, got, left = np.zeros(game.num_players), dict.fromkeys(env.possible_agents, 0.0), []
        for agent in env.agent_iter():
            seen, reward, terminated, truncated, _ = env.last()
            got[agent] += reward
            assert env.observation_space(agent).contains(seen) and not truncated
            assert terminated == game.over[0]
            if terminated:
                left.append(agent)
                env.step(None)
                continue
            assert agent == f"player_{game.to_move[0]}"
            np.testing.assert_array_equal(seen["observation"], game.observe()["observation"][0])
            np.testing.assert_array_equal(seen["action_mask"], game.action_mask[0])
            action = random_player(game, generator)
            game.step(action)
            env.step(int(action[0]))
            paid += game.rewards[0]
        assert sorted(left) == env.possible_agents
        np.testing.assert_allclose(list(got.values()), paid, atol=1e-4)
        if "reward" not in settings and game.winner[0] >= 0:
            assert got[f"player_{1 - game.winner[0]}"] == -1  # the loser's, who did not move last
    assert env.render().shape == game.render().shape


def test_pettingzoo_games_without_a_seed(aec):
    shown = []
    for _ in range(2):
        env = aec.aec_env("ludo")
        env.reset(seed=1)
        games = []
        for _ in range(8):
            env.reset()
            games.append(env.game.observe()["observation"][0, -6:].tolist())
        shown.append(games)
    assert shown[0] == shown[1]  # they follow from the last seed
    assert len({tuple(game) for game in shown[0]}) > 1


def test_pettingzoo_refuses(aec):
    with pytest.raises(envs.EnvError, match="did you mean tictactoe"):
        aec.aec_env("tictactoes")
    with pytest.raises(envs.EnvError, match="render_mode=human is none of"):
        aec.aec_env("ludo", "human")
    env = aec.aec_env("tictactoe")
    with pytest.raises(envs.EnvError, match="reset comes before the next step"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(envs.EnvError, match="player_0 was given no action"):
        env.step(None)
    env.step(4)
    with pytest.raises(envs.EnvError, match="action 4 is illegal"):
        env.step(4)
