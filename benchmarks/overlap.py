"""Rates of one collector process and the learner when both run / when each runs alone.

    python -m benchmarks.overlap [--json FILE]

Both are the trainer's, in its asynchronous loop, without a replay ratio. While the learner runs alone, the collector's
process is stopped. The learning rate is almost 0, so the policy, and with it the length of episodes, stays the same.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.report import Row, parser, show

CASES = {  # name -> configuration
    "CartPole-v1, 16 sub-environments": ("preset=cartpole", "collector.envs_per_worker=16"),
    "CartPole-v1, 64 sub-environments": ("preset=cartpole", "collector.envs_per_worker=64"),
}
BAR = 0.85
COMMON = (
    "schedule.frames_per_update=null", "learner.learning_rate=1e-12", "collector.epsilon_start=0.05",
    "collector.epsilon_end=0.05", "algorithm.n_step=1", "algorithm.hidden_sizes=[120,84]", "learner.batch_size=128",
)  # fmt: skip


def measure(name: str, seconds: float, repeats: int) -> list[Row]:
    """Two rows for one of `CASES`."""
    from benchmarks import parts
    from trainer.config.schedules import SCHEDULES

    config = parts.config(*CASES[name], *COMMON, parts.BUDGET)
    found: dict[str, list[float]] = {key: [] for key in ("frames alone", "updates alone", "frames", "updates")}
    with parts.opened(config) as system:
        loop = SCHEDULES["async"].turns(system)

        def learn(seconds: float) -> tuple[float, float]:
            """Frames and updates per second over some seconds of the training loop."""
            frames, updates, start = (
                system.total_frames(),
                system.learners.local[0].updater.updates,
                time.perf_counter(),
            )
            while (now := time.perf_counter()) - start < seconds:
                next(loop)
            spent = now - start
            return (system.total_frames() - frames) / spent, (
                system.learners.local[0].updater.updates - updates
            ) / spent

        learn(max(1.0, seconds / 2))  # past the warm-up, and the learner's first updates
        parts.wait_until_stepping(system)
        for _ in range(repeats):
            found["frames alone"].append(parts.collected_per_s(system, seconds))
            for key, rate in zip(("frames", "updates"), learn(seconds), strict=True):
                found[key].append(rate)
            parts.pause(system)
            found["updates alone"].append(learn(seconds)[1])
            parts.resume(system)
            time.sleep(parts.SETTLE_S)
    rates = {key: statistics.median(values) for key, values in found.items()}
    return [
        Row(
            f"overlap, {name}, {who} keeps",
            parts.ratio(found[key], found[f"{key} alone"]),
            bar=BAR,
            detail=f"{rates[key]:,.0f} {key}/s together, {rates[f'{key} alone']:,.0f} alone",
        )
        for who, key in (("collector", "frames"), ("learner", "updates"))
    ]


def main() -> None:
    args = parser("Rates of one collector and the learner, together / alone.").parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    for name in CASES:
        rows += measure(name, args.seconds, args.repeats)
    show("Overlap: rate together / rate alone", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
