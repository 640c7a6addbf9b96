"""Self-play: speed of Ludo, and how strong the presets become.

    python -m benchmarks.selfplay [--json FILE] [--only speed sleeping tictactoe connect_four ludo leduc ten]
        [--keep FOLDER]

`speed` is in finished games per minute. Strength is exact for tic-tac-toe (over all lines of its game tree) and for
Leduc (by OpenSpiel); for the other games it is measured by many games, with each side on each seat equally often
(`benchmarks.others`). `sleeping` compares many workers with one on games that sleep: it shows that no part of the
trainer makes workers wait for each other.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import others, solved
from benchmarks.report import Row, parser, show

CEILING = (0.99479, 0.92487)  # of the outcome against random, first and second


def speed(seconds: float) -> list[Row]:
    """Games a minute with one and with 80 updates a game, network 256-256, batch 64."""
    from benchmarks import parts

    rows = []
    for updates in (1, 80):
        config = parts.config(
            "preset=ludo_selfplay", "learner.batch_size=64", f"schedule.episodes_per_update={1 / updates}",
            "algorithm.hidden_sizes=[256,256]", "learner.warmup_frames=2_000", "env.kwargs.encoding=handcrafted",
            "collector.envs_per_worker=1024", parts.BUDGET,
        )  # fmt: skip
        with parts.opened(config) as system:
            from trainer.config.schedules import SCHEDULES

            loop, board = SCHEDULES["async"].turns(system), system.learners.local[0].board
            while board.updates[0] < 200:
                next(loop)
                system.check()
            for _ in range(12):  # until games no longer run ahead of their updates, as they may for a while
                games, made, start = board.total_episodes(), int(board.updates[0]), time.perf_counter()
                while time.perf_counter() - start < seconds:
                    next(loop)
                spent = time.perf_counter() - start
                games, made = board.total_episodes() - games, int(board.updates[0]) - made
                if made >= 0.95 * updates * games:
                    break
        rate = 60 * games / spent
        rows.append(
            Row(f"self-play, Ludo at {updates} updates a game, games", rate, "1/min",
                detail=f"{made / max(1, games):.1f} updates a game")
        )  # fmt: skip
    return rows


def sleeping(seconds: float, workers: int, sleep_s: float) -> list[Row]:
    """Episodes a minute of many workers / of one, where every step of a worker's games sleeps."""
    many, one = _episodes(workers, seconds, sleep_s), _episodes(1, seconds, sleep_s)
    return [
        Row(f"self-play, games that sleep, {workers} workers / one, episodes/min", many / one, bar=workers * 44 / 46,
            detail=f"{many:,.0f} against {one:,.0f}; a step sleeps {1e3 * sleep_s:.0f} ms")
    ]  # fmt: skip


def _episodes(workers: int, seconds: float, sleep_s: float) -> float:
    """Episodes a minute of so many workers, 4 games each, without a learner."""
    from benchmarks import parts

    config = parts.config(
        "preset=tictactoe_selfplay", "env=generic", "env.backend=game", "env.id=sleeping_tictactoe",
        f"env.kwargs.seconds={sleep_s}", "env.import_modules=[benchmarks.sleeping_game]",
        f"collector.num_workers={workers}", "collector.envs_per_worker=4", parts.BUDGET,
    )  # fmt: skip
    with parts.opened(config) as system:
        board = system.plans[0].board
        board.frame_limit[0] = board.episode_limit[0] = parts.NO_LIMIT
        parts.wait_until_stepping(system)
        time.sleep(2.0)  # until the last worker runs at full speed
        before, start = board.total_episodes(), time.perf_counter()
        time.sleep(seconds)
        episodes, spent = board.total_episodes() - before, time.perf_counter() - start
        system.check()
    return 60 * episodes / spent


def trained(preset: str, keep: Path | None, *words: str) -> tuple[Path, float]:
    """A run of a preset, or the one left by an earlier call, and its wall time in minutes."""
    folder = (keep or Path(tempfile.mkdtemp())) / preset
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "trainer.run", f"preset={preset}", f"run_dir={folder}", "logger.terminal=none"]
        subprocess.run([*command, "resume=auto", *words], check=True, stdout=subprocess.DEVNULL)
    return folder, json.loads((folder / "summary.json").read_text())["wall_s"] / 60


def kwargs_of(folder: Path) -> dict[str, Any]:
    """The arguments of a run's game."""
    from trainer.config.run_config import from_yaml

    return from_yaml(folder / "config.yaml").env.kwargs


def policy_of(folder: Path) -> Callable[[Any, np.ndarray], np.ndarray]:
    """The best policy of a run as a player: `(game, rows) -> actions`, greedy."""
    import torch

    from trainer.api.sources import of_run

    players = of_run(folder, "best").players()

    def act(game: Any, rows: np.ndarray) -> np.ndarray:
        seen = game.observe(rows)
        size = game.num_games
        padded = {name: np.resize(array, (size, *array.shape[1:])) for name, array in seen.items()}
        leaves = [padded[leaf.name] for leaf in game.spec.leaves]
        with torch.inference_mode():
            actions, _ = players.policy(0, leaves, padded["action_mask"])(leaves, padded["action_mask"])
        return actions[: len(rows)]

    return act


