"""What `telemetry.trace` costs: rates with a trace / without, in turns in one process.

    python -m benchmarks.trace [--json FILE]

Workers and learners run in this process and differ only in the trace. They take turns of a few milliseconds and are
timed in CPU seconds, so other work on the machine affects all alike. For each one with a trace there are two without:
their difference is the noise of the method.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.report import Row, parser, show

CASES = {  # name -> configuration
    "CartPole-v1, 16 sub-environments": ("preset=cartpole", "collector.envs_per_worker=16"),
    "treasurehunt, 2 agents": ("preset=treasurehunt",),
}
BAR = 0.98
TURN_S = 0.02


@contextmanager
def sides(arguments: tuple[str, ...], traced: bool) -> Iterator[dict[str, Callable[[], object]]]:
    """A collector's step and a learner's chunk of updates, with a trace or without."""
    import torch

    from benchmarks import parts
    from trainer.training.local_learners import LocalLearners

    tracing = f"telemetry.trace={'true' if traced else 'false'}"
    config = parts.config(*arguments, parts.BUDGET, "schedule=sequential", "learner.warmup_frames=1_000", tracing)
    with parts.opened(config) as system:
        assert isinstance(system.learners, LocalLearners)
        (rollout,), (worker,) = parts.rollouts(system), system.learners.updating
        frames = [0] * len(system.plans)
        size = config.learner.prefetch_batches

        def collect() -> None:
            with torch.inference_mode():
                rollout.step(frames)

        def learn() -> None:
            worker.learn([size] * len(worker.learners))

        rollout.read_weights()
        while system.total_frames() < 2_000:
            collect()
        yield {"collector": collect, "learner": learn}


def seconds_per_call(call: Callable[[], object]) -> float:
    """CPU seconds of one call, over a turn."""
    count, start = 0, time.process_time()
    while (now := time.process_time()) - start < TURN_S:
        call()
        count += 1
    return (now - start) / count


def measure(name: str, seconds: float, repeats: int) -> list[Row]:
    """For each side a row with a bar, and a row with the noise of the method."""
    arguments = CASES[name]
    with sides(arguments, True) as on, sides(arguments, False) as off, sides(arguments, False) as again:
        rows = []
        for side in on:
            ratios, noise, spent = [], [], []
            for _ in range(max(10, round(repeats * seconds / (3 * TURN_S)))):
                first, with_trace, second = (seconds_per_call(one[side]) for one in (off, on, again))
                ratios.append((first + second) / 2 / with_trace)
                noise.append(first / second)
                spent.append(with_trace)
            detail = f"{statistics.median(spent) * 1e6:,.0f} us a call with it; median of {len(ratios)} turns"
            rows.append(Row(f"trace on / off, {name}, {side}", statistics.median(ratios), bar=BAR, detail=detail))
            rows.append(Row(f"off / off, {name}, {side}", statistics.median(noise), detail="noise of the method"))
    return rows


def main() -> None:
    args = parser("What a trace costs the collector and the learner.").parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    for name in CASES:
        rows += measure(name, args.seconds, args.repeats)
    show("Trace: rate with / rate without", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
