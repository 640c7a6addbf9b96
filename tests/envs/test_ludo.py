"""Ludo: every rule in a position made by hand, all moves of random play against a plain referee, and statistics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trainer import envs
from trainer.envs.games import Ludo, ludo_picture, ludo_track
from trainer.envs.games.ludo_encodings import ACTION_FEATURES, consequences
from trainer.envs.games.players import ludo_heuristic, random_player

SAFE = (0, 8, 13, 21, 26, 34, 39, 47)
BASE4, DONE = [-1] * 4, [56, 56, 56, 55]


def scene(tokens, dice, to_move=0, num_games=1, **kwargs):
    """Games in the same position, each with its own further dice."""
    game = Ludo(num_games, num_players=len(tokens), **kwargs)
    game.reset(11)
    for index in range(num_games):
        game.place(index, tokens, to_move, dice)
    return game


def play(game, slot, token):
    """The same action in every game."""
    game.step(np.full(game.num_games, 4 * slot + token))
    return game


def legal(game, index=0):
    """Legal (slot, token) of a game."""
    return {divmod(int(action), 4) for action in np.flatnonzero(game.action_mask[index])}


# Moves


def test_a_new_game():
    game = Ludo(500, num_players=2)
    assert (game.tokens == -1).all()
    assert not game.over.any() and (game.winner == -1).all() and (game.length == 0).all()
    # Everyone is in base, so whoever is asked has thrown a six.
    assert all(6 in game.dice(i) for i in range(500))
    # Seat 0 throws first: it is the one with 1 / (2 - q), q the chance of a throw with a six that is not void.
    chance = 1 / 6 - 1 / 216
    assert stats.binomtest(int((game.to_move == 0).sum()), 500, 1 / (2 - chance)).pvalue > 0.001


def test_a_token_leaves_base_by_a_six_only_and_comes_to_the_start():
    game = scene([[-1, -1, 3, 56], [5] * 4], [6, 2])
    assert legal(game) == {(0, 0), (0, 1), (0, 2), (1, 2)}
    assert play(game, 0, 1).tokens[0, 0].tolist() == [-1, 0, 3, 56]
    assert (game.dice(0), int(game.to_move[0])) == ([2], 0)
    assert legal(game) == {(0, 1), (0, 2)}


def test_dice_are_played_in_any_order():
    for slot, left in enumerate(([6, 4], [6, 4], [6, 6])):
        game = play(scene([[10, 20, 30, 40], [50] * 4], [6, 6, 4]), slot, 0)
        assert game.dice(0) == left
        assert game.tokens[0, 0].tolist() == [14 if slot == 2 else 16, 20, 30, 40]
        assert game.to_move[0] == 0


def test_nothing_moves_past_the_goal():
    game = scene([[50, 52, 55, 56], [5] * 4], [6, 4, 1])
    assert legal(game) == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}


def test_the_home_column_is_reached_from_own_50():
    game = play(scene([[50, 9, 9, 9], [5] * 4], [1, 1]), 0, 0)
    assert game.tokens[0, 0].tolist() == [51, 9, 9, 9]


def test_the_turn_passes_to_the_next_seat():
    for seat in range(4):
        tokens = [[40, 41, 42, 43]] * 4
        game = play(scene(tokens, [1], to_move=seat, num_games=300), 0, 3)
        # Unless three sixes are thrown.
        passed = game.to_move == (seat + 1) % 4
        assert passed.mean() > 0.97
        assert set(game.to_move[~passed]) <= {(seat + 2) % 4}


def test_the_rest_of_the_dice_is_lost_without_a_legal_move():
    game = play(scene([[56, 56, 50, 56], [5] * 4], [5, 3], num_games=300), 0, 2)
    assert (game.tokens[:, 0] == [56, 56, 55, 56]).all()  # and 3 is too much for the one at 55
    assert (game.to_move == 1).mean() > 0.97
    game = scene([BASE4, [5] * 4], [5], num_games=300)  # nothing to play: passed on when it is made
    assert (game.to_move == 1).mean() > 0.97
    assert (game.length == 0).all()


def test_forced_passes_are_skipped():
    # Seat 0 needs a 1; seat 1 has nothing but base, and is asked only when a throw of its has a six.
    game = play(scene([[56, 56, 55, 55], BASE4], [1], num_games=400), 0, 2)  # which gives an extra throw
    asked = game.to_move == 1
    assert 0 < asked.sum() < 400
    for i in range(400):
        assert (6 if asked[i] else 1) in game.dice(i)


def test_throws_are_as_likely_as_they_should_be():
    game = play(scene([[40] * 4, [5] * 4], [1], num_games=6_000), 0, 0)
    void = game.to_move == 0  # seat 1 can play any die, so that it passes for three sixes only
    assert stats.binomtest(int(void.sum()), 6_000, 1 / 216).pvalue > 0.001
    thrown = [tuple(game.dice(i)) for i in np.flatnonzero(~void)]
    possible = {(f,): 1 / 6 for f in range(1, 6)}
    possible |= {(6, f): 1 / 36 for f in range(1, 6)} | {(6, 6, f): 1 / 216 for f in range(1, 6)}
    assert set(thrown) == set(possible)
    counts = [thrown.count(dice) for dice in possible]
    expected = np.array(list(possible.values())) * 216 / 215 * len(thrown)
    assert stats.chisquare(counts, expected).pvalue > 0.001


# Captures


def opposite(coordinate, seats_further=1, num_players=2):
    """The same square in the coordinates of a player so many seats further on."""
    return (coordinate - seats_further * 52 // num_players) % 52


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("square", range(2, 51))
def test_who_stands_where_a_token_lands_is_sent_to_base_unless_it_is_safe(seat, square):
    tokens = [[0, 0, 0, 0], [0, 0, 0, 0]]
    tokens[seat] = [square - 2, 55, 56, 56]
    tokens[1 - seat] = [opposite(square), 3 if square != 29 else 4, 0, 56]
    game = scene(tokens, [2, 1], to_move=seat)
    if square == 25:  # their loop ends before it: 51 is in their home column
        assert opposite(square) == 51
    play(game, 0, 0)
    safe = square in SAFE or square == 25
    assert game.tokens[0, 1 - seat, 0] == (opposite(square) if safe else -1)
    assert game.tokens[0, 1 - seat, 1:].tolist() == tokens[1 - seat][1:]
    assert game.to_move[0] == seat
    assert (len(game.dice(0)) == 1) == safe  # capturing throws again, added to the dice left
    assert game.dice(0)[0] == 1


def test_all_tokens_on_the_square_are_captured():
    game = play(scene([[8, 56, 56, 0], [36, 36, 36, 37]], [2, 1], reward="dense"), 0, 0)  # own 10 is their 36
    assert game.tokens[0].tolist() == [[10, 56, 56, 0], [-1, -1, -1, 37]]
    # 2 squares, from a safe square; three captures, one extra throw.
    np.testing.assert_allclose(game.rewards, [[30.02, -30]], rtol=1e-6)


def test_nobody_captures_in_a_home_column_or_its_own_tokens():
    game = play(scene([[50, 52, 0, 0], [26, 52, 0, 0]], [2, 1]), 0, 0)
    assert game.tokens[0].tolist() == [[52, 52, 0, 0], [26, 52, 0, 0]]
    game = play(scene([[8, 10, 0, 0], [0, 0, 0, 0]], [2, 1]), 0, 0)
    assert game.tokens[0].tolist() == [[10, 10, 0, 0], [0, 0, 0, 0]]


def test_four_players_capture_each_other_wherever_both_pass():
    # Own 25 is safe for two players; here it is 12 and 38 of the next one and the one before, and beyond the opposite.
    assert [opposite(25, k, 4) for k in (1, 2, 3)] == [12, 51, 38]
    game = play(scene([[23, 0, 0, 0], [12, 0, 0, 0], [51, 0, 0, 0], [38, 38, 0, 0]], [2, 1], reward="dense"), 0, 0)
    assert game.tokens[0].tolist() == [[25, 0, 0, 0], [-1, 0, 0, 0], [51, 0, 0, 0], [-1, -1, 0, 0]]
    np.testing.assert_allclose(game.rewards, [[30.02, -10, 0, -20]], rtol=1e-6)


# Extra throws


def test_a_capture_or_a_token_in_the_goal_gives_a_throw_added_to_the_dice_left():
    capture = play(scene([[8, 20, 0, 0], [36, 0, 0, 0]], [2, 3], num_games=3_000), 0, 0)
    goal = play(scene([[54, 20, 0, 0], [36, 0, 0, 0]], [2, 3], num_games=3_000), 0, 0)
    for game in (capture, goal):
        assert (game.to_move == 0).all()
        dice = [game.dice(i) for i in range(3_000)]
        assert all(d[0] == 3 for d in dice)
        extra = [tuple(d[1:]) for d in dice]
        assert set(extra) <= {(), *((f,) for f in range(1, 6)), *((6, f) for f in range(1, 6))} | {
            (6, 6, f) for f in range(1, 6)
        }
        # Void adds nothing, and the dice left are still played.
        assert stats.binomtest(extra.count(()), 3_000, 1 / 216).pvalue > 0.001
        assert stats.binomtest(sum(len(e) > 1 for e in extra), 3_000, 1 / 6 - 1 / 216).pvalue > 0.001
    passed = play(scene([[54, 20, 0, 0], [36, 0, 0, 0]], [2], num_games=3_000), 0, 0).to_move == 1
    assert stats.binomtest(int(passed.sum()), 3_000, 1 / 216).pvalue > 0.001  # void, and no die left


def test_three_of_more_dice_can_be_chosen_from():
    game = scene([[10, 20, 30, 40], [50] * 4], [1, 2, 3, 4, 5])
    assert legal(game) == {(slot, token) for slot in range(3) for token in range(4)}
    assert play(game, 1, 0).tokens[0, 0].tolist() == [12, 20, 30, 40]
    assert game.dice(0) == [1, 3, 4, 5]


def test_dice_that_cannot_be_played_go_behind_others_that_can():
    game = scene([[-1, 56, 56, 54], [50] * 4], [5, 4, 3, 6, 5])
    assert game.dice(0) == [6, 5, 5, 4, 3]
    assert legal(game) == {(0, 0)}
    assert play(game, 0, 0).dice(0) == [5, 5, 4, 3]
    assert game.to_move[0] == 0
    game = scene([[-1, 56, 56, 54], [50] * 4], [5, 4, 3, 3, 5], num_games=100)  # none can
    assert (game.to_move == 1).mean() > 0.9


def test_the_queue_holds_the_most_that_two_players_can_have_pending():
    game = scene([[10, 20, 30, 40], [50] * 4], [6, 6, 5] * 7)
    assert game.dice(0) == [6, 6, 5] * 7
    with pytest.raises(envs.EnvError, match="cannot be"):
        scene([[10, 20, 30, 40], [50] * 4], [6] * 22)


# The end, and what is paid


@pytest.mark.parametrize(("num_players", "seat"), [(2, 0), (2, 1), (4, 2)])
def test_all_four_in_the_goal_win(num_players, seat):
    for reward in ("sparse", "dense"):
        tokens = [[5, 6, 7, 9]] * num_players
        tokens[seat] = [56, 56, 53, 56]
        game = play(scene(tokens, [3, 5], to_move=seat, reward=reward), 0, 2)
        assert game.over.tolist() == [True] and game.winner.tolist() == [seat] and game.to_move.tolist() == [seat]
        assert game.dice(0) == [] and game.action_mask.all()
        paid = {"sparse": (1, -1), "dense": (200 + 15 + 0.03, -50)}[reward]
        expected = [paid[0] if p == seat else paid[1] for p in range(num_players)]
        np.testing.assert_allclose(game.rewards, [expected], rtol=1e-6)
        before = game.tokens
        play(game, 2, 3)  # nothing happens any more
        assert (game.rewards == 0).all() and game.over.all() and game.length.tolist() == [1]
        np.testing.assert_array_equal(game.tokens, before)


@pytest.mark.parametrize(
    ("before", "die", "paid"),
    [
        (1, 3, 0.03),
        (-1, 6, 2 + 1),  # out of base, onto the start, which is safe
        (6, 2, 0.02 + 1),  # onto a safe square
        (8, 5, 0.05),  # from a safe one to another
        (8, 2, 0.02),  # off a safe one
        (20, 5, 0.05 + 1),  # own 25, where two players cannot meet
        (49, 3, 0.03 + 1),  # into the home column
        (52, 4, 0.04 + 15),  # into the goal
        (50, 6, 0.06 + 1 + 15),
    ],
)
def test_dense_rewards(before, die, paid):
    tokens = [[before, 40, 40, 40], [0, 0, 0, 0]]
    for seat in range(2):
        game = play(scene(tokens[:: 1 - 2 * seat], [die, 1], to_move=seat, reward="dense"), 0, 0)
        np.testing.assert_allclose(game.rewards[0, seat], paid, rtol=1e-6)
        assert game.rewards[0, 1 - seat] == 0
        game = play(scene(tokens[:: 1 - 2 * seat], [die, 1], to_move=seat), 0, 0)
        assert (game.rewards == 0).all()  # sparse


def test_progress_pays_what_changes_a_lead():
    # 57 squares and 8 for leaving base are a token's way, a quarter of a player's.
    whole = 4 * (57 + 8)
    game = play(scene([[-1, 40, 40, 40], [30, 0, 0, 0]], [6, 1], reward="progress"), 0, 0)  # leaves base
    np.testing.assert_allclose(game.rewards, [[9 / whole, -9 / whole]], rtol=1e-5)
    # From own 3 to 4, where the opponent's token is that stands on its own 30: it loses its 31 squares and its 8.
    game = play(scene([[3, 40, 40, 40], [30, 0, 0, 0]], [1], reward="progress"), 0, 0)
    np.testing.assert_allclose(game.rewards, [[40 / whole, -40 / whole]], rtol=1e-5)
    # The last move takes the lead back, so that the whole game pays 1.
    game = play(scene([DONE, [-1] * 4], [1], reward="progress"), 0, 3)
    lead = (whole - 1) / whole
    np.testing.assert_allclose(game.rewards, [[1 - lead, lead - 1]], rtol=1e-5)
    game = play(scene([[3, 40, 40, 40], [30, 0, 0, 0], [0] * 4, [0] * 4], [1], reward="progress"), 0, 0)
    np.testing.assert_allclose(game.rewards, [[1 / whole] + [-1 / 3 / whole] * 3], rtol=1e-4)  # nobody is captured


@pytest.mark.parametrize("num_players", [2, 4])
def test_progress_pays_the_outcome_over_a_game(num_players):
    game, generator = Ludo(300, num_players, reward="progress"), np.random.default_rng(1)
    game.reset(2)
    total = np.zeros((300, num_players))
    while not game.over.all():
        game.step(random_player(game, generator))
        total += game.rewards
    outcome = np.where(np.arange(num_players) == game.winner[:, None], 1, -1)
    np.testing.assert_allclose(total, outcome, atol=1e-4)


def test_sorted_tokens_are_the_same_game():
    """Whatever a sorted game is played by, an unsorted one can be played by, to the same end."""
    plain, ordered = (Ludo(200, sort_tokens=sort) for sort in (False, True))
    generator = np.random.default_rng(4)
    for game in (plain, ordered):
        game.reset(5)
    while not ordered.over.all():
        assert (np.diff(ordered.tokens, axis=2) <= 0).all()
        action = random_player(ordered, generator)
        rank = np.argsort(-plain.tokens[np.arange(200), plain.to_move], axis=1, kind="stable")
        plain.step(action // 4 * 4 + rank[np.arange(200), action % 4])
        ordered.step(action)
        np.testing.assert_array_equal(np.sort(plain.tokens, 2)[..., ::-1], ordered.tokens)
        np.testing.assert_array_equal(plain.to_move, ordered.to_move)
    np.testing.assert_array_equal(plain.winner, ordered.winner)


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


# What is seen


def test_handcrafted():
    # Their 1, 8 and 9 are own 27, 34 (safe) and 35: 3 behind own 30, 4 and 5 before it.
    game = scene([[30, -1, 56, 8], [1, 8, 9, -1]], [6, 4])
    seen = game.observe()["observation"]
    assert seen.shape == (1, 70) and seen.dtype == np.float32
    tokens = seen[0, :64].reshape(2, 4, 8)
    third = (7 - 3) / 6
    np.testing.assert_allclose(
        tokens[0, 0], [31 / 57, 0, 1, 0, third, 0, (7 - 5) / 6, 0], rtol=1e-6
    )  # own 35 is their 9
    np.testing.assert_allclose(tokens[0, 1], [0, 1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(tokens[0, 2], [1, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(tokens[0, 3], [9 / 57, 0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(tokens[1, 0], [2 / 57, 0, 1, 0, 0, 0, third, 0], rtol=1e-6)
    np.testing.assert_allclose(tokens[1, 1], [9 / 57, 0, 1, 0, 0, 0, 0, 0], rtol=1e-6)  # safe
    np.testing.assert_allclose(tokens[1, 2], [10 / 57, 0, 1, 0, (7 - 5) / 6, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(seen[0, 64:], [1, 4 / 6, 0, 1, 0, 0], rtol=1e-6)


def test_handcrafted_threats_from_afar_and_around_the_corner():
    game = scene([[2, 0, 0, 0], [20, 0, 0, 0]], [1])  # own 2 is their 28: 8 ahead of their 20
    tokens = game.observe()["observation"][0, :64].reshape(2, 4, 8)
    np.testing.assert_allclose(tokens[0, 0, 4:], [0, (13 - 8) / 6, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(tokens[1, 0, 4:], [0, 0, 0, (13 - 8) / 6], rtol=1e-6)
    game = scene([[2, 0, 0, 0], [50, 0, 0, 0]], [1])  # their 50 goes home, and threatens nobody
    assert (game.observe()["observation"][0, :64].reshape(2, 4, 8)[:, 0, 4:] == 0).all()


def test_onehot():
    game = scene([[30, -1, 56, 25], [1, 51, 0, -1]], [6, 4], encoding="onehot")
    seen = game.observe()["observation"]
    assert seen.shape == (1, 946) and seen.dtype == bool
    tokens = seen[0, :928].reshape(16, 58)
    cells = [31, 0, 57, 26, 2, 52, 1, 0]  # coordinates + 1
    own_as_theirs, theirs_as_own = [4 + 1, None, None, None], [27 + 1, None, 26 + 1, None]
    for row, cell in zip(tokens, cells + own_as_theirs + theirs_as_own, strict=True):
        assert np.flatnonzero(row).tolist() == ([] if cell is None else [cell])
    assert np.flatnonzero(seen[0, 928:]).tolist() == [5, 6 + 3]


def test_what_actions_lead_to():
    game = scene([[30, -1, 54, 8], [6, 6, 8, 5]], [2, 6], encoding="actions")  # their 6 is own 32, their 5 own 31
    seen = game.observe()["observation"]
    assert seen.shape == (1, 420) and seen.dtype == np.float32
    own = seen[0, :232].reshape(4, 58)
    assert own.argmax(1).tolist() == [31, 0, 55, 9] and own.sum() == 4
    assert seen[0, 232:290][[6, 7, 9]].tolist() == [0.25, 0.5, 0.25] and seen[0, 232:290].sum() == 1
    assert np.flatnonzero(seen[0, 290:308]).tolist() == [1, 6 + 5]
    np.testing.assert_allclose(seen[0, 308:312], [0, 0, 0, 0])
    features = seen[0, 312:].reshape(12, 9)
    assert len(ACTION_FEATURES) == 9
    assert (features[:, 0] == game.action_mask[0]).all()
    assert (features[~game.action_mask[0]] == 0).all()
    # Token 0 by 2 comes to own 32: takes two, and is 1 ahead of their 5 (own 31).
    np.testing.assert_allclose(features[0], [1, 33 / 57, 0, 0.5, 0, 0, 0, 0.8 / 4, 0], rtol=1e-6)
    np.testing.assert_allclose(features[2], [1, 1, 0, 0, 1, 0, 0, 0, 0])  # token 2 by 2: the goal, from a safe cell
    np.testing.assert_allclose(features[3], [1, 11 / 57, 0, 0, 0, 0, 1, 0, 0], rtol=1e-6)  # token 3 off a safe square
    np.testing.assert_allclose(features[5], [1, 1 / 57, 1, 0, 0, 1, 0, 0, 0], rtol=1e-6)  # out of base by the six
    # Token 0 by 6 to own 36, their 10: 4 ahead of two, 2 of one, 5 of one.
    np.testing.assert_allclose(features[4, 7], (2 * 0.8 / 4 + 0.8 / 2 + 0.8 / 5) / 4, rtol=1e-6)


def test_an_own_start_that_is_taken_is_told():
    for theirs, taken in ((26, True), (25, False)):
        game = scene([[-1, 3, 3, 3], [theirs, 0, 0, 0]], [6])
        assert consequences(game.position(np.array([0]), np.array([0]))).own_start_taken.tolist() == [taken]


@pytest.mark.parametrize("encoding", ["handcrafted", "onehot", "actions"])
@pytest.mark.parametrize("num_players", [2, 4])
def test_every_seat_sees_the_same_from_its_side(encoding, num_players):
    generator = np.random.default_rng(0)
    for _ in range(20):
        tokens = generator.integers(-1, 56, (num_players, 4))
        seen = []
        for seat in range(num_players):
            game = scene(np.roll(tokens, seat, 0).tolist(), [6, 1], to_move=seat, encoding=encoding)
            assert game.to_move[0] == seat
            seen.append({name: array.copy() for name, array in game.observe().items()})
            assert seen[-1]["observation"].shape == (1, *game.spec.leaves[0].shape)
        for other in seen[1:]:
            np.testing.assert_array_equal(other["observation"], seen[0]["observation"])
            np.testing.assert_array_equal(other["action_mask"], seen[0]["action_mask"])


def test_dice_are_shown_to_the_one_to_move():
    game = scene([[30, -1, 54, 8], [6, 6, 8, 5]], [2, 6])
    mine = game.observe(seats=np.array([0]))["observation"][0].copy()
    seen = game.observe(seats=np.array([1]))
    assert (seen["observation"][0, 64:] == 0).all() and seen["action_mask"].all()
    np.testing.assert_array_equal(seen["observation"][0, :32], mine[32:64])


# Scenes, pictures


def test_scenes_that_cannot_be_are_refused():
    for tokens, dice, to_move, why in (
        ([[57, 0, 0, 0], BASE4], [1], 0, "coordinates from -1 to 56"),
        ([BASE4], [1], 0, "coordinates"),
        ([BASE4, BASE4], [7], 0, "cannot be"),
        ([BASE4, BASE4], [1], 2, "no seat 2"),
        ([BASE4, [56] * 4], [1], 0, "over already"),
    ):
        with pytest.raises(envs.EnvError, match=why):
            Ludo(1).place(0, tokens, to_move, dice)
    with pytest.raises(envs.EnvError, match="num_players=3 is none of 2, 4"):
        Ludo(1, num_players=3)
    with pytest.raises(envs.EnvError, match="did you mean dense"):
        Ludo(1, reward="dens")
    with pytest.raises(envs.EnvError, match="encoding=pixels is none of"):
        Ludo(1, encoding="pixels")


def test_the_picture():
    cells = ludo_picture.TRACK_CELLS
    assert len(set(cells)) == 52
    # Neighbours touch, at the four inner corners by their corners.
    steps = [np.abs(np.subtract(a, b)) for a, b in zip(cells, cells[1:] + cells[:1], strict=True)]
    assert sorted(int(step.sum()) for step in steps) == [1] * 48 + [2] * 4 and max(int(s.max()) for s in steps) == 1
    # A player's last square on the loop is beside its home column.
    for corner in range(4):
        way = [ludo_picture.cell_of(corner, 0, c) for c in range(50, 57)]
        assert all(np.abs(np.subtract(a, b)).sum() == 1 for a, b in zip(way, way[1:], strict=False))
        assert not set(way[1:]) & set(cells)
    drawn = scene([[4, -1, -1, -1], [56, -1, -1, -1]], [3]).render()
    assert drawn.shape == (360, 360, 3) and drawn.dtype == np.uint8

    def middle(row, column):
        return drawn[24 * row + 12, 24 * column + 12].tolist()

    red, yellow = ludo_picture.COLOURS[0].tolist(), ludo_picture.COLOURS[2].tolist()
    assert middle(6, 5) == red and middle(1, 4) == red and middle(7, 8) == yellow
    assert middle(6, 6) == [255, 255, 255] and drawn[24 * 6 + 2, 24 * 6 + 2].tolist() == red  # a die, its middle pip


def test_queues_of_dice():
    assert ludo_track.unpack(ludo_track.pack([6, 6, 1, 2])) == [6, 6, 1, 2]
    assert (ludo_track.throws() == 0).sum() == 1


def test_the_text():
    game = Ludo(2)
    game.place(1, [[0, 0, 51, -1], [56, 26, 8, -1]], 0, [6, 2])
    lines = game.text(1).splitlines()
    assert lines[15:] == ["A0 0  A1 0  A2 51  A3 base", "B0 goal  B1 26  B2 8  B3 base", "A is to move, dice: 6 2"]
    cells = [[line.ljust(45)[3 * column : 3 * column + 2].strip() for column in range(15)] for line in lines[:15]]
    assert cells[6][1] == "++"  # A0 and A1 on A's start, which is B's 26
    assert cells[7] == [".", "A2", *[":"] * 5, "", "B0", *[":"] * 5, "."]
    assert cells[4][4] == "A3" and cells[1][1] == "_"
    assert sum(row.count("*") for row in cells) == 8 - 2  # the start is taken, and B2's square
    assert [game.action_text(1, action) for action in (0, 6)] == ["A0 by 6", "A2 by 2"]
