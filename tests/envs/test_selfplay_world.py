"""Turn-based games as transitions of one agent: nothing paid is lost, seats go round, ends are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainer.envs.games import GAMES
from trainer.envs.games.players import PLAYERS, random_player
from trainer.envs.selfplay import Opponents, SelfPlay, scripted


def world(name: str, num_games: int, *players: Any, **kwargs: Any) -> SelfPlay:
    made = list(players) or [random_player]
    return SelfPlay(GAMES[name](num_games, **kwargs), Opponents(made, np.ones(len(made)), 3))


def legal(observation: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    mask = observation["action_mask"]
    return np.where(mask, rng.random(mask.shape), -1.0).argmax(1)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("tictactoe", {}), ("connect_four", {}), ("ludo", {"num_players": 2, "reward": "dense"}),
        ("ludo", {"num_players": 4, "reward": "sparse"}), ("ludo", {"num_players": 2, "reward": "progress"}),
    ],
)  # fmt: skip
def test_every_reward_of_every_game_reaches_the_agent(name: str, kwargs: dict[str, Any]) -> None:
    """What the agent is paid over an episode is what the game paid its seat, whoever moved."""
    made = world(name, 6, **kwargs)
    paid = np.zeros((6, made.game.num_players))
    step = made.game.step

    def watched(action: np.ndarray, where: np.ndarray) -> None:
        step(action, where=where)
        paid[where] += made.game.rewards[where]

    made.game.step = watched
    rng = np.random.default_rng(0)
    (seen,) = made.reset(11)
    total, episodes, outcomes = np.zeros(6), 0, set()
    while episodes < 40:
        before = made.present[0].copy()
        paid[~before] = 0  # these begin anew
        total[~before] = 0
        ((seen, reward, terminated, truncated),) = made.step([legal(seen, rng)])
        total += reward
        assert not truncated.any() and (terminated == made.game.over).all()
        assert (made.present[0] == ~terminated).all()
        playing = ~terminated
        assert (made.game.to_move[playing] == made.seat[playing]).all()  # it is asked when it is to move
        own = paid[np.arange(6), made.seat]
        started = before | (reward != 0)
        assert np.allclose(total[started], own[started], atol=1e-5)
        for row in np.flatnonzero(terminated):
            winner = made.game.winner[row]
            outcomes.add(int(np.sign(0 if winner < 0 else 1 if winner == made.seat[row] else -1)))
            episodes += 1
    assert {1, -1} <= outcomes  # losses are seen too: the last reward came by an opponent's move


@pytest.mark.parametrize("num_players", [2, 4])
def test_returns_of_progress_are_the_outcome_from_every_seat(num_players: int) -> None:
    """Also of the seats that move later, whom the others' first moves pay before they decide, and of records.

    The others' seats are the agent's own too, and the games go on in another world now and then.
    """

    def made() -> SelfPlay:
        anew = world("ludo", 8, num_players=num_players, reward="progress")
        draw = anew.opponents.draw

        def drawn(game: Any, rows: np.ndarray) -> None:
            draw(game, rows)
            anew.opponents.own[rows] = True

        anew.opponents.draw = drawn
        return anew

    playing, rng = made(), np.random.default_rng(0)
    (seen,) = playing.reset(11)
    total, episode, found = np.zeros(8), np.zeros(8, np.int64), set()
    for step in range(1_200):
        if step % 100 == 0:
            opponents, state = playing.opponents, playing.state()
            playing = made()
            playing.reset(0)
            playing.opponents, (seen,) = opponents, playing.set_state(state, None)
        ((seen, reward, terminated, _),) = playing.step([legal(seen, rng)])
        total += reward
        for row in np.flatnonzero(terminated):
            seat, own = int(playing.seat[row]), episode[row] % num_players
            seat = [seat, *(other for other in range(num_players) if other != seat)][own]
            assert total[row] == pytest.approx(1 if playing.game.winner[row] == seat else -1, abs=1e-4)
            found |= {(seat, bool(own)), round(total[row])}
            total[row], episode[row] = 0, episode[row] + 1
    assert found == {1, -1, *((seat, record) for seat in range(num_players) for record in (False, True))}


def test_seats_go_round() -> None:
    made = world("tictactoe", 4)
    (seen,) = made.reset(0)
    rng, seats = np.random.default_rng(1), [[int(seat)] for seat in made.seat]
    for _ in range(200):
        over = ~made.present[0]
        ((seen, *_),) = made.step([legal(seen, rng)])
        for row in np.flatnonzero(over):
            seats[row].append(int(made.seat[row]))
    for row, own in enumerate(seats):
        assert len(own) > 20
        assert own == [(row + episode) % 2 for episode in range(len(own))]


def test_nobody_beats_the_perfect_player_and_draws_end_without_a_winner() -> None:
    made = world("tictactoe", 50, PLAYERS["tictactoe"]["perfect"])
    (seen,) = made.reset(0)
    rng, returns = np.random.default_rng(2), []
    for _ in range(60):
        ((seen, reward, terminated, _),) = made.step([legal(seen, rng)])
        returns += reward[terminated].tolist()
    assert len(returns) > 300
    assert max(returns) == 0.0 and min(returns) == -1.0


def test_scripted_players_are_the_strong_ones(config: Callable[..., Any]) -> None:
    names = {name: scripted(config(name, backend="game")).__name__ for name in GAMES}
    assert names == {
        "ludo": "ludo_heuristic", "tictactoe": "tictactoe_perfect", "connect_four": "connect_four_heuristic"
    }  # fmt: skip
    made = world("ludo", 64, scripted(config("ludo", backend="game")), num_players=2)
    (seen,) = made.reset(5)
    rng, won = np.random.default_rng(0), []
    for _ in range(300):
        ((seen, _, terminated, _),) = made.step([legal(seen, rng)])
        ended = np.flatnonzero(terminated)
        won += (made.game.winner[ended] == made.seat[ended]).tolist()
    assert len(won) > 150 and np.mean(won) < 0.2  # random moves win 9 % against the heuristic


def test_opponents_are_drawn_by_their_chances_for_every_seat() -> None:
    def first(game: Any, generator: np.random.Generator, rows: np.ndarray) -> np.ndarray:
        return game.action_mask[rows].argmax(1)

    game = GAMES["ludo"](2_000, num_players=4)
    opponents = Opponents([random_player, first], np.array([3.0, 1.0]), 5)
    opponents.draw(game, np.arange(2_000))
    assert np.allclose((opponents.kind == 1).mean(0), 0.25, atol=0.04)  # 4 standard deviations
    rows = np.array([5, 77, 1_500])
    before = opponents.kind.copy()
    opponents.draw(game, rows)
    others = np.setdiff1d(np.arange(2_000), rows)
    assert (opponents.kind[others] == before[others]).all()
