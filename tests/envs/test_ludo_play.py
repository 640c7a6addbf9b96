"""Ludo: all moves of random play against a plain referee, statistics, and the heuristic player."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.envs.ludo_scenes import SAFE, scene
from trainer.envs.games import Ludo
from trainer.envs.games.players import ludo_heuristic, random_player

# Random play, move by move against a plain referee


def referee(tokens, dice, player, action, num_players):
    """What a move leads to, in plain Python: tokens, dice left, whether it gives a throw, rewards."""
    tokens, dice = [list(own) for own in tokens], list(dice)
    paid = [0.0] * num_players
    safe = {*SAFE, *range(51, 57)} | ({25} if num_players == 2 else set())
    die, token = dice.pop(action // 4), action % 4
    old = tokens[player][token]
    assert die == 6 if old == -1 else old + die <= 56
    new = tokens[player][token] = 0 if old == -1 else old + die
    paid[player] += 2 if old == -1 else 0.01 * die
    paid[player] += (new in safe and old not in safe) + 15 * (new == 56)
    extra = new == 56
    if new <= 50 and new not in SAFE:
        square = (new + player * 52 // num_players) % 52
        for other in range(num_players):
            for k, place in enumerate(tokens[other]):
                met = 0 <= place <= 50 and (place + other * 52 // num_players) % 52 == square
                if other != player and met:
                    tokens[other][k], extra = -1, True
                    paid[other] -= 10
                    paid[player] += 10
    won = all(place == 56 for place in tokens[player])
    if won:
        for other in range(num_players):
            paid[other] += 200 if other == player else -50
    return tokens, dice, extra and not won, won, paid


def playable(own, dice):
    """The dice that move any token."""
    return [die for die in dice if any(die == 6 if place == -1 else place + die <= 56 for place in own)]


def follow(now, left, extra):
    """Whether dice are those left, with a throw behind them if there was one; they may be turned by threes."""
    for turned in range(0, 21, 3):
        dice = now[-turned:] + now[:-turned] if 0 < turned < len(now) else now
        added = tuple(dice[len(left) :])
        if dice[: len(left)] == left and (added == () or (extra and added in THROWS)):
            return True
    return False


THROWS = {(f,) for f in range(1, 6)} | {(6, f) for f in range(1, 6)} | {(6, 6, f) for f in range(1, 6)}


@pytest.mark.parametrize("num_players", [2, 4])
def test_random_play_is_what_a_plain_referee_says(num_players):
    n, generator = 40, np.random.default_rng(0)
    game = Ludo(n, num_players=num_players, reward="dense")
    game.reset(5)
    captures = ends = queues = 0
    for _ in range(700):
        before, dice, player = game.tokens, [game.dice(i) for i in range(n)], game.to_move.copy()
        action = random_player(game, generator)
        game.step(action)
        after = game.tokens
        for i in range(n):
            tokens, left, extra, won, paid = referee(before[i].tolist(), dice[i], player[i], action[i], num_players)
            assert after[i].tolist() == tokens
            np.testing.assert_allclose(game.rewards[i], paid, rtol=1e-5)
            captures += paid[player[i]] >= 10 and extra
            assert bool(game.over[i]) == won and game.winner[i] == (player[i] if won else -1)
            now, seat = game.dice(i), game.to_move[i]
            if won:
                ends += 1
                continue
            on = follow(now, left, extra)
            if seat == player[i] and on and playable(tokens[seat], now):
                queues += len(now) > 3
            else:
                assert extra or not playable(tokens[player[i]], left)
                assert tuple(now) in THROWS
            assert playable(tokens[seat], now[:3])
            expected = [bool(playable([tokens[seat][k]], now[s : s + 1])) for s in range(3) for k in range(4)]
            assert game.action_mask[i].tolist() == expected
        game.reset_where(game.over.copy())
    assert captures > 1_000 and ends > 50 and queues > 3


@pytest.mark.parametrize("num_players", [2, 4])
def test_invariants_of_random_play(num_players):
    n, generator = 1_000, np.random.default_rng(1)
    game = Ludo(n, num_players=num_players)
    game.reset(2)
    total, decisions = np.zeros((n, num_players)), 0
    while not game.over.all():
        assert game.action_mask.any(1).all()
        assert ((game.tokens >= -1) & (game.tokens <= 56)).all()
        decisions += int((~game.over).sum())
        game.step(random_player(game, generator))
        total += game.rewards
    assert decisions == game.length.sum()
    # 224 squares and 4 sixes are the least, by at most six squares a move; nobody needs a thousand.
    assert 41 <= game.length.min() and game.length.max() < 1_000
    assert (total.sum(1) == 2 - num_players).all()
    assert (total[np.arange(n), game.winner] == 1).all()
    assert ((game.tokens == 56).all(2).sum(1) == 1).all()
    wins = np.bincount(game.winner, minlength=num_players)
    assert stats.chisquare(wins).pvalue > 0.001  # seats are alike


def win_rate(player, opponent, num_games, seed=3):
    """Of a player whose seat alternates, and the mean length of a game in decisions."""
    game, generator = Ludo(num_games), np.random.default_rng(seed)
    game.reset(seed)
    seat = np.arange(num_games) % 2
    action = np.zeros(num_games, np.int64)
    while not game.over.all():
        for chosen, turn in ((player, game.to_move == seat), (opponent, game.to_move != seat)):
            rows = np.flatnonzero(turn & ~game.over)
            if len(rows):
                action[rows] = chosen(game, generator, rows)
        game.step(action)
    return (game.winner == seat).mean(), game.length.mean()


def test_statistics_are_those_of_the_public_program():
    # Of 12,000 games each by it: 174.2 moves a game, 22.4 of them passes, and the heuristic player wins 91.4 %.
    rate, length = win_rate(random_player, random_player, 4_000)
    assert abs(rate - 0.5) < 0.025
    assert abs(length - 151.7) < 1.5
    rate, length = win_rate(ludo_heuristic, random_player, 4_000)
    assert abs(rate - 0.914) < 0.015


# The heuristic player


@pytest.mark.parametrize(
    ("own", "dice", "action"),
    [
        ([-1, 30, 54, 3], [2], (0, 2)),  # the goal (3) before a capture (2)
        ([-1, 30, 50, 3], [2], (0, 1)),  # a capture
        ([-1, 28, 1, 12], [6], (0, 0)),  # out of base
        ([19, 6, 3, 1], [2], (0, 0)),  # onto a safe square, and the one that is further
        ([8, 1, 8, 8], [2], (0, 1)),  # not off a safe square
        ([27, 40, 41, 42], [3], (0, 0)),  # away from the one behind
    ],
)
def test_the_heuristic_prefers(own, dice, action):
    game = scene([own, [6, 0, -1, 56]], dice)  # their 6 is own 32, their 0 is own 26
    assert divmod(int(ludo_heuristic(game, None)[0]), 4) == action
