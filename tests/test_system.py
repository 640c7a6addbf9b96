"""The whole pipeline in its real processes, on the counting environment: every number is known before."""

from __future__ import annotations

import csv
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from trainer.acting.exploration import linear_epsilon
from trainer.api import sources
from trainer.config.run_config import from_yaml
from trainer.config.schedules import SCHEDULES
from trainer.config.sections import Config
from trainer.envs.counting import episode_length, expected_reward, is_truncation, legal_actions
from trainer.host.errors import RunFailed
from trainer.host.seeds import SEEDS_PER_RUN
from trainer.run_folder import checkpoint
from trainer.training.system import System
from trainer.training.train import train

NUM_ACTIONS = 4
GAMMA = 0.9
COUNTING = {"num_actions": NUM_ACTIONS, "with_mask": True, "min_length": 1, "max_length": 9, "truncated_share": 0.4}
STEP = 8  # frames of one vector step of all workers


def counting_config(small_config: Callable[..., Config], n_step: int, **sections: dict[str, Any]) -> Config:
    return small_config(
        seed=3, budget_frames=3_000, env={"kwargs": COUNTING},
        algorithm={"n_step": n_step, "gamma": GAMMA, "hidden_sizes": [16]},
        replay={"capacity_frames": 1_600},  # rings of 200 rows: the streams run round them twice
        **sections,
    )  # fmt: skip


def length_of(stream: np.ndarray, episode: np.ndarray) -> np.ndarray:
    return episode_length(stream, episode, COUNTING["min_length"], COUNTING["max_length"])


def wrong_rows(batch: dict[Any, torch.Tensor], config: Config) -> list[str]:
    """Names of the columns [B, ...] of a sampled batch that are not what the environment's functions say."""
    columns = {key: tensor.numpy() for key, tensor in batch.items()}
    stream, episode, step, _ = columns["observation"].astype(np.int64).T
    length, n = length_of(stream, episode), config.algorithm.n_step
    count = np.minimum(n, length - step)  # rewards in the return
    ends = step + count == length
    cut = is_truncation(stream, episode, COUNTING["truncated_share"])
    after = np.arange(n)
    rewards = expected_reward(stream[:, None], episode[:, None], step[:, None] + 1 + after)
    returns = (rewards.astype(np.float64) * GAMMA**after * (after < count[:, None])).sum(1)
    action, following = columns["action"], columns["next", "observation"].astype(np.int64)
    legal = legal_actions(stream, episode, step, NUM_ACTIONS)
    holds = {
        "a start is no final observation": step < length,
        "stream": stream == config.seed * SEEDS_PER_RUN + columns["stream"],
        "reward": np.abs(columns["next", "reward"][:, 0] - returns) < 1e-4,
        "next": (following[:, :3] == np.stack([stream, episode, step + count], 1)).all(1),
        "next, last action": (following[:, 3] == action) | (count > 1),
        "terminated": columns["next", "terminated"][:, 0] == (ends & ~cut),
        "truncated": columns["next", "truncated"][:, 0] == (ends & cut),
        "done": columns["next", "done"][:, 0] == ends,
        "action is legal": legal[np.arange(len(action)), action],
        "mask": (columns["action_mask"] == legal).all(1),
        "next mask": (columns["next", "action_mask"] == legal_actions(stream, episode, step + count, NUM_ACTIONS)).all(
            1
        ),
    }
    if n > 1:
        holds["steps"] = columns["steps_to_next_obs"][:, 0] == count
    return [name for name, right in holds.items() if not right.all()]


def episodes_of(stream: int, rows: int) -> list[tuple[float, int]]:
    """(return, length) of the episodes that are over when a stream has written so many rows, one more for each end."""
    found: list[tuple[float, int]] = []
    while rows > 0:
        episode = np.array(len(found))
        length = int(length_of(np.array(stream), episode))
        if rows >= length:
            found.append((float(expected_reward(stream, episode, np.arange(1, length + 1)).sum()), length))
        rows -= length + 1
    return found


def frames_of(stream: int, rows: int) -> int:
    """Transitions among a stream's first rows: all but the final observations."""
    frames, episode = 0, 0
    while rows > 0:
        length = int(length_of(np.array(stream), np.array(episode)))
        frames += min(rows, length)
        rows -= length + 1
        episode += 1
    return frames


