"""Room that runs out, on real small disks: what is said, and what is left."""

from __future__ import annotations

import os
import shutil

import pytest

from trainer import envs
from trainer.config.compose import load
from trainer.run_folder import checkpoint
from trainer.training.needs import needs_of

WIDE = ["env.id=Hurting/Wide-v0", "env.import_modules=[hurting_files]"]


@pytest.fixture
def in_small_shm(begin):
    """Runs with a /dev/shm of so many bytes of its own; its code and what it said."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("only root may mount")

    def start(size: int, *words: str, name: str = "run") -> tuple[int, str]:
        script = f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'
        process = begin(*words, name=name, before=["unshare", "--mount", "bash", "-c", script, "bash"])
        said = process.communicate(timeout=120)[0]
        return process.returncode, said

    return start


@pytest.mark.slow
def test_room_that_runs_out_half_way_through_a_checkpoint_costs_that_checkpoint(begin, small_disk, tmp_path):
    """Networks of 1.1 MB make checkpoints of 4.3 MB: others fill the disk until the second one ends in its middle."""
    disk = tmp_path / "disk"
    small_disk(disk, "size=24m")
    process = begin(
        "env.id=Hurting/Slow-v0", "env.import_modules=[hurting_files]", "algorithm.hidden_sizes=[512,512]",
        "budget_frames=3000", "checkpoint.save_every_seconds=1.5", "checkpoint.keep_last=1", f"run_dir={disk / 'run'}",
        f"replay.scratch_dir={tmp_path / 'scratch'}",
    )  # fmt: skip
    log = disk / "run" / "log.txt"
    while not checkpoint.numbered(disk / "run" / "checkpoints"):
        assert process.poll() is None, process.communicate()
    with open(disk / "filler", "wb") as filler:
        filler.write(bytes(shutil.disk_usage(disk).free - 2_000_000))
    while "could not be written" not in log.read_text():
        assert process.poll() is None, process.communicate()
    assert not list((disk / "run").rglob("*.partial")) and not list((disk / "run").rglob("*.new"))
    (disk / "filler").unlink()
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "the checkpoint could not be written ([Errno 28] No space left on device" in said
    assert "training goes on" in said and "Traceback" not in said
    assert checkpoint.newest(disk / "run" / "checkpoints")["frames"] >= 3_000


@pytest.mark.slow
def test_shared_memory_is_reckoned_from_the_network(in_small_shm, tmp_path):
    code, said = in_small_shm(64 * 2**20, "env.id=Hurting/Plain-v0", "algorithm.hidden_sizes=[4096,4096]")
    assert code == 2 and "the run shares 193." in said and "in /dev/shm, where 64.0 MiB are free" in said, said
    words = ["env.id=CartPole-v1", "preset=generic", "algorithm.hidden_sizes=[1024,1024]", "collector.num_workers=1"]
    config = load([*words, "collector.envs_per_worker=4"], cores=2).config
    needs = needs_of(config, envs.describe_world(config.env)).shared
    weights = 4 * (4 * 1024 + 1024 + 1024 * 1024 + 1024 + 2 * 1024 + 2)
    assert 3 * weights < needs < 3 * weights + 2**21  # two slots of the board, and the evaluator's
    code, said = in_small_shm(-(-needs // 4096) * 4096, *words, "evaluator.every_frames=300", name="other")
    assert code == 0, said


@pytest.mark.slow
def test_the_copy_of_the_replay_in_the_runs_folder_is_counted(run, small_disk, tmp_path):
    disk = tmp_path / "disk"
    small_disk(disk, "size=12m")
    words = [*WIDE, f"replay.scratch_dir={tmp_path / 'scratch'}"]
    ended = run(*words, f"run_dir={disk / 'run'}")  # 1,000 rows of 16 KB
    assert ended.code == 2 and "the run keeps up to 1" in ended.err and "for resuming in" in ended.err, ended.said
    assert run(*words, f"run_dir={disk / 'other'}", "checkpoint.replay=false").code == 0
