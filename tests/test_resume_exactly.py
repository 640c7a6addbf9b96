"""In rounds nothing tells a run that was stopped and resumed from one that was never stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resuming import CARTPOLE, differences, go_on, newest, stop_at
from trainer.config.sections import Config
from trainer.host.errors import RunFailed
from trainer.run_folder import checkpoint
from trainer.training.playing import snapshot_path
from trainer.training.train import train

ENVIRONMENTS = {
    "counting": {},
    "native vector": CARTPOLE,  # tells its state
    "played again": {**CARTPOLE, "vectorization": "sync"},
    "box2d": {"id": "LunarLander-v3", "backend": "gymnasium"},
    "agents": {"id": "CountingAgents", "backend": "counting_agents"},
    "game": {"id": "tictactoe", "backend": "game"},
    "dice": {"id": "ludo", "backend": "game", "kwargs": {"num_players": 4, "encoding": "handcrafted"}},
    "grid": {"id": "treasurehunt", "backend": "grid", "kwargs": {"num_agents": 2, "height": 9, "width": 9}},
}
# Every kind of opponent, drawn by results, against snapshots that come and go during the run.
OPPONENTS = {
    "random": 0.2, "scripted": 0.2, "latest": 0.3, "snapshots": 0.3, "random_end": 0.0, "snapshot_every_frames": 300,
    "pool_size": 3, "active": 2, "sampling": "pfsp", "epsilon": 0.1,
}  # fmt: skip
QUICK = {(name, "sequential") for name in ("counting", "native vector", "played again", "agents", "game")}
EVERYTHING = {"noisy": True, "prioritized": True, "n_step": 3, "target_tau": 0.01, "normalize_rewards": True}
NUMBERS = ("counting", "native vector", "played again", "box2d", "agents")  # environments that show any


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        # The others differ from these in nothing that is not shown one by one.
        *(
            pytest.param(name, schedule, marks=() if (name, schedule) in QUICK else pytest.mark.slow)
            for schedule in ("sequential", "sync")
            for name in ENVIRONMENTS
        ),
    ],
)
def test_in_rounds_a_run_that_is_stopped_and_goes_on_ends_bit_identical(
    name: str, schedule: str, small_config: Callable[..., Config]
) -> None:
    sections = {
        "env": ENVIRONMENTS[name], "budget_frames": 1_400,
        "algorithm": {**EVERYTHING, "hidden_sizes": [16], "normalize_observations": name in NUMBERS},
        "schedule": {"name": schedule}, "logger": {"every_seconds": 0.01},
        "evaluator": {"every_frames": 500, "num_envs": 2, "final_episodes": 2, "league_games": 0},
        "opponents": OPPONENTS, "learner": {"learning_rate_schedule": "cosine", "learning_rate_warmup_updates": 200},
    }  # fmt: skip
    whole, cut = small_config("whole", **sections), small_config("cut", **sections)
    train(whole, ["whole"])
    assert whole.run_dir and cut.run_dir
    first, second = Path(whole.run_dir), Path(cut.run_dir)
    stop_at(second, 700)
    stopped = train(cut, ["cut"])
    assert (stopped["status"], stopped["stop_signal"]) == ("stopped", signal.SIGUSR1)
    assert 700 <= stopped["frames"] < 1_400
    summary = go_on(cut)
    assert summary["status"] == "finished"
    assert "bit-identical" not in (second / "log.txt").read_text()

    folders = sorted(path.parent for path in first.rglob("frames_*.pt"))
    assert len(folders) == (2 if name in ("agents", "grid") else 1)
    for folder in folders:
        mine, its = checkpoint.newest(folder), checkpoint.newest(second / folder.relative_to(first))
        assert mine is not None and its is not None
        for part in ("learner", "normalization", "sampler", "limiter", "frames", "frames_of_workers"):
            assert differences(mine[part], its[part]) == []
        assert mine["limiter"]["updates"] > 250  # beyond the warm-up, in which it was stopped
    rows = [path for path in first.rglob("*.bin")]
    assert len(rows) >= 6
    for path in rows:
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    if name in ("game", "dice"):
        paths = [folder / "checkpoints" / "run.pt" for folder in (first, second)]
        pools = [checkpoint.load(path)["run"]["pool"] for path in paths]
        assert differences(*pools) == []
        snapshots = sorted((first / "pool").glob("snapshot_*.pt"))
        assert len(snapshots) == 3
        for path in snapshots:
            assert differences(checkpoint.load(path), checkpoint.load(second / "pool" / path.name)) == []
    if schedule == "sequential":  # else the evaluator has its own pace
        assert best(first) == best(second)


@pytest.mark.slow  # MinAtar takes 20 s of a core; tests/found/test_environments.py has another such environment
def test_rounds_of_an_environment_that_cannot_go_on_begin_new_episodes(small_config: Callable[..., Config]) -> None:
    minatar = {"id": "MinAtar/Breakout-v1", "backend": "gymnasium"}
    schedule = {"name": "sync", "frames_per_update": 40.0}
    config = small_config(env=minatar, budget_frames=1_500, schedule=schedule, logger={"every_seconds": 0.01})
    folder = Path(str(config.run_dir))
    stop_at(folder, 400)
    train(config, ["first"])
    assert go_on(config)["status"] == "finished"
    log = (folder / "log.txt").read_text()
    assert "warning: MinAtar/Breakout-v1 showed another observation when its episodes were played again" in log
    assert "so this run will not be bit-identical to one that was not stopped" in log


def test_workers_whose_state_an_older_version_kept_begin_new_episodes(small_config: Callable[..., Config]) -> None:
    """A snapshot without the state of the global generators, as it was before they were kept."""
    config = small_config(budget_frames=1_000, schedule={"name": "sequential"})
    folder = Path(str(config.run_dir))
    train(config, ["first"])
    path = snapshot_path(folder, 0)
    checkpoint.write_aside({k: v for k, v in checkpoint.load(path).items() if k != "generators"}, path)
    assert go_on(config, budget_frames=2_000)["status"] == "finished"
    log = (folder / "log.txt").read_text()
    assert "goes on after" in log and "an older version of the trainer kept less of it" in log


def best(folder: Path) -> float:
    return float(checkpoint.load(folder / "best" / "policy.safetensors")["eval_return_mean"])


def test_full_disk_costs_a_checkpoint_but_not_the_run(
    tmp_path: Path, small_config: Callable[..., Config], small_disk: Callable[[Path, str], None]
) -> None:
    """A real small disk that fills up: training goes on, the end says what to do, the checkpoint before is whole."""
    disk = tmp_path / "run"
    small_disk(disk, "size=1500k")
    scratch = str(tmp_path / "scratch")
    config = small_config(budget_frames=8_000, checkpoint={"save_every_seconds": 0.3}, replay={"scratch_dir": scratch})

    def fill() -> None:
        while all(int(path.stem.removeprefix("frames_")) == 0 for path in checkpoint.numbered(disk / "checkpoints")):
            time.sleep(0.02)
        with open(disk / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return  # it is full

    threading.Thread(target=fill, daemon=True).start()
    with pytest.raises(RunFailed, match="the checkpoint could not be written .*No space left.*make room in"):
        train(config, ["full"])
    state = newest(disk)
    assert 0 < state["frames"] < 8_000
    (disk / "filler").unlink()
    summary = go_on(config, budget_frames=state["frames"] + 1_000)
    assert summary["status"] == "finished"


@pytest.mark.parametrize("schedule", ["sequential", "sync"])
def test_updates_that_episodes_owe_are_counted_on_over_a_stop(
    schedule: str, small_config: Callable[..., Config]
) -> None:
    sections = {"schedule": {"name": schedule, "episodes_per_update": 2.0}, "budget_frames": 3_000}
    whole, cut = small_config("whole", **sections), small_config("cut", **sections)
    assert whole.run_dir and cut.run_dir
    train(whole, ["whole"])
    stop_at(Path(cut.run_dir), 700)
    assert train(cut, ["cut"])["status"] == "stopped"
    go_on(cut)
    first, second = newest(Path(whole.run_dir)), newest(Path(cut.run_dir))
    assert second["limiter"]["updates"] == second["episodes_done"] // 2 > 70
    assert differences(first["learner"], second["learner"]) == []
    assert first["episodes_done"] == second["episodes_done"]
