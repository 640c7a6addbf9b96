"""Tic-tac-toe whose every step sleeps, for measurements of many workers on few cores.

A process knows it as `env.id=sleeping_tictactoe` where `env.import_modules` names this module.
"""

from __future__ import annotations

import time
from typing import Any

from trainer.envs.games import GAMES, TicTacToe


def sleeping(num_games: int, seconds: float = 0.05) -> Any:
    """As many games of tic-tac-toe, all of which together sleep for some seconds in each call of `step`."""
    game = TicTacToe(num_games)
    step = game.step

    def slow(action: Any, where: Any = None) -> None:
        time.sleep(seconds)
        step(action, where)

    game.step = slow  # type: ignore[method-assign]
    return game


GAMES["sleeping_tictactoe"] = sleeping  # type: ignore[assignment]
