"""Disks and shared memory without room: each ends in one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def words_of(folder: Path, *words: str) -> list[str]:
    return [
        "preset=generic", "env.id=Counting", "env.backend=counting",
        "algorithm.hidden_sizes=[16]", "collector.num_workers=1", "collector.envs_per_worker=8", "budget_frames=20_000",
        "learner.warmup_frames=200", "learner.batch_size=32", "learner.device=cpu", "replay.capacity_frames=4000",
        "logger.every_seconds=0.1", "logger.terminal=none", "evaluator.every_frames=0", "evaluator.final_episodes=2",
        "env.kwargs.step_seconds=0.0005", "collector.epsilon_decay_frames=1000", f"run_dir={folder}", *words,
    ]  # fmt: skip


def in_mounts(mounts: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """A run among mounts of its own."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("only root may mount")
    script = f'set -e\n{mounts}\nexec "$@"'
    done = ["unshare", "--mount", "bash", "-c", script, "bash", sys.executable, "-m", "trainer.run", *words]
    return subprocess.run(done, cwd=ROOT, capture_output=True, text=True)


def test_replay_keeps_its_room_on_a_disk_that_others_fill(tmp_path: Path, call: Any, small_disk: Any) -> None:
    scratch, folder = tmp_path / "scratch", tmp_path / "run"
    small_disk(scratch, "size=2m")

    def fill() -> None:
        metrics = folder / "metrics.jsonl"
        while not metrics.exists() or not metrics.stat().st_size:  # with its first row the replay is there
            time.sleep(0.05)
        subprocess.run(["dd", "if=/dev/zero", f"of={scratch}/filler"], capture_output=True)

    filler = threading.Thread(target=fill)
    filler.start()
    done = call(*words_of(folder, f"replay.scratch_dir={scratch}"))
    filler.join()
    assert done.code == 0, done.err
    assert json.loads((folder / "summary.json").read_text())["frames"] >= 20_000


def test_replay_that_finds_no_room_is_refused(tmp_path: Path, call: Any, small_disk: Any) -> None:
    scratch = tmp_path / "scratch"
    small_disk(scratch, "size=1m")
    done = call(*words_of(tmp_path / "run", f"replay.scratch_dir={scratch}", "replay.capacity_frames=400_000"))
    assert done.code == 2
    assert re.match(r"error: a replay of .* does not fit: 999\.\d KiB are free there; lower replay", done.err)


@pytest.mark.parametrize("inodes", [1, 2, 3])  # none for the folder, for its lock, for its manifest
def test_a_disk_without_a_place_for_the_runs_own_scratch_folder_is_refused(
    inodes: int, tmp_path: Path, call: Any, small_disk: Any
) -> None:
    scratch = tmp_path / "scratch"
    small_disk(scratch, f"size=1m,nr_inodes={inodes}")
    done = call(*words_of(tmp_path / "run", f"replay.scratch_dir={scratch}"))
    assert done.code == 2
    sentence = f"error: the scratch folder {scratch} cannot be written (No space left on device): choose another one"
    assert done.err == sentence + "\n"


@pytest.mark.parametrize("disk", ["size=20k", "size=28k", "size=1m,nr_inodes=6"])
def test_disk_with_less_room_than_it_says_is_refused(tmp_path: Path, disk: str, call: Any, small_disk: Any) -> None:
    """400 rows are 12.1 KiB, but 7 columns take 28 KiB of whole pages; so it is when others fill a disk at that moment.

    The run's own folder takes a page and three inodes; torch's error tells of the 16 KiB behind it, the system's of
    24 KiB and of a disk without inodes.
    """
    scratch = tmp_path / "scratch"
    small_disk(scratch, disk)
    done = call(*words_of(tmp_path / "run", f"replay.scratch_dir={scratch}", "replay.capacity_frames=400"))
    assert done.code == 2
    assert re.fullmatch(
        r"error: a replay of 400 rows finds no room in .* \(No space left on device\): lower "
        r"replay\.capacity_frames or set replay\.scratch_dir\n",
        done.err,
    )


@pytest.mark.slow
def test_small_shared_memory_is_refused(tmp_path: Path) -> None:
    done = in_mounts("mount -t tmpfs -o size=1m none /dev/shm", words_of(tmp_path / "run"))
    assert done.returncode == 2
    assert done.stderr.endswith("error: the run shares 1.1 MiB in /dev/shm, where 1.0 MiB are free; enlarge it\n")


def test_read_only_folder_is_refused(tmp_path: Path, call: Any, small_disk: Any) -> None:
    disk = tmp_path / "disk"
    small_disk(disk, "ro,size=1m")
    done = call(*words_of(disk / "run"))
    assert done.code == 2
    assert done.err == f"error: run_dir={disk}/run cannot be written (Read-only file system): choose another folder\n"


@pytest.mark.slow
def test_folder_that_becomes_read_only_ends_with_one_sentence(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    kept = tmp_path / "kept"
    becomes = (
        f"mount -t tmpfs -o size=9m none {disk}\n"
        f"(until ls {disk}/run/checkpoints/frames_* >/dev/null 2>&1; do sleep 0.05; done; cp -r {disk}/run {kept}; "
        f"mount -o remount,ro,bind {disk} {disk}) &"
    )
    words = words_of(disk / "run", "checkpoint.save_every_seconds=0.3", f"replay.scratch_dir={tmp_path / 'scratch'}")
    done = in_mounts(becomes, words)
    if done.returncode == 0:
        pytest.skip("this kernel does not make a busy file system read-only")
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: the checkpoint could not be written \(.*Read-only file system.*\): make room .*\n", done.stderr
    )
