"""Tic-tac-toe whose every step sleeps, for measurements of many workers on few cores.

It is `env.id=sleeping_tictactoe` if `env.import_modules` names this module.
"""

from __future__ import annotations

import time
from typing import Any

from trainer.envs.games import GAMES, TicTacToe


def sleeping(num_games: int, seconds: float = 0.05) -> Any:
    """So many games of tic-tac-toe; each call of `step` sleeps for some seconds, once for all of them."""
    game = TicTacToe(num_games)
    step = game.step

    def slow(action: Any, where: Any = None) -> None:
        time.sleep(seconds)
        step(action, where)

    game.step = slow  # type: ignore[method-assign]
    return game


GAMES["sleeping_tictactoe"] = sleeping  # type: ignore[assignment]
