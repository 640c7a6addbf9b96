"""Connect four against perfect play, by the solver BitBully.

`pip install bitbully` installs it. Its licence is the AGPL, so it is not a dependency; without it nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.report import Row

OPENINGS = [(first, second) for first in range(7) for second in range(7)]
Act = Callable[[Any, np.ndarray], np.ndarray]


def solver() -> Any | None:
    """BitBully with its opening book; None if it is not installed."""
    try:
        import bitbully
    except ImportError:
        return None
    return bitbully.BitBully()


def against_perfect(act: Act, solve: Any, **kwargs: Any) -> tuple[float, float, float]:
    """Games from each of the 49 openings of two moves, on either seat, against a player that makes no mistake.

    Args:
        act: `(game, rows) -> actions`, of our game.
        solve: from `solver`.
        kwargs: of our game.

    Returns:
        score of the agent, score that the openings are worth to it (both with draws as halves), and the share of its
        moves that keep what the position is worth.
    """
    from bitbully import Board

    from trainer.envs.games import GAMES

    games = 2 * len(OPENINGS)
    game, boards = GAMES["connect_four"](games, **kwargs), [Board() for _ in range(games)]
    game.reset(0)
    seats, rng, actions = np.arange(games) % 2, np.random.default_rng(5), np.zeros(games, np.int64)
    for ply in range(2):
        actions[:] = [OPENINGS[i // 2][ply] for i in range(games)]
        _play(game, boards, actions)
    worth = np.array([np.sign(max(solve.score_all_moves(board).values())) for board in boards])  # seat 0 is to move
    worth = np.where(seats == 0, worth, -worth)
    kept = moves = 0
    while not game.over.all():
        mine = np.flatnonzero(~game.over & (game.to_move == seats))
        if len(mine):
            actions[mine] = act(game, mine)
        for i in np.flatnonzero(~game.over):
            scores = solve.score_all_moves(boards[i])
            best = max(scores.values())
            if game.to_move[i] == seats[i]:
                kept += np.sign(scores[int(actions[i])]) == np.sign(best)
                moves += 1
            else:
                actions[i] = rng.choice([column for column, score in scores.items() if score == best])
        _play(game, boards, actions)
    score = np.where(game.winner < 0, 0.5, game.winner == seats)
    return float(score.mean()), float((1 + worth).mean() / 2), kept / moves


def rows(act: Act, **kwargs: Any) -> list[Row]:
    """The rows of `against_perfect`; without the solver no rows, and one printed line that says so."""
    solve = solver()
    if solve is None:
        print("connect four is not played against perfect play: pip install bitbully")
        return []
    score, worth, kept = against_perfect(act, solve, **kwargs)
    return [
        Row("self-play, connect four, score against perfect play (BitBully)", score, "",
            detail=f"49 openings, both seats; worth {worth:.2f} to a perfect player"),
        Row("self-play, connect four, share of moves that keep what the position is worth", kept, "",
            detail="in these games"),
    ]  # fmt: skip


def _play(game: Any, boards: list[Any], actions: np.ndarray) -> None:
    for i in np.flatnonzero(~game.over):
        boards[i].play(int(actions[i]))
    game.step(actions)
