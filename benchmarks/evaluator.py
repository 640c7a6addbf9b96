"""How much the evaluator slows collection and learning: rates with evaluations / without, in turns in one run.

    python -m benchmarks.evaluator [--json FILE]

The collector, learner and evaluator of the trainer on CartPole. The policy is trained first, so greedy episodes are as
long as in a run. `as the preset has it`: an evaluation every 2,500 frames, collection and
learning held to the preset's ratio. `all the time`: the next evaluation begins when one ends, and nothing holds
collection or learning back, so this is the most that the evaluator can take. It runs at `evaluator.nice`.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from trainer.training.system import System

TRAINED_FRAMES = 30_000  # before anything is measured
CASES = {  # name -> keys, frames between two evaluations
    "as the preset has it": ((), 2_500),
    "all the time": (("schedule.frames_per_update=null",), 1),
}


class Turns:
    """A run's training loop, in turns with evaluations and without.

    Args:
        system: started.
        every: frames between two evaluations.
    """

    def __init__(self, system: System, every: int) -> None:
        from trainer.config.schedules import SCHEDULES

        self.system, self.every, self.loop = system, every, SCHEDULES["async"].turns(system)
        self.seconds: list[float] = []  # of each evaluation

    def take(self) -> None:
        """Take the result of an evaluation that has ended, if there is one."""
        if (evaluation := self.system.evaluator.poll()) is not None:
            self.seconds.append(evaluation.seconds)

    def drain(self) -> None:
        """Wait until the evaluation that is running has ended."""
        while self.system.evaluator.busy:
            next(self.loop)
            self.take()

    def learn(self, seconds: float, evaluating: bool) -> tuple[float, float]:
        """Frames and updates per second over some seconds."""
        system, evaluator = self.system, self.system.evaluator
        frames, updates, start = system.total_frames(), system.learners.local[0].updater.updates, time.perf_counter()
        asked = frames - self.every
        while (now := time.perf_counter()) - start < seconds:
            next(self.loop)
            if not evaluating:
                continue
            if system.total_frames() - asked >= self.every and not evaluator.busy:
                asked = system.total_frames()
                evaluator.request()
            self.take()
        spent = now - start
        rates = (system.total_frames() - frames) / spent, (system.learners.local[0].updater.updates - updates) / spent
        self.drain()
        return rates


def measure(name: str, seconds: float, repeats: int, trained_frames: int) -> list[Row]:
    """Two rows for one of `CASES`."""
    from benchmarks import parts

    words, every = CASES[name]
    config = parts.config("preset=cartpole", parts.BUDGET, "evaluator.stop_at_return=null", *words)
    with parts.opened(config) as system:
        turns = Turns(system, every)
        while system.total_frames() < trained_frames:
            next(turns.loop)
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(repeats):
            for evaluating in found:
                found[evaluating].append(turns.learn(seconds, evaluating))
    rows = []
    for i, who in enumerate(("collector", "learner")):
        with_it, without = ([rates[i] for rates in found[evaluating]] for evaluating in (True, False))
        unit = ("frames", "updates")[i]
        detail = (
            f"{statistics.median(with_it):,.0f} {unit}/s with it, {statistics.median(without):,.0f} without; "
            f"{len(turns.seconds)} evaluations of {statistics.median(turns.seconds or [0.0]):.1f} s"
        )
        rows.append(Row(f"evaluator {name}, {who} keeps", parts.ratio(with_it, without), detail=detail))
    return rows


def main() -> None:
    arguments = parser("How much the evaluator slows collection and learning.", seconds=5.0)
    arguments.add_argument("--trained-frames", type=int, default=TRAINED_FRAMES, help="before anything is measured")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    for name in CASES:
        rows += measure(name, args.seconds, args.repeats, args.trained_frames)
    show("Evaluator: rate with it / rate without", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
