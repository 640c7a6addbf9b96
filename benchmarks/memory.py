"""Memory of every process at the start and at the end of a run at full speed.

    python -m benchmarks.memory [--json FILE] [--minutes 10]

A whole training run on CartPole: the trainer's loop with its logging, checkpoints and evaluations, without a replay
ratio, 64 sub-environments. "At the start" is one minute after the beginning (a tenth of a shorter run), when everything
has been used once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from benchmarks.machine import Memory
    from trainer.training.system import System

RUN = (
    "preset=cartpole", "schedule.frames_per_update=null", "collector.envs_per_worker=64",
    "evaluator.every_frames=1_000_000", "evaluator.stop_at_return=null", "checkpoint.save_every_seconds=20",
)  # fmt: skip
WORKER_RSS_MB, GROWTH_PERCENT = 400.0, 2.0


def roles(system: System) -> dict[str, list[int]]:
    """The process ids of each role; `helpers` are the fork server and Python's resource tracker."""
    from benchmarks import machine, parts
    from trainer.training.evaluators import RemoteEvaluator

    assert isinstance(system.evaluator, RemoteEvaluator) and system.evaluator.supervised.pid is not None
    found = {
        "main": [os.getpid()],
        "collector": [process.pid for process in parts.worker_processes(system)],
        "evaluator": [system.evaluator.supervised.pid],
    }
    known = {pid for pids in found.values() for pid in pids}
    return {**found, "helpers": [pid for pid in machine.tree() if pid not in known]}


def take(system: System) -> dict[str, Memory]:
    """Memory of each role now."""
    from benchmarks import machine

    taken = {}
    for role, pids in roles(system).items():
        each = [machine.memory(pid) for pid in pids]
        taken[role] = machine.Memory(sum(m.rss_mb for m in each), sum(m.pss_mb for m in each))
    return taken


def measure(minutes: float) -> tuple[dict[str, Memory], dict[str, Memory], float]:
    """Memory by role at the start and at the end of a run of so many minutes, and its frames per second."""
    from benchmarks import parts

    taken: list[dict[str, Memory]] = []
    first_s = min(60.0, 6 * minutes)
    with parts.opened(parts.config(*RUN, parts.BUDGET)) as system:
        over = threading.Event()

        def watch() -> None:
            for seconds in (first_s, 60 * minutes - first_s):
                if over.wait(seconds):
                    return
                taken.append(take(system))
            parts.enough(system)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            trained = parts.train(system)
        finally:
            over.set()
            watcher.join()
    return taken[0], taken[-1], trained.frames / trained.wall_s


def main() -> None:
    arguments = parser("Memory of every process of a run at full speed.")
    arguments.add_argument("--minutes", type=float, default=10.0)
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter = Meter()
    start, end, rate = measure(args.minutes)
    rows = [
        Row(
            "memory, RSS of a collector process", end["collector"].rss_mb, "MB", WORKER_RSS_MB, at_most=True,
            detail=f"after {args.minutes:g} minutes at {rate:,.0f} frames/s",
        )
    ]  # fmt: skip
    for role in start:
        before, after = start[role], end[role]
        rows.append(_growth(role, before.rss_mb, after.rss_mb, f"; PSS {before.pss_mb:.1f} -> {after.pss_mb:.1f} MB"))
    before_mb, after_mb = (sum(memory.pss_mb for memory in taken.values()) for taken in (start, end))
    rows.append(_growth("all processes (PSS)", before_mb, after_mb, ""))
    show("Memory of a run at full speed", rows, args.json, meter.stop().note())


def _growth(name: str, before: float, after: float, more: str) -> Row:
    return Row(
        f"memory, growth of {name}", 100 * (after / before - 1) if before else float("nan"), "%", GROWTH_PERCENT,
        at_most=True, detail=f"{before:.1f} -> {after:.1f} MB{more}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
