"""A run that is resumed: what it takes over, and what may change."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.resuming import ROOT, go_on, made_all_due, newest, rows_of, stop_at
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.sections import Config
from trainer.envs.counting import episode_length
from trainer.host.seeds import SEEDS_PER_RUN, SEEDS_PER_START
from trainer.learning.feed import flat
from trainer.run_folder import checkpoint, manifest
from trainer.run_folder import folder as run_folder
from trainer.training.train import train


@pytest.fixture(scope="module")
def stopped_run(make_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Config:
    """An asynchronous run of 20,000 frames that SIGTERM stopped after 2,500 or more."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    config = make_config(folder, budget_frames=20_000, checkpoint={"keep_last": 2, "save_every_seconds": 0.2})
    stop_at(folder, 2_500, signal.SIGTERM)
    assert train(config, ["first"])["stop_signal"] == signal.SIGTERM
    return config


@pytest.fixture
def stopped(stopped_run: Config, tmp_path: Path) -> Config:
    """A copy of it, for a test to go on with."""
    return replace(stopped_run, run_dir=shutil.copytree(str(stopped_run.run_dir), str(tmp_path / "run")))


def test_asynchronous_run_goes_on_without_a_burst(stopped: Config) -> None:
    assert stopped.run_dir
    folder = Path(stopped.run_dir)
    before, rows = newest(folder), rows_of(folder)
    summary = go_on(stopped, budget_frames=before["frames"] + 2_000)
    assert summary["status"] == "finished"
    frames, updates = summary["frames"], summary["updates"]
    assert before["frames"] + 2_000 <= frames < before["frames"] + 2_000 + 8
    # As if it had never been stopped; a worker's last vector step may come after the last update.
    assert (before["frames"] + 2_000 - 200) // 4 <= updates <= (frames - 200) // 4
    after = rows_of(folder)[len(rows) :]
    assert after[0]["frames"] >= before["frames"] and after[0]["wall_s"] > rows[-1]["wall_s"]
    for row in (
        own for own in after if "updates" in own
    ):  # at no moment more updates, or frames, than the limiter allows
        assert row["updates"] <= (row["frames"] - 200) // 4
        assert row["frames"] <= 200 + 4 * (row["updates"] + 1) + 64 + 8
    assert after[0]["episodes"] >= rows[-1]["episodes"]
    assert summary["wall_s"] > rows[-1]["wall_s"]
    assert (folder / "command.txt").read_text() == "first\nresume\n"


def test_replay_goes_on_where_it_was(stopped: Config, started: Callable[[Config], Any]) -> None:
    from trainer.training.resume import restore

    assert stopped.run_dir
    state = newest(Path(stopped.run_dir))
    system = built(stopped)
    restore(system)
    (agent,) = system.learners.local
    ring = agent.plan.streams.ring
    cursor = agent.board.cursor.copy()
    assert (cursor == np.repeat(state["replay"]["upto"], 4)).all()
    batch = flat(agent.replay.sample(200 * agent.replay.batch_size))
    stream, time = batch["stream"].numpy().ravel(), batch["time"].numpy().ravel()
    assert (time > cursor[stream] - ring).all()
    number, episode, step, _ = batch["observation"].numpy().reshape(-1, 4).astype(np.int64).T
    following = batch["next", "observation"].numpy().reshape(-1, 4).astype(np.int64).T
    assert (number == stopped.seed * SEEDS_PER_RUN + stream).all()
    assert (following[:3] == np.stack([number, episode, step + 1])).all()
    # Every transition but the one that each stream gave up was there before; those ends are truncated.
    ends = batch["next", "done"].numpy().ravel()
    closed = ends & (step + 1 < episode_length(number, episode))
    assert (time[closed] == cursor[stream[closed]] - 2).all()
    system.close()


