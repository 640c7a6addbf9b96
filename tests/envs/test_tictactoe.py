"""Tic-tac-toe: rules on hand-made positions, the perfect player against every line of play."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trainer.envs.games import TicTacToe, board_picture
from trainer.envs.games.players import random_player, tictactoe_perfect
from trainer.envs.games.tictactoe import LINES, solution


def after(*cells):
    """A game in which these cells were marked by turns."""
    game = TicTacToe(1)
    for cell in cells:
        game.step(np.array([cell]))
    return game


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("seat", [0, 1])
def test_three_in_a_line_win(line, seat):
    others = [c for c in range(9) if c not in line]
    # Three of the others that are no line themselves.
    idle = next(x for x in ([others[i] for i in t] for t in ((0, 1, 3), (0, 2, 3), (0, 1, 4))) if tuple(x) not in LINES)
    cells = []
    for k in range(3):
        cells += [line[k], idle[k]] if seat == 0 else [idle[k], line[k]]
    cells = cells[:5] if seat == 0 else cells
    game = after(*cells[:-1])
    assert not game.over[0] and game.winner[0] == -1
    game.step(np.array([cells[-1]]))
    assert game.over[0] and game.winner[0] == seat
    assert game.rewards[0].tolist() == ([1, -1] if seat == 0 else [-1, 1])


def test_a_full_board_is_a_draw():
    game = after(0, 1, 2, 4, 3, 5, 7, 6, 8)
    assert game.over.tolist() == [True] and game.winner.tolist() == [-1] and game.rewards.tolist() == [[0, 0]]
    game = after(0, 1, 2, 4, 3, 5, 7, 8, 6)  # the last cell wins: 0, 3, 6
    assert game.winner.tolist() == [0]


def test_what_is_seen():
    game = after(0, 4, 5)
    seen = game.observe()
    assert np.argwhere(seen["observation"][0]).tolist() == [[0, 1, 1], [1, 0, 0], [1, 1, 2]]
    assert np.flatnonzero(seen["action_mask"][0]).tolist() == [1, 2, 3, 6, 7, 8]
    assert game.codes.tolist() == [2 * 3**0 + 3**4 + 2 * 3**5]
    seen = game.observe(seats=np.array([0]))
    assert np.argwhere(seen["observation"][0]).tolist() == [[0, 0, 0], [0, 1, 2], [1, 1, 1]]


def test_random_against_random():
    game, generator = TicTacToe(100_000), np.random.default_rng(0)
    while not game.over.all():
        game.step(random_player(game, generator))
    counts = [int((game.winner == outcome).sum()) for outcome in (0, -1, 1)]
    assert stats.chisquare(counts, np.array([0.5849, 0.1270, 0.2881]) * 1e5).pvalue > 0.001  # exact values


def test_the_solution():
    values, best = solution()
    assert values[0] == 0 and best[0].all()  # any first move draws
    assert best.any(1).sum() == 4_520  # positions in which somebody is to move
    assert np.flatnonzero(best[after(0).codes[0]]).tolist() == [4]  # only the centre answers a corner
    code = after(0, 8, 2).codes[0]
    assert values[code] == -1  # 1 and a third corner: it cannot be held, so everything is best
    code = after(0, 4, 1).codes[0]
    assert np.flatnonzero(best[code]).tolist() == [2]


@pytest.mark.parametrize("seat", [0, 1])
def test_the_perfect_player_never_loses_whatever_is_played(seat):
    _, best = solution()
    todo, seen, outcomes = [(0, 0, 0)], set(), []
    lines = [sum(1 << c for c in line) for line in LINES]
    while todo:
        marks = todo.pop()
        if marks in seen:
            continue
        seen.add(marks)
        *boards, turn = marks
        if any(boards[1 - turn] & line == line for line in lines):
            outcomes.append(1 - turn)
            continue
        taken = boards[0] | boards[1]
        if taken == 511:
            outcomes.append(-1)
            continue
        moves = [c for c in range(9) if not taken >> c & 1]
        if turn == seat:
            code = sum(3**c * ((boards[turn] >> c & 1) + 2 * (boards[1 - turn] >> c & 1)) for c in range(9))
            assert best[code].any()
            moves = np.flatnonzero(best[code]).tolist()
        for cell in moves:
            new = list(boards)
            new[turn] |= 1 << cell
            todo.append((*new, 1 - turn))
    assert set(outcomes) == {seat, -1}


def test_perfect_against_perfect_is_a_draw():
    game, generator = TicTacToe(1_000), np.random.default_rng(0)
    while not game.over.all():
        game.step(tictactoe_perfect(game, generator))
    assert (game.winner == -1).all() and (game.length == 9).all()


def test_the_picture():
    drawn = after(0, 4).render()
    assert drawn.shape == (96, 96, 3) and drawn.dtype == np.uint8
    assert drawn[16, 16].tolist() == board_picture.COLOURS[0].tolist()
    assert drawn[48, 48].tolist() == board_picture.COLOURS[1].tolist()
    assert drawn[16, 48].tolist() == board_picture.PAPER.tolist()


def test_the_text():
    assert after(0, 4).text() == "X 1 2\n3 O 5\n6 7 8"
