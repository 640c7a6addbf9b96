"""Issue 18, 1.9: environments that run programs: each is closed at an orderly end, and none outlives its process."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hurting_processes import WAYS
from running import Running, running

RUNS = ["env.id=Found/Runs-v0", f"collector.envs_per_worker={len(WAYS)}", f"evaluator.num_envs={len(WAYS)}"]
RUNS += [f"evaluator.episodes={len(WAYS)}", f"evaluator.final_episodes={len(WAYS)}"]
ENDLESS = ["budget_frames=1_000_000_000", "evaluator.every_frames=300"]
GONE_S = 5.0
STOPPING = sum(1 << (number - 1) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM))


def opened(rows: list[dict[str, Any]]) -> set[int]:
    return {row["opened"] for row in rows if "opened" in row}


def closed(rows: list[dict[str, Any]]) -> set[int]:
    return {row["closed"] for row in rows if "closed" in row}


def nothing_is_left(run: Running) -> None:
    deadline = time.monotonic() + GONE_S
    while (left := run.alive()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["async", "sequential", "shared_gradient"])
def test_every_program_is_closed_at_a_normal_end(schedule: str, tmp_path: Path):
    """Workers, evaluator, final evaluation, local agents; plain programs, sessions, shells, multiprocessing.

    In the main process nobody but close() ends what an environment starts, and a shell's own child is not told.
    """
    ways = [way for way in WAYS if way != "shell"] if schedule == "sequential" else WAYS
    words = [f"schedule={schedule}", "schedule.num_agents=1", f"env.kwargs.ways={' '.join(ways)}"]
    with running(tmp_path, *RUNS, *words, "evaluator.every_frames=300") as run:
        assert run.ended() == 0, run.said
        nothing_is_left(run)
        rows = run.rows()
        assert opened(rows) == closed(rows) and len(opened(rows)) >= 3 * len(ways)
        assert {row["way"] for row in rows if "way" in row} == set(ways)
        for row in rows:  # what is executed has default signals; what is forked has the handlers of who forked it
            if row.get("way") in ("plain", "session", "shell", "spawn"):
                assert int(row["ignored"], 16) & STOPPING == 0 and int(row["blocked"], 16) == 0, row


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "term", "kill"])
def test_no_program_outlives_the_run(end: int, tmp_path: Path):
    """Nor the worker that is killed before: its programs are ended while the run goes on."""
    once = tmp_path / "once"
    with running(tmp_path, *RUNS, *ENDLESS, "env.kwargs.kill_at=30", f"env.kwargs.once={once}") as run:
        run.until(lambda: "another one takes its place" in run.events())
        killed = next(row["pid"] for row in run.rows() if row.get("role", "").startswith("_Process"))
        theirs = {row["opened"] for row in run.rows() if row["pid"] == killed and "opened" in row} - closed(run.rows())
        assert len(theirs) == len(WAYS)
        run.until(lambda: not theirs & set(run.alive()))
        run.until(lambda: run.collected() > 1_000)  # 174 by the first worker
        run.process.send_signal(end)
        code = run.ended()
        nothing_is_left(run)
        assert code == (-end if end == signal.SIGKILL else 128 + end), run.said
        if end != signal.SIGKILL:
            assert opened(run.rows()) - closed(run.rows()) <= theirs, run.said
            assert "Traceback" not in run.said
