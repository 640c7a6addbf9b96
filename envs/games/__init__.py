"""Turn-based board games, many at a time in NumPy: `GAMES` lists them, `trainer.envs.games.players` has players.

`trainer.envs.games.openspiel` and `trainer.envs.games.turn_based` make games of other packages with the same interface.

    game = GAMES["ludo"](num_games=64, num_players=2)
    game.reset(seed)
    while not game.over.all():
        game.step(policy(game.observe()))         # every game advances by one decision

Every game has the following; N is `num_games`, P is `num_players`. Every array is made once and overwritten.

`to_move` int64 [N]
    The seat that decides next, 0 .. P-1. Dice are thrown and forced passes are made inside, so the seat always has a
    legal move. Of a game that is over, the seat that moved last.
`action_mask` bool [N, num_actions]
    Legal actions of that seat; at least one. All True for a game that is over, where actions have no effect.
`rewards` float32 [N, P]
    Rewards of all seats from the last call, not only of the seat that moved: a loser has its last reward although
    another seat moved. Zero for games that the call did not advance. To learn from one seat, sum its rewards from one
    of its decisions to the next.
`over` bool [N], `winner` int64 [N]
    Whether a game has ended, and the seat that has won; -1 for a running game and a draw.
`length` int64 [N]
    Number of decisions in the running game.
`spec`
    The `EnvSpec` of `observe`.
`truncated` bool [N, P], if a game can be cut off
    Whether a game that is over was cut off for a seat: it has ended, but not by its rules.
`reset(seed=None)`
    Starts a new game in every row. Game i of a batch reset with `seed` is, dice included, the single game reset with
    `seed + i`. Without a seed every game goes on in its stream of dice.
`reset_where(mask)`
    Starts a new game in the rows of a bool mask [N]; the others stay as they are, but their `rewards` are zeroed.
`step(action, where=None)`
    Takes actions int64 [N], legal for `to_move`, and advances every game, or those of a bool mask [N], by one decision.
    Games that are over stay as they are. Raises `EnvError` for an illegal action, before any game is changed.
`observe(rows=None, seats=None) -> {"observation", "action_mask"}`
    Observations of seats (int64 [M], by default those to move) of the games `rows` (int64 [M], by default all), as
    arrays [M, ...] that the next call overwrites. Each is relative to its seat: first its own pieces, then the others'
    in the order of play, so that one network can play every seat. A seat that is not to move, and every seat of a game
    that is over, sees no dice and a mask of all True, so every seat has a final observation.
`render(index=0)`
    A picture of one game, rgb uint8 [height, width, 3].
`text(index=0)`
    One game as lines of text, for a terminal.
`action_text(index, action)`, of some games
    An action of the seat to move in words.
`state()`, `set_state(state)`
    The state of all games as tensors and plain values; it can be restored in another object that was made alike.
`close()`, of some games

Observations are computed only when `observe` is called, as some players do not need them. `trainer.envs.games.aec`
makes PettingZoo environments of the games.
"""

from __future__ import annotations

from trainer.envs.games.connect_four import ConnectFour
from trainer.envs.games.ludo import Ludo
from trainer.envs.games.tictactoe import TicTacToe

__all__ = ["GAMES", "ConnectFour", "Ludo", "TicTacToe"]

GAMES = {"ludo": Ludo, "connect_four": ConnectFour, "tictactoe": TicTacToe}
