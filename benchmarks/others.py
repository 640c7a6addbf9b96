"""Games and players of other libraries: ten games with one setting, connect four against a tree search, Leduc."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Row

TEN = [
    ("pettingzoo", "classic/tictactoe_v3"),
    ("pettingzoo", "classic/connect_four_v3"),
    ("pettingzoo", "classic/leduc_holdem_v4"),
    ("openspiel", "kuhn_poker"),
    ("openspiel", "leduc_poker"),
    ("openspiel", "liars_dice"),
    ("openspiel", "breakthrough(rows=6,columns=6)"),
    ("openspiel", "hex(board_size=5)"),
    ("openspiel", "othello"),
    ("openspiel", "mancala"),
]
# One setting for all of them.
WORDS = (
    "preset=generic", "budget_frames=40_000", "algorithm.gamma=1.0", "algorithm.n_step=3", "algorithm.target_tau=0.01",
    "algorithm.hidden_sizes=[128,128]", "collector.envs_per_worker=32", "collector.epsilon_end=0.1",
    "collector.epsilon_decay_frames=20_000", "replay.capacity_frames=60_000", "learner.batch_size=128",
    "learner.learning_rate=5e-4", "learner.warmup_frames=2_000", "schedule.frames_per_update=8",
    "opponents.random=0.5", "opponents.latest=0.25", "opponents.snapshots=0.25",
    "opponents.snapshot_every_frames=10_000", "evaluator.every_frames=20_000", "evaluator.episodes=200",
    "evaluator.num_envs=100", "evaluator.final_episodes=200", "evaluator.league_games=0",
    "logger.terminal=none",
)  # fmt: skip
GAMES_PLAYED = 1_000
MCTS_GAMES = 400


def ten(keep: Path | None) -> list[Row]:
    """Lower 95 % bounds of the score against random players, (1 + return / largest return) / 2: draws count half."""
    rows = []
    for backend, env_id in TEN:
        name = env_id.partition("(")[0].replace("/", "_")
        folder = (keep or Path(tempfile.mkdtemp())) / f"{backend}_{name}"
        words = [f"env.backend={backend}", f'env.id="{env_id}"', f"run_dir={folder}", "resume=auto", *WORDS]
        if not (folder / "summary.json").exists():
            command = [sys.executable, "-m", "trainer.run", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        minutes = json.loads((folder / "summary.json").read_text())["wall_s"] / 60
        command = [sys.executable, "-m", "trainer.eval", str(folder), f"--episodes={GAMES_PLAYED}", "--num-envs=100"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        most = max(abs(found["eval_return_min"]), abs(found["eval_return_max"]))
        mean, spread = found["eval_return_mean"] / most, found["eval_return_std"] / most
        score, error = (1 + mean) / 2, 1.96 * spread / 2 / math.sqrt(found["episodes"])
        detail = f"score {score:.3f} in {found['episodes']:,} games, seats balanced; trained {minutes:.1f} min"
        name = f"self-play, {backend} {env_id}, score against random, lower 95 % bound"
        rows.append(Row(name, score - error, "", 0.5, detail=detail))
    return rows


def against_mcts(act: Callable[[Any, np.ndarray], np.ndarray], games: int = MCTS_GAMES, **kwargs: Any) -> float:
    """Score in connect four against OpenSpiel's tree search, seats balanced.

    Args:
        act: `(game, rows) -> actions`, of our game.
        games: how many are played; the search follows each in OpenSpiel's own game.
        kwargs: of our game.
    """
    from trainer.envs.games import GAMES
    from trainer.envs.games.openspiel import OpenSpielGames, mcts_player

    ours, theirs = GAMES["connect_four"](games, **kwargs), OpenSpielGames(games, "connect_four")
    seats, rng, actions = np.arange(games) % 2, np.random.default_rng(5), np.zeros(games, np.int64)
    ours.reset(0)
    while not ours.over.all():
        mine = np.flatnonzero(~ours.over & (ours.to_move == seats))
        searched = np.flatnonzero(~ours.over & (ours.to_move != seats))
        if len(mine):
            actions[mine] = act(ours, mine)
        if len(searched):
            actions[searched] = mcts_player(theirs, rng, searched)
        ours.step(actions)
        theirs.step(actions)
    assert (ours.winner == theirs.winner).all()
    return float(np.mean(np.where(ours.winner < 0, 0.5, ours.winner == seats)))


def leduc(folder: Path, minutes: float) -> list[Row]:
    """Exploitability of the last policy, and of the average of the pool's policies."""
    from benchmarks.exploitability import exploitabilities

    found = exploitabilities(folder)
    return [
        Row("self-play, Leduc, exploitability of the average of the pool's policies", found["average"], "", 1.0, True,
            detail=f"{found['snapshots']:.0f} snapshots; uniform policy {found['uniform']:.2f}; {minutes:.1f} min"),
        Row("self-play, Leduc, exploitability of the last policy", found["last"], "", detail="of that run"),
    ]  # fmt: skip
