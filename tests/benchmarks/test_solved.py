"""Connect four against perfect play."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.solved import against_perfect, solver
from trainer.envs.games.players import random_player

pytest.importorskip("bitbully", reason="bitbully is not installed")
pytestmark = pytest.mark.slow


def test_perfect_play_gets_what_the_openings_are_worth_and_random_play_nothing():
    solve = solver()

    def perfect(game, rows):
        from bitbully import Board

        chosen = []
        for own, theirs in game.observe(rows)["observation"][:, :2].astype(int):
            mover = 1 if own.sum() == theirs.sum() else 2  # who began is to move where both have as many
            scores = solve.score_all_moves(Board((own * mover + theirs * (3 - mover)).tolist()))
            chosen.append(max(scores, key=scores.get))
        return np.array(chosen)

    score, worth, kept = against_perfect(perfect, solve)
    assert score == worth == 0.5 and kept == 1.0  # the mover's gain is the other's loss, and both seats are played
    generator = np.random.default_rng(0)
    score, worth, kept = against_perfect(lambda game, rows: random_player(game, generator, rows), solve)
    assert score == 0.0 and 0.3 < kept < 0.9
