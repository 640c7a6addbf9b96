"""Games of Ludo in given positions, for tests."""

from __future__ import annotations

import numpy as np

from trainer.envs.games import Ludo

SAFE = (0, 8, 13, 21, 26, 34, 39, 47)
BASE4, DONE = [-1] * 4, [56, 56, 56, 55]


def scene(tokens, dice, to_move=0, num_games=1, **kwargs):
    """Games in the same position, each with its own further dice."""
    game = Ludo(num_games, num_players=len(tokens), **kwargs)
    game.reset(11)
    for index in range(num_games):
        game.place(index, tokens, to_move, dice)
    return game


def play(game, slot, token):
    """The same action in every game."""
    game.step(np.full(game.num_games, 4 * slot + token))
    return game


def legal(game, index=0):
    """Legal (slot, token) of a game."""
    return {divmod(int(action), 4) for action in np.flatnonzero(game.action_mask[index])}
