"""Connect four: all 69 lines, and every move of random play against a plain board."""

from __future__ import annotations

import numpy as np

from trainer.envs.games import ConnectFour, board_picture, connect_four
from trainer.envs.games.connect_four import wins
from trainer.envs.games.players import connect_four_heuristic, random_player

CELLS = [(c, h) for c in range(7) for h in range(6)]
STEPS = ((1, 0), (0, 1), (1, 1), (1, -1))
RAYS = [[(c + k * x, h + k * y) for k in range(4)] for c, h in CELLS for x, y in STEPS]
LINES = [ray for ray in RAYS if set(ray) <= set(CELLS)]


def bits(cells):
    return sum(1 << 7 * c + h for c, h in cells)


def after(*columns):
    """A game in which these columns were played by turns."""
    game = ConnectFour(1)
    for column in columns:
        game.step(np.array([column]))
    return game


def test_all_lines_and_no_others_win():
    assert len(LINES) == 69
    assert wins(np.array([bits(line) for line in LINES])).all()
    threes = [bits(line[:k] + line[k + 1 :]) for line in LINES for k in range(4)]
    assert not wins(np.array(threes)).any()
    generator = np.random.default_rng(0)
    boards = generator.random((5_000, 42)) < 0.35
    numbers = boards @ np.array([1 << 7 * c + h for c, h in CELLS])
    expected = [any(all(board[6 * c + h] for c, h in line) for line in LINES) for board in boards]
    assert wins(numbers).tolist() == expected
    assert 0.1 < np.mean(expected) < 0.9


def test_wins_of_both_seats():
    game = after(0, 1, 0, 1, 0, 1)
    assert not game.over[0]
    game.step(np.array([0]))
    assert game.over[0] and game.winner[0] == 0 and game.rewards[0].tolist() == [1, -1]
    game = after(6, 0, 6, 1, 5, 2, 5, 3)
    assert game.over[0] and game.winner[0] == 1 and game.rewards[0].tolist() == [-1, 1]


def test_a_full_column_is_illegal():
    game = after(3, 3, 3, 3, 3)
    assert game.action_mask[0].all()
    game.step(np.array([3]))
    assert np.flatnonzero(~game.action_mask[0]).tolist() == [3]


def test_a_full_board_is_a_draw():
    # Columns in pairs, so that colours alternate by twos.
    order = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1]
    columns = [c + 2 * pair for pair in range(3) for c in order] + [6] * 6
    game = after(*columns[:-1])
    assert not game.over[0]
    game.step(np.array(columns[-1:]))
    assert game.over[0] and game.winner[0] == -1 and game.rewards[0].tolist() == [0, 0] and game.length[0] == 42


def test_random_play_is_what_a_plain_board_says():
    n, generator = 200, np.random.default_rng(0)
    game = ConnectFour(n)
    boards = np.full((n, 7, 6), -1)
    while not game.over.all():
        action, mover, running = random_player(game, generator), game.to_move.copy(), ~game.over
        game.step(action)
        seen = game.observe(seats=np.zeros(n, np.int64))["observation"].copy()
        for i in np.flatnonzero(running):
            column = boards[i, action[i]]
            column[np.flatnonzero(column == -1)[0]] = mover[i]
            won = any(all(boards[i, c, h] == mover[i] for c, h in line) for line in LINES)
            full = (boards[i] >= 0).all()
            assert bool(game.over[i]) == (won or full)
            assert game.winner[i] == (mover[i] if won else -1)
            for seat in range(2):
                np.testing.assert_array_equal(seen[i, seat], (boards[i] == seat).T[::-1])
            if not game.over[i]:
                assert game.to_move[i] == 1 - mover[i]
                assert game.action_mask[i].tolist() == (boards[i, :, 5] == -1).tolist()
    # Known of random play: the first wins about 55.6 %.
    assert 0.45 < (game.winner == 0).mean() < 0.66


def test_what_is_seen():
    seen = after(3, 3, 0).observe()
    assert np.argwhere(seen["observation"][0]).tolist() == [[0, 4, 3], [1, 5, 0], [1, 5, 3]]


def test_threats_are_seen():
    """By random play: the cells that would win, found by trying them, and where pieces come to lie."""
    game, generator = ConnectFour(50, encoding="threats"), np.random.default_rng(2)
    game.reset()
    winning_cells = 0
    while not game.over.all():
        seen = game.observe()["observation"].copy()
        for i in np.flatnonzero(~game.over):
            seats = (game.to_move[i], 1 - game.to_move[i])
            taken = seen[i, :2].any(0)
            for plane, seat in zip((2, 3), seats, strict=True):
                tried = connect_four.wins(game.pieces[i, seat] | connect_four._BITS) & ~taken
                np.testing.assert_array_equal(seen[i, plane], tried)
                winning_cells += tried.sum()
            lowest = ~taken & np.vstack([taken[1:], np.ones((1, 7), bool)])
            np.testing.assert_array_equal(seen[i, 4], lowest)
        game.step(random_player(game, generator))
    assert winning_cells > 500


def test_the_picture():
    drawn = after(0, 6).render()
    assert drawn.shape == (192, 224, 3) and drawn.dtype == np.uint8
    assert drawn[5 * 32 + 16, 16].tolist() == board_picture.COLOURS[0].tolist()
    assert drawn[5 * 32 + 16, 6 * 32 + 16].tolist() == board_picture.COLOURS[1].tolist()
    assert drawn[16, 16].tolist() == board_picture.PAPER.tolist()


def test_the_heuristic_wins_blocks_and_else_plays_anything():
    def chosen(*columns):
        game = after(*columns)
        return {int(connect_four_heuristic(game, np.random.default_rng(seed))[0]) for seed in range(60)}

    assert chosen(0, 1, 0, 1, 0, 1) == {0}  # wins rather than blocks
    assert chosen(0, 1, 0, 1, 0) == {0}  # blocks
    assert chosen(2, 2, 3, 3) == set(range(7))  # nothing is urgent
    assert chosen(2, 2, 3, 3, 4) == {1, 5}
    assert chosen(*[3] * 6) == {0, 1, 2, 4, 5, 6}
    game, generator = ConnectFour(2_000), np.random.default_rng(0)
    seat = np.arange(2_000) % 2
    while not game.over.all():
        own, other = connect_four_heuristic(game, generator), random_player(game, generator)
        game.step(np.where(game.to_move == seat, own, other))
    assert (game.winner == seat).mean() > 0.9


def test_the_text():
    assert after(3, 3, 0).text() == "\n".join(
        [*[". . . . . . ."] * 4, ". . . O . . .", "X . . X . . .", "0 1 2 3 4 5 6"]
    )
