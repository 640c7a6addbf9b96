"""A human as a player, in the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.envs import EnvError
from trainer.envs.games.players import Player


def human(env_id: str, game: Any) -> Player:
    """A player, see `trainer.envs.games.players`, that asks a human for every move; for one game at a time.

    An action is typed as its number, or in words if the game has words for its actions. After an illegal action it asks
    again. The end of the input raises EOFError.

    Raises:
        EnvError: the game has no text.
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
    """An action in the game's words, or its number if the game has none."""
    return str(game.action_text(index, action)) if hasattr(game, "action_text") else str(action)


def action_text(game: Any, index: int, action: int) -> str:
    """An action's number, followed by the game's words for it if there are any."""
    return f"{action} ({words(game, index, action)})" if hasattr(game, "action_text") else str(action)