def built(config: Config) -> Any:
    """The system of a run that goes on, not started."""
    from trainer import envs
    from trainer.host.signals import StopSignals
    from trainer.telemetry.loggers import Loggers
    from trainer.training.building import build

    assert config.run_dir
    folder = Path(config.run_dir)
    scratch = folder / "scratch" / "again"
    scratch.mkdir(parents=True)
    world, device = envs.describe_world(config.env), torch.device("cpu")
    return build(config, folder, world, device, scratch, Loggers({}, []), StopSignals(scratch))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "envs", "capacity"),
    [pytest.param(3, 4, 4_000, marks=pytest.mark.slow), (1, 2, 4_000), (2, 8, 800)],
)
def test_other_workers_go_on_with_the_same_rows(workers: int, envs: int, capacity: int, stopped: Config) -> None:
    from trainer.training.resume import restore

    changed = replace(
        stopped,
        collector=replace(stopped.collector, num_workers=workers, envs_per_worker=envs),
        replay=replace(stopped.replay, capacity_frames=capacity),
    )
    system = built(changed)
    restore(system)
    (agent,) = system.learners.local
    assert agent.board.total_frames() == sum(newest(Path(str(stopped.run_dir)))["frames_of_workers"])
    assert agent.board.cursor.sum() > min(capacity, 1_500) * 0.8
    batch = flat(agent.replay.sample(400 * agent.replay.batch_size))
    number, episode, step, _ = batch["observation"].numpy().reshape(-1, 4).astype(np.int64).T
    following = batch["next", "observation"].numpy().reshape(-1, 4).astype(np.int64).T
    assert (following[:3] == np.stack([number, episode, step + 1])).all()  # no transition leads over a seam
    system.close()
    summary = go_on(changed, budget_frames=agent.board.total_frames() + 1_000)
    assert summary["status"] == "finished"


def test_torn_checkpoint_falls_back_to_the_one_before(stopped: Config) -> None:
    assert stopped.run_dir
    folder = Path(stopped.run_dir)
    before, last = checkpoint.numbered(folder / "checkpoints")
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    frames = int(before.stem.removeprefix("frames_"))
    newest_frames = checkpoint.load(before)["frames_of_workers"]
    summary = go_on(stopped, budget_frames=frames + 2_000)
    assert summary["status"] == "finished"
    log = (folder / "log.txt").read_text()
    assert f"warning: checkpoint {last} is torn" in log
    assert f"goes on after {sum(newest_frames)} frames" in log


def test_without_its_replay_a_run_warms_up_anew_and_catches_up_with_nothing(stopped: Config) -> None:
    assert stopped.run_dir
    folder = Path(stopped.run_dir)
    for path in (folder / "replay").rglob("*.bin"):
        path.unlink()
    state = newest(folder)
    frames, updates = sum(state["frames_of_workers"]), state["limiter"]["updates"]
    summary = go_on(stopped, budget_frames=frames + 2_000)
    assert "the replay of agent_0 is gone" in (folder / "log.txt").read_text()
    assert made_all_due(summary["updates"] - updates, summary["frames"] - frames)


