"""The schedules `sync` and `sequential`: the same seed gives the same weights, bit by bit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config.resolving import resolve
from trainer.config.schedules import SCHEDULES
from trainer.config.sections import Config
from trainer.host.errors import RunFailed
from trainer.learning.feed import Feed
from trainer.run_folder import checkpoint
from trainer.training.train import train

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "cartpole": {"id": "CartPole-v1", "backend": "gymnasium"},
    "counting": {"kwargs": {"num_actions": 5, "with_mask": True, "max_length": 12}},
}
ROUNDS: dict[str, dict[str, Any]] = {
    "frames": {"frames_per_round": 128},
    "episodes": {"episodes_per_round": 6},
    "updates": {"frames_per_round": 64, "updates_per_round": 9, "frames_per_update": None},
}


def trained(config: Config) -> dict[str, Any]:
    """What a run's checkpoint holds."""
    summary = train(config, ["test"])
    assert summary["status"] == "finished"
    (path,) = checkpoint.numbered(Path(config.run_dir or "") / "checkpoints")
    state = checkpoint.load(path)
    assert state["frames"] == summary["frames"] >= config.budget_frames
    run = checkpoint.load(path.with_name("run.pt"))["run"]
    # Of the window of the last returns the count: it is filled worker after worker, whenever a row is written.
    return {**state, "episodes": run["episodes"]["agent_0"]["episodes"], "torch_rng": run["torch_rng"]}


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Paths of the entries of two nested states that are not bit-identical."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [where]
        return [path for key in one for path in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [where]
        return [path for i in range(len(one)) for path in differences(one[i], other[i], f"{where}/{i}")]
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [where]
    return [] if one == other or one != one else [where]


@pytest.mark.parametrize("rounds", ["frames", "episodes"])
@pytest.mark.parametrize("environment", ["cartpole", "counting"])
def test_sync_and_sequential_give_bit_identical_weights(
    environment: str, rounds: str, small_config: Callable[..., Config]
) -> None:
    def config(schedule: str) -> Config:
        return small_config(
            schedule, env=ENVIRONMENTS[environment], schedule={"name": schedule, **ROUNDS[rounds]},
            algorithm={"n_step": 3, "hidden_sizes": [16]},
        )  # fmt: skip

    sync, sequential = trained(config("sync")), trained(config("sequential"))
    assert sync["learner"]["updates"] == (sync["frames"] - 200) // 4 >= 200
    weights = [key for key in sync["learner"]["loss"] if key.endswith("weight")]
    assert len(weights) == 4  # two layers and their targets
    assert differences(sync, sequential) == []


@pytest.mark.slow  # tests/found/test_sync.py has a shorter one
def test_sync_repeats_itself_and_another_seed_differs(small_config: Callable[..., Config]) -> None:
    def config(name: str, seed: int) -> Config:
        schedule = {"name": "sync", **ROUNDS["updates"]}
        return small_config(name, seed=seed, env=ENVIRONMENTS["cartpole"], schedule=schedule)

    first, second, other = trained(config("a", 1)), trained(config("b", 1)), trained(config("c", 2))
    # Rounds of 64 rows, fewer frames where episodes end; 9 updates after each once 200 frames are there.
    assert first["frames"] <= 1_000 + 64
    assert first["learner"]["updates"] % 9 == 0
    assert differences(first, second) == []
    assert {path for path in differences(first, other) if path.endswith("weight")} == {
        f"/learner/loss/{key}" for key in first["learner"]["loss"] if key.endswith("weight")
    }


@pytest.mark.parametrize("agents", [1, 3])
def test_batches_of_a_round_are_prefetched_without_changing_a_bit(
    agents: int, small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one agent and of a stack; draws are uniform, so they do not depend on when priorities come back."""
    gather, threads = Feed.gather, []

    def watched(feed: Feed, count: int) -> Any:
        threads.append(threading.current_thread().name)
        return gather(feed, count)

    monkeypatch.setattr(Feed, "gather", watched)
    env = {"id": "Counting", "backend": "counting_agents", "kwargs": {"num_agents": agents}}

    def weights(prefetch: bool) -> torch.Tensor:
        config = small_config(
            f"prefetch_{prefetch}", env=env, schedule={"name": "sequential"},
            learner={"prefetch": prefetch, "prefetch_batches": 4},
        )  # fmt: skip
        train(config, ["test"])
        return checkpoint.load(Path(str(config.run_dir)) / "last" / "policy.safetensors")["weights"]

    plain, alone = weights(False), set(threads)
    assert torch.equal(plain, weights(True))
    assert alone == {"MainThread"} and {name.partition("_")[0] for name in threads} == {"MainThread", "feed"}


def test_weights_depend_on_what_is_learned(small_config: Callable[..., Config]) -> None:
    """The comparison above would find a single update more: equality is not for want of training."""
    base = {"name": "sequential", "frames_per_round": 128}
    one = trained(small_config("one", env=ENVIRONMENTS["cartpole"], schedule=base))
    more = trained(small_config("more", env=ENVIRONMENTS["cartpole"], schedule={**base, "frames_per_update": 3.9}))
    assert more["learner"]["updates"] > one["learner"]["updates"]
    assert any(path.endswith("weight") for path in differences(one["learner"], more["learner"]))


def test_rounds_of_games_are_a_few_games_of_each_worker_and_an_update_for_each(
    small_config: Callable[..., Config], started: Callable[[Config], Any]
) -> None:
    """4 games a worker and 2 workers: 8 updates a round, from the round on in which 200 frames are there."""
    game, rounds = {"id": "tictactoe", "backend": "game"}, {"frames_per_round": None}
    config = small_config("rounds", env=game, schedule={"name": "sequential", **rounds})
    system = started(resolve(config))
    board, seen = system.learners.local[0].board, []
    for whole in SCHEDULES["sequential"].turns(system):
        if whole:
            seen.append((board.total_frames(), board.episodes_done.copy(), int(board.updates[0])))
    frames, games, updates = zip(*seen, strict=True)
    assert frames[-1] >= 1_000 and len(seen) > 8
    warm = sum(so_far < 200 for so_far in frames)
    assert list(updates) == [0] * warm + [8 * (number + 1) for number in range(len(seen) - warm)]
    for before, after in itertools.pairwise([0 * games[0], *games]):
        assert (after - before >= 4).all() and (after - before <= 7).all()  # 4 games end in the last step at most

    sync, sequential = (
        trained(resolve(small_config(name, env=game, schedule={"name": name, **rounds})))
        for name in ("sync", "sequential")
    )
    assert sync["learner"]["updates"] == updates[-1]
    assert differences(sync, sequential) == []


def test_failing_worker_of_a_synchronous_run_is_named(small_config: Callable[..., Config]) -> None:
    config = small_config(schedule={"name": "sync"}, env={"kwargs": {"raise_at_step": 60, "fault_stream": 4}})
    told = r"collector worker 1 \(pid \d+, 4 x Counting, seeds from 4\) died after \d+ frames: .* in step 60 of all"
    with pytest.raises(RunFailed, match=told):
        train(config, ["test"])
