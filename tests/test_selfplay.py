"""The pool of past selves: one copy of its weights, one forward pass for all, nothing silently something else."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.algorithms import make_policy
from trainer.config.algorithms import DQNConfig
from trainer.config.fields import ConfigError
from trainer.config.sections import Config, EnvConfig, EvaluatorConfig, LearnerConfig, OpponentsConfig
from trainer.envs import EnvError
from trainer.envs.games import GAMES
from trainer.envs.selfplay import SelfPlay
from trainer.memory.weights import WeightsBoard, flatten_parameters
from trainer.run_folder import checkpoint
from trainer.selfplay.opponents import PoolOpponents, shares
from trainer.selfplay.pool import CHECKPOINTS, LATEST, LOSS, SNAPSHOTS, WIN, OpponentPool, open_pool
from trainer.telemetry.rows import kind as kind_of_row
from trainer.training.train import train

GAME = {"id": "tictactoe", "backend": "game"}


def config_of(**opponents: Any) -> Config:
    return Config(
        env=EnvConfig(**GAME), algorithm=DQNConfig(hidden_sizes=[16]), learner=LearnerConfig(),
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
    opponents = PoolOpponents(config, game.spec, pool, board.reader().pull, 0, 12, [1])
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


def test_all_snapshots_are_met_however_many_games_are_played_at_a_time() -> None:
    config = config_of(random=0, latest=0, snapshots=1, active=2, pool_size=6)
    pool, flats, board, game = filled(config, 6)
    world = SelfPlay(game, PoolOpponents(config, game.spec, pool, board.reader().pull, 0, 12, [1]))
    opponents, met = world.opponents, np.zeros(6, np.int64)
    (seen,) = world.reset(0)
    for _ in range(2_000):
        for member in np.unique(opponents.member[opponents.kind == SNAPSHOTS]):
            assert torch.equal(opponents._members[member], flats[opponents._slots[member]])
        met[np.unique(opponents._slots[opponents.member])] += 1
        ((seen, *_),) = world.step([seen["action_mask"].argmax(1)])
    assert (met > 300).all()  # of 667, were they met by turns


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


def test_a_snapshot_that_no_checkpoint_names_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    """Its file is there where a run died between the pool's files and the checkpoint."""
    pool = OpponentPool(OpponentsConfig(pool_size=3), 2, 1)
    pool.add(torch.ones(2), 100)
    kept = pool.state_dict()
    pool.save(tmp_path)
    pool.add(torch.full((2,), 7.0), 200)
    pool.save(tmp_path)
    again = OpponentPool(OpponentsConfig(pool_size=3), 2, 1)
    again.load(tmp_path, kept, pytest.fail)
    again.add(torch.full((2,), 8.0), 200)
    again.save(tmp_path)
    third = OpponentPool(OpponentsConfig(pool_size=3), 2, 1)
    third.load(tmp_path, again.state_dict(), pytest.fail)
    assert third.weights.tolist() == [[1.0, 1.0], [8.0, 8.0], [0.0, 0.0]]


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


def test_chances_are_drawn_by_while_they_are_written() -> None:
    """A worker that looks between two writes, where no chance is above 0, waits for the second one."""
    pool = OpponentPool(OpponentsConfig(random=0, latest=1, snapshots=0), 10, 1)
    pool.mixture[LATEST] = 0.0
    writer = threading.Timer(0.05, lambda: pool.mixture.__setitem__(SNAPSHOTS, 1.0))
    writer.start()
    assert shares(pool.mixture).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]
    writer.join()


def test_kinds_are_mixed_by_a_schedule_over_the_budget() -> None:
    section = OpponentsConfig(
        random=0.8, random_end=0.0, latest=0.2, snapshots=0.0, snapshots_end=0.6, scripted_end=0.2, pool_size=2
    )
    pool = OpponentPool(section, 10, 1)
    pool.add(torch.zeros(10), 5)
    for done, expected in (
        (0.0, [0.8, 0.0, 0.2, 0.0, 0.0]), (0.5, [0.4, 0.1, 0.2, 0.3, 0.0]), (1.0, [0.0, 0.2, 0.2, 0.6, 0.0]),
        (1.2, [0.0, 0.2, 0.2, 0.6, 0.0]),  # frames of the last step beyond the budget
    ):  # fmt: skip
        pool.rebalance(done)
        assert pool.mixture.tolist() == pytest.approx(expected)
    pool.add(torch.zeros(10), 6)  # a new snapshot leaves it where it was
    assert pool.mixture.tolist() == pytest.approx(expected)


