"""What stopping and resuming costs: returns around five resumes, and a checkpoint with a million rows of replay.

    python -m benchmarks.resume [--json FILE] [--only checkpoint cartpole lunarlander]

The runs are commands that a user types. They are stopped by SIGUSR1, as SLURM does, and started again by the same
command. Measured is the mean fall of the greedy return from the evaluation before a stop to the one after it, minus the
mean fall between neighbouring evaluations without a stop (a rise counts as a fall of 0).
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.report import Row, parser, show
from trainer.config.run_files import RunFolder
from trainer.reading import read_jsonl
from trainer.telemetry.rows import of_kind

JOBS = {"cartpole": ("preset=cartpole", "evaluator.stop_at_return=null"), "lunarlander": ("preset=lunarlander",)}
STOPS = 5
ROWS = 1_000_000


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics that a run has written until now; whole lines only."""
    path = RunFolder(folder).metrics
    return read_jsonl(path)[0] if path.exists() else []


def run(preset: str, words: tuple[str, ...], seed: int) -> list[Row]:
    """A run that is stopped five times, after each sixth of its budget but the last."""
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "run"
        command = [
            sys.executable, "-m", "trainer.run", *words, f"seed={seed}", f"run_dir={folder}", "resume=auto",
            "logger.terminal=none", "logger.every_seconds=0.1",
        ]  # fmt: skip
        budget, ends, pauses = 0, [], []
        for stop in range(1, STOPS + 1):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while not (folder / "config.yaml").exists():
                time.sleep(0.1)
            budget = budget or int((folder / "config.yaml").read_text().partition("budget_frames: ")[2].split()[0])
            while max((row["frames"] for row in rows_of(folder)), default=0) < budget * stop / (STOPS + 1):
                time.sleep(0.05)
            process.send_signal(signal.SIGUSR1)
            start = time.monotonic()
            assert process.wait() == 128 + signal.SIGUSR1
            pauses.append(time.monotonic() - start)
            ends.append(len(rows_of(folder)))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = rows_of(folder)
        summary = json.loads((folder / "summary.json").read_text())
    judged = [(int(row["frames"]), float(row["eval_return_mean"])) for row in of_kind(rows, "evaluation")]
    around: list[tuple[float, float]] = []
    usual: list[tuple[float, float]] = []
    for (frames, before), (later, after) in pairwise(judged):
        stopped = any(frames <= rows[end - 1]["frames"] < later for end in ends)
        (around if stopped else usual).append((before, after))
    fall = statistics.mean(max(0.0, before - after) for before, after in around)
    without = statistics.mean(max(0.0, before - after) for before, after in usual)
    told = ", ".join(f"{before:.0f} -> {after:.0f}" for before, after in around)
    speeds = [row.get("updates_per_s") or 0.0 for row in rows]  # one that begins, or is an evaluation's, has none
    most = max(speeds[ends[0] :]) / max(speeds[: ends[0]])
    return [
        Row(
            f"resume, {preset}, fall of the greedy return over a stop, minus that without one",
            fall - without, "of return", 0.0, at_most=True,
            detail=f"{told}; mean fall {fall:.1f}, without a stop {without:.1f}; "
            f"final greedy {summary['eval_return_mean']:.1f}",
        ),
        Row(f"resume, {preset}, most updates/s after resumes / before the first", most, "x",
            detail="a burst would show"),
        Row(f"resume, {preset}, from SIGUSR1 to the end", max(pauses), "s", 10.0, at_most=True,
            detail=", ".join(f"{p:.1f}" for p in pauses)),
    ]  # fmt: skip


def checkpoint() -> list[Row]:
    """The first and a later checkpoint of a full replay of a million CartPole rows, while collection goes on."""
    from benchmarks import parts
    from trainer.roles import pace
    from trainer.training.saving import save

    config = parts.config(
        "preset=cartpole", f"replay.capacity_frames={ROWS}", "collector.envs_per_worker=64",
        "schedule.frames_per_update=null", parts.BUDGET,
    )  # fmt: skip
    found = []
    with parts.opened(config) as system:
        board = system.learners.local[0].board
        pace.open_limit(system.learners.local[0])
        while board.cursor.sum() < ROWS:
            time.sleep(0.1)
            system.check()
        for name in ("first checkpoint of 1M rows", "one 10 s later"):
            rate = parts.collected_per_s(system, 1.0)
            frames, start = board.total_frames(), time.perf_counter()
            save(system, frames, whole=True, more={})
            spent = time.perf_counter() - start
            stalled = max(0.0, spent - (board.total_frames() - frames) / rate)
            found.append(
                Row(f"resume, {name}, pause of collection", stalled, "s", 1.0, at_most=True,
                    detail=f"it took {spent:.2f} s and wrote {system.checkpoint_bytes / 2**20:.1f} MB")
            )  # fmt: skip
            time.sleep(10)
    return found


def main() -> None:
    arguments = parser("Stopping and resuming")
    arguments.add_argument("--only", nargs="*", choices=["checkpoint", *JOBS], default=["checkpoint", *JOBS])
    arguments.add_argument("--seed", type=int, default=0)
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    if "checkpoint" in args.only:
        rows += checkpoint()
    for preset, words in JOBS.items():
        if preset in args.only:
            rows += run(preset, words, args.seed)
    show("Stopping and resuming", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
