"""A human as a player, in the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.envs import EnvError
from trainer.envs.games.players import Player


def human(env_id: str, game: Any) -> Player:
    """A function of `trainer.envs.games.players` that asks for every move, for one game at a time.

    An action is given by its number, or in the game's words where it has some. What is not legal is asked again. The
    end of the input raises EOFError.

    Raises:
        EnvError: the game cannot be shown as text.
    """
    if not hasattr(game, "text"):
        raise EnvError(
            f"{env_id} cannot be shown as text, so that nobody can play it in a terminal: name another opponent."
        )

    def player(game: Any, generator: np.random.Generator, rows: np.ndarray) -> np.ndarray:
        (index,) = rows.tolist()
        legal = np.flatnonzero(game.action_mask[index]).tolist()
        typable = {words(game, index, action).lower(): action for action in legal}
        typable |= {str(action): action for action in legal}
        print(f"your actions: {',  '.join(action_text(game, index, action) for action in legal)}")
        while True:
            typed = input("> ").strip()
            if typed.lower() in typable:
                return np.array([typable[typed.lower()]])
            print(f"{typed or 'nothing'} is not legal here: type one of {', '.join(map(str, legal))}")

    return player


def words(game: Any, index: int, action: int) -> str:
    """An action in the game's own words where it has some, else its number."""
    return str(game.action_text(index, action)) if hasattr(game, "action_text") else str(action)


def action_text(game: Any, index: int, action: int) -> str:
    """An action's number, and the game's own words for it where it has some."""
    return f"{action} ({words(game, index, action)})" if hasattr(game, "action_text") else str(action)
