"""Milliseconds that the learner spends on publishing its weights, with one worker and with many.

    python -m benchmarks.publish [--json FILE] [--workers 46]

A publish is what the training loop calls (`Learner.publish`: the `send` of the weights board, a `WeightSyncScheme` of
TorchRL), with 1.7 M parameters, as many as a Nature CNN with its hidden layer has. Workers step environments that
sleep, and take new versions. Runs with one worker and with many take turns; the wall time of every call counts.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.report import Row, parser, show

WORDS = (
    "preset=generic", "env.id=counting", "env.backend=counting", "env.kwargs.step_seconds=0.2",
    "collector.envs_per_worker=1", "algorithm.hidden_sizes=[1300,1280]", "algorithm.n_step=1",
    "replay.capacity_frames=10_000",
)  # fmt: skip
BAR_MS, PAUSE_S = 2.0, 0.02  # between two publishes, as updates lie between them
TAKEN_S = 10.0  # until many workers have taken their first version


def measure(workers: int, seconds: float) -> tuple[list[float], int, int]:
    """Milliseconds of each publish, the number of parameters, and how many workers have one of the last versions."""
    from benchmarks import parts

    with parts.opened(parts.config(*WORDS, parts.BUDGET, f"collector.num_workers={workers}")) as system:
        agent = system.learners.local[0]
        agent.board.frame_limit[0] = parts.NO_LIMIT
        parts.wait_until_stepping(system)
        found, begin = [], time.perf_counter()
        while time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            agent.publish()
            found.append(1e3 * (time.perf_counter() - start))
            time.sleep(PAUSE_S)
        first = agent.plan.weights.version - len(found)
        deadline = time.monotonic() + TAKEN_S
        while (agent.board.version <= first).any() and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        system.check()
        return found, agent.plan.weights.numel, int((agent.board.version > first).sum())


def main() -> None:
    arguments = parser("What a publish costs the learner.", seconds=10.0, repeats=2)
    arguments.add_argument("--workers", type=int, default=46)
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, counts = Meter(), (1, args.workers)
    times: dict[int, list[float]] = {count: [] for count in counts}
    taken: dict[int, int] = {}
    for _ in range(args.repeats):
        for count in counts:
            found, numel, taken[count] = measure(count, args.seconds)
            times[count] += found
    rows = []
    for count, of in times.items():
        ordered = sorted(of)
        detail = f"{len(of)} of them, of {numel:,} parameters; {taken[count]} of {count} workers took a version"
        rows += [
            Row(f"publish, {count} workers, median", statistics.median(ordered), "ms", BAR_MS, True, detail),
            Row(f"publish, {count} workers, 99 % are below", ordered[int(0.99 * len(ordered))], "ms", None, True),
        ]
    ratio = statistics.median(times[counts[1]]) / statistics.median(times[counts[0]])
    rows.append(Row(f"publish, {counts[1]} workers / one", ratio))
    show("Publish", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
