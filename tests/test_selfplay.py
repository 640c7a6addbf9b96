"""The pool of past selves: one copy of its weights, one forward pass for all, nothing silently something else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from envs.games import GAMES
from envs.selfplay import SelfPlay
from trainer import checkpoint
from trainer.agents import make_policy
from trainer.boards import WeightsBoard, flatten_parameters
from trainer.config import AlgorithmConfig, Config, EnvConfig, EvaluatorConfig, LearnerConfig, OpponentsConfig
from trainer.selfplay import LATEST, LOSS, SNAPSHOTS, WIN, OpponentPool, PoolOpponents
from trainer.train import train

GAME = {"id": "tictactoe", "backend": "game"}


def config_of(**opponents: Any) -> Config:
    return Config(
        env=EnvConfig(**GAME), algorithm=AlgorithmConfig(hidden_sizes=[16]), learner=LearnerConfig(),
        opponents=OpponentsConfig(**opponents), evaluator=EvaluatorConfig(),
    )  # fmt: skip


def filled(config: Config, count: int) -> tuple[OpponentPool, list[torch.Tensor], WeightsBoard, Any]:
    """A pool of so many snapshots, their weights, a board with the newest ones, and a game."""
    game = GAMES["tictactoe"](12)
    flats = []
    for seed in range(count + 1):
        torch.manual_seed(seed)
        flats.append(flatten_parameters(make_policy(config, game.spec)).clone())
    pool = OpponentPool(config.opponents, flats[0].numel(), 2)
    for number, flat in enumerate(flats[:-1]):
        pool.add(flat, 1_000 * (number + 1))
    board = WeightsBoard(flats[0].numel())
    actor = make_policy(config, game.spec)
    flatten_parameters(actor).copy_(flats[-1])
    from tensordict import TensorDict

    board.send(TensorDict.from_module(actor))
    return pool, flats, board, game


def test_all_opponents_act_in_one_pass_as_each_would_alone() -> None:
    config = config_of(random=0, latest=0.5, snapshots=0.5, epsilon=0.0, active=3, pool_size=8)
    pool, flats, board, game = filled(config, 5)
    opponents = PoolOpponents(config, game.spec, pool, board.reader(), 0, 12, [1])
    game.reset(0)
    rows = np.arange(12)
    opponents.draw(game, rows)
    kinds = opponents.kind[rows, 0]
    assert set(kinds.tolist()) == {LATEST, SNAPSHOTS}
    actions = opponents.act(game, rows)
    seen = game.observe(rows)
    for row in rows:
        actor = make_policy(config, game.spec)
        flat = flatten_parameters(actor)
        slot = opponents._slots[opponents.member[row, 0]]
        flat.copy_(flats[-1] if kinds[row] == LATEST else flats[slot])
        network = actor.module[0].module
        with torch.no_grad():
            values = network(torch.from_numpy(seen["observation"][row : row + 1]))
        assert int(values.argmax()) == actions[row]


def test_pool_is_shared_and_the_oldest_makes_room() -> None:
    config = config_of(pool_size=3, active=2)
    pool, flats, _, _ = filled(config, 5)
    assert sorted(pool.frames.tolist()) == [3_000, 4_000, 5_000] and len(pool) == 3
    copy = torch.zeros_like(flats[0])
    for slot, frames in enumerate(pool.frames):
        pool.copy(slot, copy)
        assert torch.equal(copy, flats[frames // 1_000 - 1])
    from multiprocessing.reduction import ForkingPickler

    data = ForkingPickler.dumps(pool)
    assert len(data) < 4_096  # handles of the shared memory, no weights
    other = pickle.loads(data)
    pool.weights[1, 0] = 123.0
    pool.results[1, 0, WIN] = 7
    assert other.weights[1, 0] == 123.0 and other.results[1, 0, WIN] == 7


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("uniform", [0.25, 0.25, 0.25, 0.25]),
        ("last", [0.0, 0.0, 0.5, 0.5]),
        # Won 9 of 10, 5 of 10, 0 of 10 and none played: (1 - rate) ** 2 with half a game's prior.
        ("pfsp", None),
    ],
)
def test_snapshots_are_drawn_as_asked_for(sampling: str, expected: list[float] | None) -> None:
    config = config_of(pool_size=6, sampling=sampling, last_k=2)
    pool, _, _, _ = filled(config, 4)
    for slot, won in ((0, 9), (1, 5), (2, 0)):
        pool.results[0, 3 + slot, [WIN, LOSS]] = won, 10 - won
    pool.rebalance()
    assert (pool.chances[4:] == 0).all()
    if expected is None:
        rates = np.array([9.5 / 11, 5.5 / 11, 0.5 / 11, 0.5])
        chances = (1 - rates) ** 2 + 1e-3
        expected = (chances / chances.sum()).tolist()
    assert pool.chances[:4].tolist() == pytest.approx(expected)


def test_without_a_snapshot_the_agent_plays_itself_not_something_else() -> None:
    pool = OpponentPool(OpponentsConfig(random=0.2, latest=0.3, snapshots=0.5), 10, 1)
    assert pool.mixture.tolist() == pytest.approx([0.2, 0.0, 0.8, 0.0, 0.0])
    pool.add(torch.zeros(10), 5)
    assert pool.mixture.tolist() == pytest.approx([0.2, 0.0, 0.3, 0.5, 0.0])


def test_results_are_counted_by_opponent() -> None:
    config = config_of(random=1, latest=0, snapshots=0)
    pool, _, board, game = filled(config, 0)
    world = SelfPlay(game, PoolOpponents(config, game.spec, pool, board.reader(), 1, 12, [1]))
    rng, ended, won = np.random.default_rng(0), 0, 0
    (seen,) = world.reset(0)
    for _ in range(100):
        mask = seen["action_mask"]
        ((seen, reward, terminated, _),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        ended += int(terminated.sum())
        won += int((reward[terminated] == 1).sum())
    assert pool.results[1, 0].sum() == ended > 100 and pool.results[1, 0, WIN] == won
    assert pool.results.sum() == ended
    figures = pool.figures()
    assert figures["games_random"] == ended and 0.4 < figures["score_random"] < 0.75


def test_a_run_keeps_its_pool_and_names_a_torn_snapshot(small_config: Callable[..., Config]) -> None:
    config = small_config(
        env=GAME, budget_frames=3_000, opponents={"snapshot_every_frames": 500, "pool_size": 4},
        evaluator={"every_frames": 1_000, "episodes": 20},
    )  # fmt: skip
    summary = train(config, [])
    folder = Path(str(config.run_dir))
    assert summary["status"] == "finished"
    paths = sorted((folder / "pool").glob("snapshot_*.pt"))
    assert len(paths) == 4
    frames = [checkpoint.load(path)["frames"] for path in paths]
    assert frames == sorted(frames) and frames[-1] >= 2_500
    row = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [r for r in row if "pool_size" in r][-1]
    assert last["pool_size"] == 4 and last["games_random"] > 50 and last["games_snapshots"] > 20
    paths[1].write_bytes(b"torn")
    train(replace(config, resume=config.run_dir, budget_frames=3_400), [])
    log = (folder / "log.txt").read_text()
    assert f"warning: checkpoint {paths[1]} is torn" in log and "the other snapshots are used" in log
    assert len(sorted((folder / "pool").glob("snapshot_*.pt"))) >= 3