def test_the_mixture_moves_while_nothing_is_logged(small_config: Callable[..., Config]) -> None:
    opponents = {"random": 1.0, "random_end": 0.0, "latest": 0.0, "latest_end": 1.0, "snapshots": 0.0}
    config = small_config(
        env=GAME, budget_frames=4_000, opponents=opponents, evaluator={"league_games": 0},
        logger={"terminal": "none", "every_seconds": 1_000},
    )  # fmt: skip
    train(config, [])
    rows = (Path(str(config.run_dir)) / "metrics.jsonl").read_text().splitlines()
    (row,) = [row for row in map(json.loads, rows) if kind_of_row(row) == "training"]
    assert row["games_random"] > 0 and row["games_latest"] > 0


def test_checkpoints_of_other_runs_stay_in_the_pool_and_are_played(tmp_path: Path) -> None:
    config = config_of(random=0, latest=0, snapshots=0.5, checkpoints=0.5, epsilon=0.0, pool_size=2, active=4)
    _, flats, board, game = filled(config_of(), 5)
    for number in (3, 4):
        checkpoint.write_aside({"weights": flats[number], "frames": 7}, tmp_path / f"{number}.pt")
    config = replace(
        config, opponents=replace(config.opponents, checkpoint_paths=[str(tmp_path / f"{n}.pt") for n in (3, 4)])
    )
    pool = open_pool(config, tmp_path / "run", flats[0].numel(), 1)
    for number in range(3):
        pool.add(flats[number], number + 1)
    assert len(pool) == 2 and pool.frames.tolist() == [3, 2, 0, 0]
    assert torch.equal(pool.weights, torch.stack([flats[2], flats[1], flats[3], flats[4]]))
    assert pool.chances.tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5])
    opponents = PoolOpponents(config, game.spec, pool, board.reader().pull, 0, 12, [1])
    game.reset(0)
    opponents.draw(game, np.arange(12))
    for kind, slots in ((SNAPSHOTS, {0, 1}), (CHECKPOINTS, {2, 3})):
        members = np.unique(opponents.member[opponents.kind == kind])
        assert set(opponents._slots[members].tolist()) == slots
        for member in members:
            assert torch.equal(opponents._members[member], pool.weights[opponents._slots[member]])
    assert not opponents.own.any()
    while not game.over.all():
        game.step(opponents.act(game, np.arange(12)))
    opponents.ended(game, np.arange(12), np.zeros(12, np.int64))
    figures = pool.metrics()
    checkpoints = int((opponents.kind[:, 1] == CHECKPOINTS).sum())
    assert 0 < checkpoints < 12
    assert (figures["games_checkpoints"], figures["games_snapshots"]) == (checkpoints, 12 - checkpoints)


def test_a_snapshot_that_another_one_replaced_is_not_taken_for_it() -> None:
    config = config_of(random=0, latest=0, snapshots=1, pool_size=1, active=2)
    pool, flats, board, game = filled(config, 1)
    opponents = PoolOpponents(config, game.spec, pool, board.reader().pull, 0, 12, [1])
    game.reset(0)
    rows = np.arange(12)
    opponents.draw(game, rows[:6])
    opponents.draw(game, rows[6:])
    assert set(opponents.member.ravel().tolist()) == {1} and torch.equal(opponents._members[1], flats[0])
    pool.add(flats[1], 2_000)
    opponents.draw(game, rows[6:])  # the others go on against the old one
    assert set(opponents.member[6:].ravel().tolist()) == {2} and torch.equal(opponents._members[2], flats[1])
    game.over[:], game.winner[:] = True, 0
    opponents.ended(game, rows, np.zeros(12, np.int64))
    assert pool.results[0, 3].tolist() == [6, 0, 0]  # of the new one alone