def score(name: str, act: Callable[[Any, np.ndarray], np.ndarray], player: Any, games: int, **kwargs: Any) -> float:
    """Share of games won, draws counting half, seats balanced."""
    from trainer.envs.games import GAMES
    from trainer.selfplay.matches import play_out, seated

    game = GAMES[name](games, **kwargs)
    game.reset(123)
    seats = np.arange(games) % game.num_players
    who = (np.arange(game.num_players) != seats[:, None]).astype(np.int64)
    choose = seated([lambda game, _, rows: act(game, rows), player], None, np.random.default_rng(5))
    play_out(game, who, choose)
    return float(np.mean(np.where(game.winner < 0, 0.5, game.winner == seats)))


def tictactoe(keep: Path | None) -> list[Row]:
    """Outcomes over the whole game tree: against every move of a perfect player, and against a random one."""
    from trainer.envs.games import GAMES
    from trainer.envs.games.tictactoe import best_actions

    folder, minutes = trained("tictactoe_selfplay", keep)
    act, game = policy_of(folder), GAMES["tictactoe"](1)
    best = best_actions()

    def outcome(moves: tuple[int, ...], seat: int, reply: str) -> float:
        """Of the agent on `seat` after some moves: the worst against perfect replies, the mean against random."""
        game.reset(0)
        for move in moves:
            game.step(np.array([move]))
        if game.over[0]:
            return 0.0 if game.winner[0] < 0 else 1.0 if game.winner[0] == seat else -1.0
        if game.to_move[0] == seat:
            return known((*moves, int(act(game, np.arange(1))[0])), seat, reply)
        legal = best[game.codes[0]] if reply == "perfect" else game.action_mask[0]
        values = [known((*moves, int(move)), seat, reply) for move in np.flatnonzero(legal)]
        return min(values) if reply == "perfect" else statistics.fmean(values)

    known = functools.cache(outcome)
    rows = []
    for seat, (who, share) in enumerate((("first", 0.95), ("second", 0.88))):
        rows += [
            Row(f"self-play, tic-tac-toe, worst outcome against perfect play, moving {who}",
                known((), seat, "perfect"), "", 0.0, detail=f"over all lines; trained in {minutes:.1f} min"),
            Row(f"self-play, tic-tac-toe, outcome against random / ceiling, moving {who}",
                known((), seat, "random") / CEILING[seat], bar=share, detail=f"exact; ceiling {CEILING[seat]}"),
        ]  # fmt: skip
    return rows


def connect_four(keep: Path | None) -> list[Row]:
    """Against random, the heuristic, OpenSpiel's tree search and perfect play."""
    from trainer.envs.games.players import PLAYERS, random_player

    folder, minutes = trained("connect_four_selfplay", keep)
    act, kwargs = policy_of(folder), kwargs_of(folder)
    heuristic = PLAYERS["connect_four"]["heuristic"]
    return [
        Row("self-play, connect four, score against random",
            score("connect_four", act, random_player, 4_000, **kwargs), "", 0.99,
            detail=f"4,000 games, seats balanced; trained in {minutes:.1f} min"),
        Row("self-play, connect four, score against the heuristic",
            score("connect_four", act, heuristic, 4_000, **kwargs), "", detail="4,000 games, seats balanced"),
        Row("self-play, connect four, score against OpenSpiel's MCTS of 50 simulations",
            others.against_mcts(act, **kwargs), "", 0.6, detail=f"{others.MCTS_GAMES} games, seats balanced"),
        *solved.rows(act, **kwargs),
    ]  # fmt: skip


def ludo(keep: Path | None) -> list[Row]:
    """4,000 games each against random and the heuristic, seats balanced."""
    from trainer.envs.games.players import PLAYERS, random_player

    folder, minutes = trained("ludo_selfplay", keep)
    act, kwargs = policy_of(folder), kwargs_of(folder)
    heuristic = PLAYERS["ludo"]["heuristic"]
    return [
        Row("self-play, Ludo, won against random", score("ludo", act, random_player, 4_000, **kwargs), "", 0.92,
            detail=f"4,000 games, seats balanced; trained in {minutes:.1f} min"),
        Row("self-play, Ludo, won against the heuristic", score("ludo", act, heuristic, 4_000, **kwargs), "", 0.52,
            detail="4,000 games, seats balanced"),
    ]  # fmt: skip


def leduc(keep: Path | None) -> list[Row]:
    """Exploitability."""
    return others.leduc(*trained("leduc_selfplay", keep))


def main() -> None:
    arguments = parser("Self-play.", seconds=10.0)
    parts = {"tictactoe": tictactoe, "connect_four": connect_four, "ludo": ludo, "leduc": leduc, "ten": others.ten}
    names = ["speed", "sleeping", *parts]
    arguments.add_argument("--only", nargs="*", choices=names, default=names)
    arguments.add_argument("--workers", type=int, default=46, help="of the games that sleep")
    arguments.add_argument("--sleep-s", type=float, default=0.2, help="of each step of a worker's games")
    arguments.add_argument("--keep", type=Path, help="runs that are here already are not trained again")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    if "speed" in args.only:
        rows += speed(args.seconds)
    if "sleeping" in args.only:
        rows += sleeping(max(args.seconds, 120.0), args.workers, args.sleep_s)
    for name, measure in parts.items():
        if name in args.only:
            rows += measure(args.keep)
    show("Self-play", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
