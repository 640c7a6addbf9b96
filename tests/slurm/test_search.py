"""A search by two elements of an array on a real SLURM: they share its trials, and one that is requeued goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WAIT_S = 400.0


def test_elements_share_a_search_and_go_on_after_a_requeue(slurm: dict[str, str], tmp_path: Path) -> None:
    environment = {**slurm, "PYTHON": sys.executable}
    scratch, search = Path(tempfile.mkdtemp(prefix="s")), tmp_path / "search"

    def told(*words: str | Path) -> str:
        done = subprocess.run([*map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def state(element: str) -> str:
        fields = told("scontrol", "-o", "show", "job", element).split()
        return next(field for field in fields if field.startswith("JobState=")).partition("=")[2]

    job = told(
        "sbatch", "--parsable", "--array=0-1", f"--output={tmp_path}/job_%a.out", "--open-mode=append",
        ROOT / "slurm" / "array.sh", "--trials=5", "--pruner=none", "preset=cartpole", "schedule=sequential",
        "budget_frames=5000", "evaluator.final_episodes=5", f"run_dir={search}", f"replay.scratch_dir={scratch}",
    ).strip()  # fmt: skip
    elements = [f"{job}_{element}" for element in (0, 1)]
    try:
        wait_for(lambda: all((search / f"trial_000{n}" / "metrics.jsonl").exists() for n in (0, 1)))
        told("scancel", "--signal=USR1", "--batch", elements[1])
        wait_for(lambda: "requeued at" in (tmp_path / "job_1.out").read_text())
        wait_for(lambda: {state(element) for element in elements} <= {"COMPLETED", "FAILED", "CANCELLED"})
        assert [state(element) for element in elements] == ["COMPLETED"] * 2, (tmp_path / "job_1.out").read_text()
    finally:
        subprocess.run(["scancel", job], env=environment, capture_output=True)
        shutil.rmtree(scratch, ignore_errors=True)
    logs = [(search / f"agent_{element}.log").read_text() for element in (0, 1)]
    assert all("finished score" in log for log in logs)  # both had trials
    finished = sorted(path.parent.name for path in search.glob("trial_*/summary.json"))
    assert len(finished) == 5
    assert all(json.loads((search / name / "summary.json").read_text())["status"] == "finished" for name in finished)
    again = [name for name in finished if (search / name / "command.txt").read_text().count("\n") == 2]
    assert len(again) == 1  # the trial of the element that was requeued
    assert json.loads((search / "best.json").read_text())["run"] in finished


def wait_for(happened) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.2)
