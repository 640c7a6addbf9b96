"""Moves per second of each turn-based game, on one core.

    python -m benchmarks.games [--json FILE]

A move is one decision; its random choice, forced passes, dice and the start of new games are part of it. NumPy uses one
core here, and CPU seconds are counted, so other work on the machine has less effect. The result is the best of several
repeats. Without observations the games are played at random.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.report import Row, parser, show

NUM_GAMES = 1_024


def rates(make: Any, player: Any, opponent: Any, look: bool, seconds: float, repeats: int) -> tuple[float, float]:
    """Moves and finished games per second: the best of the repeats, each of so many CPU seconds.

    Args:
        make: gives the games.
        player: in seat 0.
        opponent: in the other seats.
        look: whether the observation of the player to move is computed.
        seconds: of each repeat.
        repeats: how many.
    """
    import numpy as np

    game, generator = make(), np.random.default_rng(0)
    game.reset(0)
    action = np.zeros(game.num_games, np.int64)
    best = (0.0, 0.0)
    for repeat in range(repeats + 1):
        moves = games = 0
        start = time.process_time()
        while (now := time.process_time()) - start < seconds:
            if look:
                game.observe()
            if player is opponent:
                action = player(game, generator)
            else:
                for chosen, turn in ((player, game.to_move == 0), (opponent, game.to_move != 0)):
                    rows = np.flatnonzero(turn)
                    action[rows] = chosen(game, generator, rows)
            game.step(action)
            moves += game.num_games
            if game.over.any():
                games += int(game.over.sum())
                game.reset_where(game.over.copy())
        if repeat:  # the first leads to games of all ages
            best = max(best, (moves / (now - start), games / (now - start)))
    return best


def main() -> None:
    made = parser("Moves per second of each turn-based game, on one core.", seconds=1.0)
    made.add_argument("--num-games", type=int, default=NUM_GAMES, help=f"games at a time ({NUM_GAMES})")
    args = made.parse_args()
    from functools import partial

    from benchmarks.machine import Meter
    from trainer.envs.games import GAMES
    from trainer.envs.games.players import ludo_heuristic, random_player

    def measure(name: str, player: Any = random_player, look: bool = False, **kwargs: Any) -> tuple[float, float]:
        make = partial(GAMES[name], args.num_games, **kwargs)
        return rates(make, player, random_player, look, args.seconds, args.repeats)

    meter = Meter()
    moves, games = measure("ludo")
    rows = [Row("ludo, 2 players, moves on one core", moves, "1/s", detail=f"{games * 60:,.0f} games/min")]
    moves, games = measure("ludo", ludo_heuristic)
    rows.append(Row("ludo, heuristic against random, moves", moves, "1/s", detail=f"{games * 60:,.0f} games/min"))
    rows.append(Row("ludo, 4 players, moves", measure("ludo", num_players=4)[0], "1/s"))
    rows.append(Row("ludo, dense rewards, moves", measure("ludo", reward="dense")[0], "1/s"))
    for encoding in ("handcrafted", "onehot", "actions"):
        rows.append(Row(f"ludo, {encoding} observed, moves", measure("ludo", look=True, encoding=encoding)[0], "1/s"))
    for name in ("connect_four", "tictactoe"):
        rows.append(Row(f"{name}, moves", measure(name)[0], "1/s"))
        rows.append(Row(f"{name}, observed, moves", measure(name, look=True)[0], "1/s"))
    show(f"Games: {args.num_games} at a time, random play", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
