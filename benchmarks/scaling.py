"""Speed of many collector processes / of one, on an environment that sleeps.

    python -m benchmarks.scaling [--json FILE] [--workers 46] [--envs-per-worker 16]

It shows that no part of the trainer makes workers wait for each other. It also measures how long they take to start,
and the memory of all processes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.report import Row, parser, show

SLEEPING = (
    "preset=generic", "env.id=counting", "env.backend=counting", "env.kwargs.step_seconds=0.01",
    "algorithm.hidden_sizes=[120,84]", "algorithm.n_step=1",
)  # fmt: skip
STARTUP_S, MEMORY_GB = 60.0, 12.0


@dataclass(frozen=True)
class Measured:
    """Measurements with one number of workers.

    Args:
        frames_per_s: of all workers together.
        cores: used by all processes of the run.
        startup_s: until every worker had collected a frame.
        memory_gb: PSS of all processes of the run.
    """

    frames_per_s: float
    cores: float
    startup_s: float
    memory_gb: float

    def __str__(self) -> str:
        return f"{self.frames_per_s:,.0f} frames/s on {self.cores:.2f} cores"


def measure(workers: int, envs_per_worker: int, seconds: float) -> Measured:
    """Measure so many workers for some seconds."""
    from benchmarks import machine, parts

    frames = workers * envs_per_worker * 100
    config = parts.config(
        *SLEEPING, parts.BUDGET, f"collector.num_workers={workers}", f"collector.envs_per_worker={envs_per_worker}",
        f"replay.capacity_frames={max(frames, 10_000)}",
    )  # fmt: skip
    start = time.perf_counter()
    with parts.opened(config) as system:
        system.plans[0].board.frame_limit[0] = parts.NO_LIMIT
        parts.wait_until_stepping(system)
        startup_s = time.perf_counter() - start
        cpu_s, begin = machine.cpu_s(machine.tree()), time.perf_counter()
        rate = parts.collected_per_s(system, seconds)
        cores = (machine.cpu_s(machine.tree()) - cpu_s) / (time.perf_counter() - begin)
        memory_gb = sum(machine.memory(pid).pss_mb for pid in machine.tree()) * machine.MIB / 1e9
    return Measured(rate, cores, startup_s, memory_gb)


def main() -> None:
    arguments = parser("Frames per second of many collector processes against one.", seconds=10.0, repeats=1)
    arguments.add_argument("--workers", type=int, default=46)
    arguments.add_argument("--envs-per-worker", type=int, default=16)
    args = arguments.parse_args()
    from benchmarks import machine, parts

    meter, count = machine.Meter(), args.workers
    many, one = [], []
    for _ in range(args.repeats):
        # First, so that their start-up has the fork server's in it.
        many.append(measure(count, args.envs_per_worker, args.seconds))
        one.append(measure(1, args.envs_per_worker, args.seconds))
    rates = parts.ratio([m.frames_per_s for m in many], [o.frames_per_s for o in one])
    rows = [
        Row(
            f"scaling, {count} workers, frames/s", rates, bar=count * 44 / 46,
            detail=f"{count} workers {many[-1]}, one {one[-1]} (10 ms a vector step)",
        ),
        Row(
            f"scaling, {count} workers, start-up", max(m.startup_s for m in many), "s", STARTUP_S, at_most=True,
            detail=f"until every worker has a frame; one alone {one[-1].startup_s:.1f} s",
        ),
        Row(
            f"scaling, {count} workers, memory", max(m.memory_gb for m in many), "GB", MEMORY_GB, at_most=True,
            detail=f"PSS of the process tree; with one worker {one[-1].memory_gb:.2f} GB",
        ),
    ]  # fmt: skip
    show("Scaling: many workers / one", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