def test_second_resume_finds_no_transition_over_a_stop(small_config: Callable[..., Config]) -> None:
    """What a resume closes in memory reaches the disk, too."""
    config = small_config(budget_frames=1_500, replay={"capacity_frames": 16_000})
    train(config, [])
    for frames in (3_000, 4_500):
        go_on(config, budget_frames=frames)
    (folder,) = (Path(str(config.run_dir)) / "replay").iterdir()
    upto = json.loads((folder / "upto.json").read_text())["upto"]
    seen = np.fromfile(folder / "observation.bin", np.float32).reshape(2, 2_000, 4, 4).astype(np.int64)
    final = np.fromfile(folder / "final.bin", bool).reshape(2, 2_000, 4)
    starts, numbers = 0, set()
    for worker, count in enumerate(upto):
        for env in range(4):
            rows, last = seen[worker, :count, env], final[worker, :count, env]
            start = np.flatnonzero(~last[:-1])
            starts += len(start)
            assert (rows[start + 1, :3] == rows[start, :3] + [0, 0, 1]).all()
            numbers |= {number // SEEDS_PER_START for number in rows[:, 0].tolist()}
    assert starts > 3_750 and len(numbers) == 3  # other seeds after each resume


def test_without_its_replay_twice_a_run_warms_up_twice(small_config: Callable[..., Config]) -> None:
    config = small_config(budget_frames=1_000, checkpoint={"replay": False})
    train(config, [])
    for frames in (2_000, 3_000):
        before = newest(Path(str(config.run_dir)))
        begun = sum(before["frames_of_workers"])
        summary = go_on(config, budget_frames=frames)
        assert made_all_due(summary["updates"] - before["limiter"]["updates"], summary["frames"] - begun)


def test_run_that_was_given_more_budget_and_killed_is_not_finished(tmp_path: Path) -> None:
    run_dir = begun(tmp_path)
    (run_dir / "summary.json").write_text(json.dumps({"status": "finished", "frames": 50_000}))
    assert load([f"resume={run_dir}"], cores=4).finished
    loaded = load([f"resume={run_dir}", "budget_frames=90_000"], cores=4)
    assert not loaded.finished
    with run_folder.opened(loaded.config, ["resume"]):
        pass  # and here it was killed
    assert not load([f"resume={run_dir}"], cores=4).finished


def test_same_command_goes_on_where_there_are_other_cores(tmp_path: Path) -> None:
    words = ["preset=lunarlander", f"run_dir={tmp_path / 'run'}", "resume=auto"]
    config = load(words, cores=8).config
    with run_folder.opened(config, words):
        pass
    again = load(words, cores=5).config
    assert again.collector.num_workers == config.collector.num_workers == 6  # kept: nobody asked for others
    fewer = load([*words, "collector.num_workers=3"], cores=5).config
    assert (fewer.collector.num_workers, fewer.schedule.frames_per_round) == (
        3,
        1_008,
    )  # what was derived is derived anew


def test_rounds_of_games_follow_the_workers(tmp_path: Path) -> None:
    """An update for each of 4 games of every worker, however many go on, unless something else was asked for."""
    for name, asked, updates in (("own", [], (24, 12)), ("asked", ["schedule.updates_per_round=7"], (7, 7))):
        words = ["preset=tictactoe_selfplay", "schedule=sync", f"run_dir={tmp_path / name}", "resume=auto", *asked]
        config = load(words, cores=8).config
        assert (config.schedule.episodes_per_round, config.schedule.updates_per_round) == (4, updates[0])
        with run_folder.opened(config, words):
            pass
        fewer = load([*words, "collector.num_workers=3"], cores=8).config
        assert (fewer.schedule.episodes_per_round, fewer.schedule.updates_per_round) == (4, updates[1])
        assert load(words, cores=8).config.schedule == config.schedule


def test_second_run_in_the_same_folder_is_refused(
    small_config: Callable[..., Config], call: Callable[..., Any]
) -> None:
    with run_folder.opened(small_config(), ["first"]) as (folder, _):  # the lock is held as by a run
        refused = call(f"resume={folder}")
    assert refused.code == 2
    assert refused.err.startswith(f"error: a run is going on in {folder} (pid {os.getpid()} on ")


def living_of_group(group: int) -> list[int]:
    """Processes of a group, without those that have ended and wait to be read."""
    stats = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in stats.splitlines()]
    return [int(pid) for pid, its, state in found if int(its) == group and not state.startswith("Z")]


