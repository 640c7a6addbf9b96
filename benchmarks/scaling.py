"""Many collector processes against one, on an environment that sleeps.

    python -m benchmarks.scaling [--json FILE] [--workers 46]

What this shows is that nothing in the trainer makes workers wait for one another. It also says how long they take to
come up and what memory the whole tree of processes takes.
"""

from __future__ import annotations

import time

from benchmarks.report import Row, parser, show

SLEEPING = (
    "preset=generic", "env.id=counting", "env.backend=counting", "env.kwargs.step_seconds=0.01",
    "algorithm.hidden_sizes=[120,84]", "algorithm.n_step=1", "collector.envs_per_worker=16",
)  # fmt: skip
STARTUP_S, MEMORY_GB = 60.0, 12.0


def measure(workers: int, seconds: float) -> tuple[float, float, float]:
    """Frames per second of so many workers, seconds until all of them ran, GB of the process tree."""
    from benchmarks import machine, parts

    frames = workers * 16 * 100
    config = parts.config(
        *SLEEPING, parts.BUDGET, f"collector.num_workers={workers}", f"replay.capacity_frames={max(frames, 10_000)}"
    )
    start = time.perf_counter()
    with parts.opened(config) as system:
        system.board.frame_limit[0] = parts.NO_LIMIT
        parts.wait_until_stepping(system)
        startup_s = time.perf_counter() - start
        rate = parts.collected_per_s(system, seconds)
        memory_gb = sum(machine.memory(pid).pss_mb for pid in machine.tree()) * machine.MIB / 1e9
    return rate, startup_s, memory_gb


def main() -> None:
    arguments = parser("Frames per second of many collector processes against one.", seconds=10.0, repeats=1)
    arguments.add_argument("--workers", type=int, default=46)
    args = arguments.parse_args()
    from benchmarks import machine, parts

    meter, count = machine.Meter(), args.workers
    many, one = [], []
    for _ in range(args.repeats):
        many.append(measure(count, args.seconds))  # first, so that their start-up has the fork server's in it
        one.append(measure(1, args.seconds))
    rates = parts.ratio([m[0] for m in many], [o[0] for o in one])
    rows = [
        Row(
            f"scaling, {count} workers, frames/s", rates, bar=count * 44 / 46,
            detail=f"{count} workers {many[-1][0]:,.0f}, one {one[-1][0]:,.0f} frames/s (10 ms a vector step)",
        ),
        Row(
            f"scaling, {count} workers, start-up", max(m[1] for m in many), "s", STARTUP_S, at_most=True,
            detail=f"until every worker has a frame; one alone {one[-1][1]:.1f} s",
        ),
        Row(
            f"scaling, {count} workers, memory", max(m[2] for m in many), "GB", MEMORY_GB, at_most=True,
            detail=f"PSS of the process tree; with one worker {one[-1][2]:.2f} GB",
        ),
    ]  # fmt: skip
    show("Scaling: many workers / one", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
