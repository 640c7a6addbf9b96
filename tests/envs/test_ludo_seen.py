"""Ludo: what a seat sees, scenes, pictures and text."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.ludo_scenes import BASE4, scene
from trainer import envs
from trainer.envs.games import Ludo, ludo_picture, ludo_track
from trainer.envs.games.ludo_encodings import ACTION_FEATURES, consequences

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
        ([BASE4, BASE4], [7], 0, "numbers from 1 to 6"),
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
