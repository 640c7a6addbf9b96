"""Growth of a long run in which a random worker is killed every 30 s and a checkpoint is written every minute.

    python -m benchmarks.soak [--json FILE] [--minutes 20]

CartPole at full speed with two workers of 64 sub-environments, and with evaluations. Compared are the second eighth of
the time, when everything has been used once and workers have been replaced, and the last eighth.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from trainer.training.system import System

RUN = (
    "preset=cartpole", "collector.num_workers=2", "collector.envs_per_worker=64", "evaluator.every_frames=1_000_000",
    "evaluator.stop_at_return=null", "checkpoint.save_every_seconds=60", "faults.max_failures=1000",
)  # fmt: skip
KILL_EVERY_S, SAMPLE_EVERY_S = 30.0, 10.0


@dataclass(frozen=True)
class Sample:
    """Memory, file descriptors and frames of the run at one moment."""

    at: float
    frames: int
    memory_mb: float
    descriptors: int
    threads: int
    scratch_mb: float


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process, which other processes do not change; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def sample(system: System) -> Sample:
    """Measure all processes of the run now."""
    from benchmarks import machine

    pids = [os.getpid(), *machine.tree()]
    scratch = sum(path.stat().st_blocks * 512 for path in (system.run_dir / "scratch").rglob("*") if path.is_file())
    return Sample(
        time.monotonic(),
        system.total_frames(),
        sum(anonymous_mb(pid) for pid in pids),
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        scratch / 2**20,
    )


def measure(minutes: float, kill_every_s: float) -> tuple[list[Sample], int, int]:
    """Samples over a run of so many minutes, number of workers killed, number of workers restarted."""
    from benchmarks import parts

    samples: list[Sample] = []
    killed = 0
    with parts.opened(parts.config(*RUN, parts.BUDGET)) as system:
        over = threading.Event()

        def strike() -> None:
            nonlocal killed
            rng, start = random.Random(0), time.monotonic()
            kill_at = kill_every_s
            while not over.wait(SAMPLE_EVERY_S):
                samples.append(sample(system))
                now = time.monotonic() - start
                if now > 60 * minutes:
                    parts.enough(system)
                elif now >= kill_at:
                    kill_at += kill_every_s
                    os.kill(rng.choice(parts.worker_processes(system)).pid, signal.SIGKILL)
                    killed += 1

        striker = threading.Thread(target=strike, daemon=True)
        striker.start()
        try:
            parts.train(system)
        finally:
            over.set()
            striker.join()
        restarted = system.collectors.restarts
        left = [path for path in Path(system.run_dir).rglob("*.partial")]
        assert not left, left
    return samples, killed, restarted


def speed(samples: list[Sample]) -> float:
    """Median frames per second between neighbours: a restart stops one of two workers for a moment."""
    return statistics.median((b.frames - a.frames) / (b.at - a.at) for a, b in zip(samples, samples[1:], strict=False))


def main() -> None:
    arguments = parser("A long run whose workers are killed again and again.")
    arguments.add_argument("--minutes", type=float, default=20.0)
    arguments.add_argument("--kill-every", type=float, default=KILL_EVERY_S, help="seconds (30)")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter = Meter()
    samples, killed, restarted = measure(args.minutes, args.kill_every)
    part = max(2, len(samples) // 8)
    first, last = samples[part : 2 * part], samples[-part:]

    def growth(name: str, percent: float) -> Row:
        before, after = (statistics.median(getattr(s, name) for s in some) for some in (first, last))
        return Row(
            f"soak, growth of {name}", 100 * (after / before - 1) if before else 0.0, "%", percent, at_most=True,
            detail=f"{before:.1f} -> {after:.1f}",
        )  # fmt: skip

    rows = [
        Row("soak, workers restarted / killed", restarted / killed if killed else float("nan"), "x", 1.0,
            detail=f"{restarted} of {killed} in {args.minutes:g} minutes"),
        Row("soak, frames/s at the end / at the start", speed(last) / speed(first), "x", 0.95,
            detail=f"{speed(first):,.0f} -> {speed(last):,.0f}"),
        growth("memory_mb", 2.0), growth("descriptors", 0.0), growth("threads", 0.0), growth("scratch_mb", 0.0),
    ]  # fmt: skip
    show("Soak", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