def watched(system: System, config: Config) -> dict[str, list[Any]]:
    """Run the schedule `async` to its end and note, update by update and turn by turn, what should hold."""
    seen: dict[str, list[Any]] = {"wrong": [], "ends": [], "streams": [], "turns": [], "epsilon": []}
    (agent,) = system.learners.local
    update = agent.updater.update

    def checked(batch: dict[Any, torch.Tensor]) -> torch.Tensor:
        seen["wrong"] += wrong_rows(batch, config)
        seen["ends"].append(int(batch["next", "terminated"].sum()) + 1j * int(batch["next", "truncated"].sum()))
        seen["streams"] += batch["stream"].tolist()
        return update(batch)

    agent.updater.update = checked  # type: ignore[method-assign]
    system.publish()
    for _ in SCHEDULES["async"].turns(system):
        epsilon, frames = system.plans[0].board.epsilon.copy(), system.total_frames()
        seen["turns"].append((frames, system.learners.local[0].limiter.updates))
        if frames:
            seen["epsilon"].append((*epsilon, linear_epsilon(config.collector, frames)))
        system.check()
    return seen


@pytest.mark.parametrize("n_step", [1, 3])
def test_every_sampled_transition_of_the_pipeline_is_right(
    n_step: int, small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    config = counting_config(small_config, n_step)
    system = started(config)
    seen = watched(system, config)
    system.close()
    frames, updates = system.total_frames(), system.learners.local[0].limiter.updates

    assert seen["wrong"] == []
    assert len(seen["streams"]) == updates * 32
    assert set(seen["streams"]) == set(range(STEP))
    ends = sum(seen["ends"])
    assert ends.real > 100
    assert ends.imag > 100

    # The budget, to one vector step of all workers; every update that it is owed.
    assert 3_000 <= frames < 3_000 + STEP
    assert (3_000 - 200) // 4 <= updates <= (frames - 200) // 4
    turns = np.array(seen["turns"])
    assert (turns[:, 1] <= np.maximum(0, turns[:, 0] - 200) // 4).all()  # learning does not run ahead
    assert (turns[:, 0] <= 200 + 4 * (turns[:, 1] + 1) + 64 + STEP).all()  # nor does collection, beyond the tolerance
    assert abs(updates / (frames - 200) - 1 / 4) < 0.003  # the replay ratio

    # Epsilon falls with the frames of all workers, and has arrived.
    epsilon = np.array(seen["epsilon"])
    assert epsilon[0].max() > 0.4
    assert epsilon[-1].min() == 0.05
    epsilon = epsilon[(epsilon > 0).all(1)]  # from where both workers have begun
    assert (np.diff(epsilon, axis=0) <= 0).all()
    assert (epsilon[:, :2] >= epsilon[:, 2:]).all()  # a worker's was set before the frames were counted


def test_what_the_collectors_count_and_store_is_right(
    small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    config = counting_config(small_config, 1, learner={"warmup_frames": 2_900})
    system = started(config)
    for _ in SCHEDULES["async"].turns(system):
        system.check()
    system.close()
    board, streams = system.plans[0].board, system.plans[0].streams
    first = config.seed * SEEDS_PER_RUN
    for worker in (0, 1):
        rows = {first + stream: int(board.cursor[stream]) for stream in range(4 * worker, 4 * worker + 4)}
        assert board.frames[worker] == sum(frames_of(stream, count) for stream, count in rows.items())
        expected = sorted(episode for stream, count in rows.items() for episode in episodes_of(stream, count))
        done = int(board.episodes_done[worker])
        assert [tuple(row[:2]) for row in sorted(board.episodes[worker, :done].tolist())] == expected

    assert board.episodes_done.sum() > 200  # together: how two workers share the frames is a matter of speed

    # Every row that is still stored is the one that its place in time stands for, final rows among them.
    columns = system.learners.local[0].replay.storage.columns
    taken = set()
    for stream in range(streams.num_streams):
        end = int(board.cursor[stream])
        time = np.arange(max(0, end - streams.ring), end)
        rows = streams.index(np.full(len(time), stream), time)
        number, episode, step, _ = columns["observation"][rows].astype(np.int64).T
        length = length_of(number, episode)
        before = np.r_[0, np.cumsum(length_of(np.array(first + stream), np.arange(episode.max() + 1)) + 1)]
        assert (number == first + stream).all()
        assert (time == before[episode] + step).all()
        assert (columns["final"][rows] == (step == length)).all()
        starts = rows[step < length]
        assert columns["action_mask"][starts, columns["action"][starts]].all()
        taken |= set(columns["action"][starts].tolist())
    assert taken == set(range(NUM_ACTIONS))


def test_ladder_gives_every_environment_its_own_epsilon(
    small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    ladder = {"num_workers": 2, "envs_per_worker": 4, "exploration": "apex", "apex_epsilon": 0.4, "apex_alpha": 7.0}
    system = started(small_config(collector=ladder))
    for _ in SCHEDULES["async"].turns(system):
        system.check()
    # Horgan et al. 2018: 0.4 ** (1 + 7 i / 7) for i = 0 .. 7
    expected = [np.mean([0.4 ** (1 + i) for i in worker]) for worker in ((0, 1, 2, 3), (4, 5, 6, 7))]
    assert system.plans[0].board.epsilon == pytest.approx(expected)


# --- the run's folder ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, make_config: Callable[..., Config]
) -> tuple[Path, dict[str, Any], Config]:
    """A finished run of the schedule `async` with evaluations: its folder, its summary, and what it was asked for."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = make_config(
        folder, seed=5, env={"kwargs": {"max_length": 10}}, evaluator={"every_frames": 300, "final_episodes": 7}
    )
    return folder, train(config, ["python", "-m", "trainer.run", "env.id=Counting"]), config


def test_run_leaves_the_promised_files(run: tuple[Path, dict[str, Any], Config]) -> None:
    folder, _, _ = run
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kept = {name for name in left if name.startswith("replay/2x4x500/")}
    assert {Path(name).name for name in kept} == {
        "upto.json", "observation.bin", "action.bin", "reward.bin", "terminated.bin", "truncated.bin", "final.bin",
        "checksums.bin",
    }  # fmt: skip
    numbered = {str(path.relative_to(folder)) for path in checkpoint.numbered(folder / "checkpoints")}
    assert len(numbered) == 1
    assert left - numbered - kept == {
        "config.yaml", "command.txt", "versions.json", "metrics.jsonl", "metrics.csv", "curve.png", "log.txt",
        "summary.json", "best/policy.safetensors", "last/policy.safetensors", "checkpoints/run.pt", "lock",
        "manifest.txt", "output/collector_0.txt", "output/collector_1.txt", "output/evaluator.txt",
    }  # fmt: skip
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (folder / "command.txt").read_text() == "python -m trainer.run env.id=Counting\n"
    versions = json.loads((folder / "versions.json").read_text())
    assert versions["seed"] == 5
    assert versions["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert versions["python"] == sys.version.split()[0]


def test_config_reads_back_into_the_same_config(run: tuple[Path, dict[str, Any], Config]) -> None:
    folder, _, config = run
    assert from_yaml(folder / "config.yaml") == config
    assert yaml.safe_load((folder / "config.yaml").read_text())["collector"]["num_workers"] == 2


def test_summary_holds_the_promised_keys(run: tuple[Path, dict[str, Any], Config]) -> None:
    folder, returned, _ = run
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == returned
    expected = {
        "env_id": "Counting", "algorithm": "dqn", "seed": 5, "status": "finished", "reason": "the budget is used up",
        "eval_episodes": 7, "stop_signal": None,
    }  # fmt: skip
    assert {key: summary[key] for key in expected} == expected
    assert 1_000 <= summary["frames"] < 1_000 + STEP
    assert summary["updates"] == pytest.approx((summary["frames"] - 200) / 4, abs=3)
    assert summary["frames_per_s"] == pytest.approx(summary["frames"] / summary["wall_s"])
    assert summary["updates_per_s"] == pytest.approx(summary["updates"] / summary["wall_s"])
    assert summary["wall_s"] < summary["total_s"]


def test_final_evaluation_is_that_of_the_environment(run: tuple[Path, dict[str, Any], Config]) -> None:
    """Returns of the counting environment do not depend on the policy: 2 environments play 4 and 3 episodes."""
    _, summary, _ = run
    first = 5 * SEEDS_PER_RUN + 500_000
    final = [episode for env, count in ((0, 4), (1, 3)) for episode in episodes_with_length_10(first + 2 + env, count)]
    assert summary["eval_return_mean"] == pytest.approx(np.mean(final))
    assert summary["eval_return_std"] == pytest.approx(np.std(final))
    assert summary["eval_last_return_mean"] == summary["eval_return_mean"]


def test_evaluator_process_answers_with_the_returns_of_the_environment(
    small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    system = started(small_config(env={"kwargs": {"max_length": 10}}))
    expected = [episode for env in (0, 1) for episode in episodes_with_length_10(500_000 + env, 2)]
    best = []
    for frames in (123, 456):
        system.plans[0].board.frames[:] = (frames - 1, 1)
        system.evaluator.request()
        evaluation, deadline = None, time.monotonic() + 60
        while evaluation is None and time.monotonic() < deadline:
            evaluation = system.evaluator.poll()
        assert evaluation is not None
        assert evaluation.frames == frames
        assert sorted(evaluation.returns) == sorted(expected)
        best.append(evaluation.best)
    assert best == [True, True]  # of equal ones the newest is kept
    kept = checkpoint.load(system.run_dir / "best" / "policy.safetensors")
    assert (kept["frames"], kept["eval_return_mean"]) == (456, pytest.approx(np.mean(expected)))


def episodes_with_length_10(stream: int, count: int) -> list[float]:
    """Returns of a stream's first episodes of at most 10 steps."""
    return [
        float(expected_reward(stream, episode, np.arange(1, int(episode_length(stream, episode, 1, 10)) + 1)).sum())
        for episode in range(count)
    ]


def test_metrics_parse_and_end_with_the_run(run: tuple[Path, dict[str, Any], Config]) -> None:
    folder, summary, _ = run

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "updates" in row][-1]  # behind it comes the evaluation of the last policy
    assert (last["frames"], last["updates"]) == (summary["frames"], summary["updates"])
    assert last["episodes"] == summary["episodes"]
    assert last["replay_ratio"] == pytest.approx(last["updates"] / (last["frames"] - 200))
    assert last["replay_fill"] == pytest.approx(0.3, abs=0.05)  # 1,000 frames and their final rows in 4,000 rows
    counts = [(row["frames"], row["updates"]) for row in rows if "updates" in row]
    assert counts == sorted(counts)
    with open(folder / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert float(table[-1]["frames"]) == summary["frames"]


def test_policies_of_the_run_can_be_played(run: tuple[Path, dict[str, Any], Config]) -> None:
    folder, summary, _ = run
    for name in ("best", "last"):
        saved = sources.of_run(folder, name)
        config, players = saved.config, saved.players()
        assert players.networks[0](torch.zeros(3, 4)).shape == (3, players.specs[0].num_actions)
        assert config.env.id == "Counting"
    (path,) = checkpoint.numbered(folder / "checkpoints")
    state = checkpoint.load(path)
    assert (state["frames"], state["learner"]["updates"]) == (summary["frames"], summary["updates"])
    last = checkpoint.load(folder / "last" / "policy.safetensors")
    assert last["frames"] == summary["frames"]
    trained_values = [value for key, value in state["learner"]["loss"].items() if key.startswith("value_")]
    assert sorted(last["weights"].tolist()) == sorted(torch.cat([v.reshape(-1) for v in trained_values]).tolist())


# --- ends ------------------------------------------------------------------------------------------------------------


def test_run_ends_when_an_evaluation_is_good_enough(small_config: Callable[..., Config]) -> None:
    config = small_config(
        budget_frames=1_000_000,
        evaluator={"every_frames": 200, "stop_at_return": -1e6},
        schedule={"name": "sequential"},
    )
    summary = train(config, ["test"])
    assert (summary["status"], summary["reason"]) == ("finished", "evaluator.stop_at_return=-1e+06 was reached")
    assert summary["solved_frames"] <= summary["frames"] < 1_000
    assert 0 < summary["solved_s"] <= summary["wall_s"]


def test_the_thread_that_gathers_batches_ends_with_its_run(small_config: Callable[..., Config]) -> None:
    config = small_config(budget_frames=2_000, learner={"prefetch": True}, schedule={"name": "async"})
    assert train(config, ["prefetch"])["updates"] > 0
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("feed")] == []


def test_failing_environment_of_a_sequential_run_fails_it(small_config: Callable[..., Config]) -> None:
    config = small_config(schedule={"name": "sequential"}, env={"kwargs": {"raise_at_step": 60, "fault_stream": 4}})
    with pytest.raises(RunFailed, match=r"sub-environment 0 \(seed 4\) failed in step 60 of all"):
        train(config, ["test"])
    folder = Path(config.run_dir or "")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "asked for by raise_at_step" in summary["reason"]
    assert summary["frames"] > 0
    assert checkpoint.load(checkpoint.numbered(folder / "checkpoints")[-1])["frames"] == summary["frames"]
    assert list((folder / "scratch").iterdir()) == []
