"""What killed and ended runs leave on their node: semaphores, sockets, temporary folders, mapped replays."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from trainer.host.leftovers import is_gone, this_process

SHM = Path("/dev/shm")


def semaphores(pid: int) -> list[Path]:
    return [path for path in SHM.glob("sem.trainer-*") if f"-{pid}-" in path.name]


@pytest.fixture
def temporary():
    """A folder with a name that is short enough for sockets, which pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_after_everything_is_killed_the_next_run_sweeps_what_is_ours(run, begin, tmp_path, temporary):
    (temporary / "trainer-mine").mkdir()
    (temporary / "trainer-mine" / "owner").write_text("me")
    theirs = [SHM / f"sem.trainer-{this_process()}-abcdefgh", SHM / "sem.trainer-of-somebody"]  # alive; not ours
    words = ["env.id=Hurting/Slow-v0", "env.import_modules=[hurting_files]", "checkpoint.save_every_seconds=0.5"]
    process = begin(*words, "budget_frames=100000", before=["setsid"], TMPDIR=str(temporary))
    try:
        for path in theirs:
            path.touch()
        while not (tmp_path / "run" / "checkpoints" / "run.pt").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.5)
        assert semaphores(process.pid) and len(list(temporary.glob("trainer-*/owner"))) == 2
        ended = run("env.id=Hurting/Plain-v0", name="next", TMPDIR=str(temporary))
        assert ended.code == 0, ended.said
        assert semaphores(process.pid) == [] and all(path.exists() for path in theirs)
        assert [path.name for path in temporary.iterdir() if not path.name.startswith("torch")] == ["trainer-mine"]
    finally:
        for path in theirs:
            path.unlink()
    assert not is_gone(this_process()) and is_gone(this_process().rpartition("-")[0] + "-1")
    assert not is_gone("f-1-1") and not is_gone("of-somebody")  # of another namespace; no name of ours


@pytest.mark.slow
def test_replays_of_the_ended_runs_of_a_sweep_are_not_mapped(run, tmp_path):
    out = tmp_path / "maps"
    ended = run(
        "-m", "run_dir=runs/a,runs/b,runs/c", "env.id=Hurting/Maps-v0", "env.import_modules=[hurting_files]",
        "schedule=sequential", f"env.kwargs.out={out}", process=True,
    )  # fmt: skip
    assert ended.code == 0, ended.said
    assert len(list((tmp_path / "runs").iterdir())) == 3
    assert max(map(int, out.read_text().split())) == 6  # one replay's columns