def test_killed_run_goes_on_from_its_last_checkpoint_and_sweeps_what_it_left(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    folder, node = tmp_path / "run", tmp_path / "node"
    words = [
        "env.id=Counting", "env.backend=counting", "preset=generic", "budget_frames=1500", "learner.device=cpu",
        "collector.num_workers=1", "collector.envs_per_worker=8", "learner.warmup_frames=200", "learner.batch_size=32",
        "replay.capacity_frames=4000", "checkpoint.save_every_seconds=0.3", "logger.every_seconds=0.1",
        "env.kwargs.step_seconds=0.004", "evaluator.every_frames=0", "evaluator.final_episodes=2",
        "logger.terminal=none", f"run_dir={folder}", "resume=auto", f"replay.scratch_dir={node}",
    ]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "trainer.run", *words], cwd=ROOT, start_new_session=True)
    while len(checkpoint.numbered(folder / "checkpoints")) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)  # the main process only
    process.wait()
    deadline = time.monotonic() + 20
    while living_of_group(process.pid):
        assert time.monotonic() < deadline, "its processes outlive it"
        time.sleep(0.02)
    assert len(list(node.iterdir())) == 1
    living = node / "trainer_of_another_run"
    living.mkdir()
    manifest.begin(living)
    lock = open(living / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    manifest.add(folder / "checkpoints" / ".frames_000000000001.pt.partial")
    (folder / "checkpoints" / ".frames_000000000001.pt.partial").write_bytes(b"half")
    frames = sum(newest(folder)["frames_of_workers"])
    done = call(*words)  # the same command, as a requeued job has it
    assert done.code == 0, done.err
    assert f"goes on after {frames} frames" in (folder / "log.txt").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["frames"] >= 1_500
    assert made_all_due(summary["updates"], summary["frames"])
    assert list(node.iterdir()) == [living] and not list(folder.rglob(".*.partial"))
    lock.close()
    again = call(*words)
    assert again.code == 0
    assert again.out == f"the run in {folder} is finished: raise budget_frames above 1500 to go on\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["learner.batch_size=64"], "learner.batch_size=64 is not possible when a run is resumed, in RUN it is 128"),
        (["algorithm=iqn"], "algorithm.name=iqn is not possible when a run is resumed"),
        (["env.id=Acrobot-v1"], "env.id=Acrobot-v1 is not possible when a run is resumed"),
        (["preset=lunarlander"], "preset=lunarlander is not possible when a run is resumed"),
        (["run_dir=elsewhere"], "goes on in that folder: leave run_dir=elsewhere out"),
        (["env.kwargs.sutton_barto_reward=true"], "env.kwargs={'sutton_barto_reward': True} is not possible"),
    ],
)
def test_what_would_be_another_run_is_refused(words: list[str], sentence: str, tmp_path: Path) -> None:
    run_dir = begun(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load([f"resume={run_dir}", *words])
    assert sentence.replace("RUN", str(run_dir)) in str(refused.value)
    assert "\n" not in str(refused.value)


def begun(folder: Path) -> Path:
    from trainer.config.run_config import to_yaml

    (folder / "config.yaml").write_text(to_yaml(load(["seed=5", f"run_dir={folder}"], cores=4).config))
    return folder


def test_what_may_change_is_taken_and_all_else_is_kept(tmp_path: Path) -> None:
    run_dir = begun(tmp_path)
    words = ["budget_frames=90_000", "learner.learning_rate=1e-5", "collector.num_workers=3", "logger=wandb"]
    config = load([f"resume={run_dir}", *words], cores=4).config
    assert (config.seed, config.budget_frames, config.learner.learning_rate) == (5, 90_000, 1e-5)
    assert (config.collector.num_workers, config.logger.name, config.preset) == (3, "wandb", "cartpole")
    assert config.run_dir == config.resume == str(run_dir)
    assert config.schedule.tolerance_frames == 512  # derived anew
    again = load(["resume=auto", f"run_dir={run_dir}", "seed=5", "preset=cartpole"], cores=4).config  # a requeued job's
    assert again.seed == 5


def test_resume_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run's folder"):
        load([f"resume={tmp_path}"])
    with pytest.raises(ConfigError, match="name the folder, as run_dir=PATH"):
        load(["resume=auto"])
    assert load(["resume=auto", f"run_dir={tmp_path / 'new'}"]).config.resume is None
