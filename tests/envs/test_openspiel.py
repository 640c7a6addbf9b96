"""OpenSpiel's games: observations, chance and perfect play are those of OpenSpiel itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainer import envs
from trainer.envs.games import GAMES, tictactoe
from trainer.envs.games.openspiel import OpenSpielGames, mcts_player
from trainer.envs.games.players import random_player
from trainer.envs.selfplay import Opponents, SelfPlay, scripted

pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")

ARRAYS = ("to_move", "action_mask", "rewards", "over", "winner", "length")


def test_openspiel_is_shown_as_it_shows_itself() -> None:
    game = OpenSpielGames(5, "leduc_poker")
    game.reset(0)
    assert game.spec.leaves[0].shape == (30 + 2,) and game.num_actions == 3
    rng = np.random.default_rng(0)
    for _ in range(3):
        for seat in (0, 1):
            seen = game.observe(np.array([3, 1]), np.full(2, seat))["observation"]
            expected = [game.states[i].information_state_tensor(seat) + [1 - seat, seat] for i in (3, 1)]
            assert seen.tolist() == np.float32(expected).tolist()
        game.step(random_player(game, rng))
    assert OpenSpielGames(1, "leduc_poker", observation="observation").spec.leaves[0].shape == (16 + 2,)
    assert OpenSpielGames(1, "hex", board_size=5).num_actions == 25
    assert OpenSpielGames(1, "hex(board_size=5)").num_actions == 25
    assert game.render().shape == (480, 480, 3) and len(np.unique(game.render())) > 2
    assert [OpenSpielGames(1, "leduc_poker").action_text(0, action) for action in (1, 2)] == ["Call", "Raise"]
    assert not hasattr(game, "text")  # a human would see the other's card
    assert OpenSpielGames(1, "tic_tac_toe").text(0) == "...\n...\n..."


def test_chance_is_drawn_as_often_as_the_game_says() -> None:
    """A Kuhn deal is each of 6 with the same probability."""
    game = OpenSpielGames(6_000, "kuhn_poker")
    game.reset(5)
    counts = np.unique([str(state).split()[:2] for state in game.states], axis=0, return_counts=True)[1]
    assert len(counts) == 6 and (np.abs(counts - 1_000) < 130).all()  # 4.5 standard deviations


@pytest.mark.parametrize(("name", "theirs"), [("tictactoe", "tic_tac_toe"), ("connect_four", "connect_four")])
def test_our_games_are_openspiels(name: str, theirs: str) -> None:
    ours, other = GAMES[name](200), OpenSpielGames(200, theirs)
    ours.reset(0)
    other.reset(0)
    rng = np.random.default_rng(0)
    while not ours.over.all():
        action = random_player(ours, rng)
        for game in (ours, other):
            game.step(action)
        for array in ARRAYS:
            np.testing.assert_array_equal(getattr(ours, array), getattr(other, array), err_msg=array)


def test_perfect_play_of_tictactoe_is_openspiels() -> None:
    """Over all positions: the actions that `best_actions` allows are those to positions of the best value."""
    from open_spiel.python.algorithms.minimax import alpha_beta_search

    rules, values = pyspiel.load_game("tic_tac_toe"), {}
    best, powers, seen = tictactoe.best_actions(), 3 ** np.arange(9), set()

    def value(state: Any) -> float:
        """For the first player."""
        if str(state) not in values:
            searched = alpha_beta_search(rules, state, maximum_depth=9, maximizing_player_id=0)
            values[str(state)] = state.returns()[0] if state.is_terminal() else searched[0]
        return values[str(state)]

    def visit(state: Any) -> None:
        if state.is_terminal() or str(state) in seen:
            return
        seen.add(str(state))
        seat = state.current_player()
        children = {action: state.child(action) for action in state.legal_actions()}
        worth = {action: value(child) * (1 - 2 * seat) for action, child in children.items()}
        board = np.array(state.observation_tensor()).reshape(3, 9).argmax(0)  # 0 empty, 1 o, 2 x
        own = np.where(board == 0, 0, np.where(board == (2 if seat == 0 else 1), 1, 2))
        expected = {action for action, value in worth.items() if value == max(worth.values())}
        assert set(np.flatnonzero(best[int(own @ powers)])) == expected
        for child in children.values():
            visit(child)

    visit(rules.new_initial_state())
    assert len(seen) == 4_520  # positions in which somebody is to move


def test_tree_search_is_the_scripted_player_where_nothing_is_hidden(config: Callable[..., Any]) -> None:
    assert scripted(config("connect_four", backend="openspiel")) is mcts_player
    assert scripted(config("hex", backend="openspiel", kwargs={"board_size": 5})) is mcts_player
    with pytest.raises(envs.EnvError, match="no scripted player of a game with hidden cards"):
        scripted(config("leduc_poker", backend="openspiel"))
    with pytest.raises(envs.EnvError, match="there is no scripted player of this game; set opponents.scripted=0"):
        scripted(config("classic/tictactoe_v3", backend="pettingzoo"))
    world = SelfPlay(OpenSpielGames(20, "tic_tac_toe"), Opponents([mcts_player], np.ones(1), 3))
    (seen,) = world.reset(0)
    rng, returns = np.random.default_rng(1), []
    while len(returns) < 100:
        mask = seen["action_mask"]
        ((seen, reward, over, _),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        returns += reward[over].tolist()
    assert np.mean(returns) < -0.7  # random play against the perfect player has about -0.85


def test_without_openspiel_one_sentence_says_what_to_do(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(envs.EnvError, match="env.backend=openspiel needs OpenSpiel: pip install open-spiel"):
        envs.make_world(config("leduc_poker", backend="openspiel"), 1)


@pytest.mark.parametrize(
    "game",
    [
        {"env_id": "kuhn_poker", "backend": "openspiel"}, {"env_id": "classic/tictactoe_v3", "backend": "pettingzoo"},
        {"env_id": "tictactoe", "backend": "game"},
    ],
)  # fmt: skip
def test_what_a_game_does_not_take_is_refused(game: dict[str, Any], config: Callable[..., Any]) -> None:
    for changes, sentence in (
        ({"import_modules": ["nowhere"]}, "names 'nowhere', which cannot be imported .*; install it or correct"),
        ({"clip_rewards": True}, "a game is played as it is; leave out env.clip_rewards=True"),
        ({"max_episode_steps": 9}, "does not heed env.max_episode_steps=9; leave it out"),
        ({"preprocessing": "atari"}, "does not heed env.preprocessing=atari; leave it out"),
    ):
        with pytest.raises(envs.EnvError, match=sentence):
            envs.make_world(config(**game, **changes), 1)