def test_the_pool_begins_with_the_policy_that_the_user_names(
    small_config: Callable[..., Config], tmp_path: Path
) -> None:
    sections = {"env": GAME, "budget_frames": 600, "schedule": {"name": "sequential"}}
    first = small_config("first", **sections)
    train(first, [])
    policy = Path(str(first.run_dir)) / "best" / "policy.safetensors"
    opponents = {"random": 0.0, "latest": 0.0, "snapshots": 1.0, "start_from": str(policy)}
    config = small_config("second", **sections, opponents=opponents)
    train(config, [])
    kept = checkpoint.load(Path(str(config.run_dir)) / "pool" / "snapshot_000000000000.pt")
    assert torch.equal(kept["weights"], checkpoint.load(policy)["weights"])
    rows = (Path(str(config.run_dir)) / "metrics.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, rows) if "pool_size" in row][-1]
    assert "games_latest" not in last and last["games_snapshots"] > 50


@pytest.mark.parametrize("key", ["start_from", "checkpoint_paths"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there is no checkpoint {}"), (b"torn", "checkpoint {} is torn"),
        ({"weights": torch.zeros(3)}, "{} has 3 weights where the agent's network has"),
        ({"frames": 3}, "{} holds no policy"), ({"weights": {"0": 1}}, "{} holds no policy"),
        (torch.zeros(3), "{} is another kind of checkpoint"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_taken_is_refused(
    key: str, content: Any, why: str, small_config: Callable[..., Config], tmp_path: Path
) -> None:
    path = tmp_path / "policy.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:  # as another program may save it
        torch.save(content, path)
    value = str(path) if key == "start_from" else [str(path)]
    config = small_config(env=GAME, opponents={key: value, "checkpoints": 0.1})
    with pytest.raises(ConfigError, match=f"opponents.{key}: {why.format(path)}"):
        train(config, [])


@pytest.mark.parametrize("section", [{"scripted": 0.1}, {"scripted_end": 0.1}, {"evaluate_against": "scripted"}])
def test_a_scripted_player_that_is_not_there_is_missed_before_anything_starts(
    section: dict[str, Any], small_config: Callable[..., Config]
) -> None:
    game = {"id": "kuhn_poker", "backend": "openspiel"}
    with pytest.raises(EnvError, match="kuhn_poker: there is no scripted player of a game with hidden cards; set opp"):
        train(small_config(env=game, opponents=section), [])


def test_results_are_counted_by_opponent() -> None:
    config = config_of(random=1, latest=0, snapshots=0)
    pool, _, board, game = filled(config, 0)
    world = SelfPlay(game, PoolOpponents(config, game.spec, pool, board.reader().pull, 1, 12, [1]))
    rng, ended, won = np.random.default_rng(0), 0, 0
    (seen,) = world.reset(0)
    for _ in range(100):
        mask = seen["action_mask"]
        ((seen, reward, terminated, _),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        ended += int(terminated.sum())
        won += int((reward[terminated] == 1).sum())
    assert pool.results[1, 0].sum() == ended > 100 and pool.results[1, 0, WIN] == won
    assert pool.results.sum() == ended
    figures = pool.metrics()
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
    games = checkpoint.load(folder / "checkpoints" / "run.pt")["run"]["pool"]["results"].sum().item()
    paths[1].write_bytes(b"torn")
    paths[2].unlink()
    train(replace(config, resume=config.run_dir, budget_frames=3_400), [])
    log = (folder / "log.txt").read_text()
    assert f"warning: checkpoint {paths[1]} is torn" in log and "the other snapshots are used" in log
    assert f"warning: there is no checkpoint {paths[2]}" in log
    left = sorted((folder / "pool").glob("snapshot_*.pt"))
    assert 2 <= len(left) <= 3 and {paths[0].name, paths[3].name} <= {path.name for path in left}
    kept = checkpoint.load(folder / "checkpoints" / "run.pt")["run"]["pool"]["results"].sum().item()
    assert kept > 0.5 * games  # those against the others
