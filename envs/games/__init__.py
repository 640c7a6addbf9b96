"""Turn-based board games, many at a time in NumPy: `GAMES` lists them, `trainer.envs.games.players` plays them.

`trainer.envs.games.openspiel` and `trainer.envs.games.turn_based` give games that others wrote the same interface.

    game = GAMES["ludo"](num_games=64, num_players=2)
    game.reset(seed)
    while not game.over.all():
        game.step(policy(game.observe()))         # every game advances by one decision

What every game has, N being `num_games` and P `num_players`; every array is made once and overwritten:

`to_move` int64 [N]
    The seat that decides next, 0 .. P-1. A player without a legal move is never asked: dice are thrown and forced
    passes are made inside. Where a game is over, the seat that moved last.
`action_mask` bool [N, num_actions]
    What that seat may do; at least one action. Where a game is over all are True, and none has an effect.
`rewards` float32 [N, P]
    What every seat was paid by the last call, whoever moved: a loser's last reward stands here although another one
    moved. Zero for games that the call did not advance. Whoever learns from one seat adds these up from one of its
    decisions to the next.
`over` bool [N], `winner` int64 [N]
    Whether a game has ended, and which seat has won it; -1 while it runs and for a draw.
`length` int64 [N]
    Decisions in the running game.
`spec`
    An `EnvSpec`: what `observe` shows.
`truncated` bool [N, P], where a game can be cut off
    Whether a game that is over was cut off for a seat: it has ended, but not by its rules.
`reset(seed=None)`
    Starts every game anew. Game i of a batch reset with `seed` is, dice included, the single game reset with
    `seed + i`. Without a seed every game goes on to its next dice.
`reset_where(mask)`
    Starts the games of a bool mask [N] anew; the others are left alone, but for their `rewards`, which are zeroed.
`step(action, where=None)`
    Takes int64 [N], legal for `to_move`, and advances every game by one decision, or those of a bool mask [N].
    Games that are over stay as they are. It raises `EnvError` for an illegal action, before any game is changed.
`observe(rows=None, seats=None) -> {"observation", "action_mask"}`
    What seats (int64 [M], by default those to move) of the games `rows` (int64 [M], by default all) see, as arrays
    [M, ...] that the next call overwrites. Everything is seen from the seat itself, first its own pieces, then the
    others' in the order of play, so that one network plays every seat. A seat that is not to move, and any seat of a
    game that is over, sees no dice and a mask of all ones: so the final observation of every seat is to be had.
`render(index=0)`
    A picture of one game, rgb uint8 [height, width, 3].
`text(index=0)`
    One game as lines of text, for a terminal.
`action_text(index, action)`
    Of some games: an action of the one to move in words, where its number says little.
`state()`, `set_state(state)`
    Where all games stand, as tensors and plain values, for another object of the same making.
`close()`, where there is something to close

Observations are computed when they are asked for, as a player that does not look need not pay for them.
`trainer.envs.games.aec` makes PettingZoo environments of the games.
"""

from __future__ import annotations

from trainer.envs.games.connect_four import ConnectFour
from trainer.envs.games.ludo import Ludo
from trainer.envs.games.tictactoe import TicTacToe

__all__ = ["GAMES", "ConnectFour", "Ludo", "TicTacToe"]

GAMES = {"ludo": Ludo, "connect_four": ConnectFour, "tictactoe": TicTacToe}
