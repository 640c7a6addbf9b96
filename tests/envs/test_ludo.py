"""Ludo: every rule in a position made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.envs.ludo_scenes import BASE4, DONE, SAFE, legal, play, scene
from trainer import envs
from trainer.envs.games import Ludo
from trainer.envs.games.players import random_player

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
    with pytest.raises(envs.EnvError, match="at most 21 numbers"):
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
