"""Local agents on one shared network: speed by their number, compared with `async`, and return on CartPole.

    python -m benchmarks.shared_gradient [--json FILE] [--only speed solve async] [--seeds 0 1 2 3 4]

Speed: one update per environment step, MLP 256-256, batch 64, CartPole, 8 sub-environments each.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Row, parser, show

WORK = (
    "preset=cartpole", "algorithm.hidden_sizes=[256,256]", "learner.batch_size=64", "schedule.frames_per_update=1",
    "collector.envs_per_worker=8", "evaluator.stop_at_return=null",
)  # fmt: skip
SHARED = "schedule=shared_gradient"


def rate(seconds: float, *words: str) -> float:
    """Environment steps per second, each with one update, when everything runs."""
    from benchmarks import parts

    with parts.opened(parts.config(*WORK, SHARED, *words, parts.BUDGET)) as system:
        while min(plan.board.updates[0] for plan in system.plans) < 200:
            system.check()
            time.sleep(0.05)
        return parts.collected_per_s(system, seconds)


def speed(seconds: float, repeats: int) -> list[Row]:
    """Speed of one local agent, and of two / of one, with and without the lock."""
    from benchmarks import parts

    found = parts.by_turns(
        {
            "one": lambda: rate(seconds, "schedule.num_agents=1"),
            "two": lambda: rate(seconds, "schedule.num_agents=2"),
            "free": lambda: rate(seconds, "schedule.num_agents=2", "schedule.application=hogwild"),
        },
        repeats,
    )
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    return [
        Row("shared gradient, one agent, steps with an update each", middle["one"], "1/s"),
        Row("shared gradient, two agents / one, locked", parts.ratio(found["two"], found["one"]), bar=1.6,
            detail=f"{middle['two']:,.0f} steps/s on 2 cores"),
        Row("shared gradient, two agents / one, hogwild", parts.ratio(found["free"], found["one"]),
            detail=f"{middle['free']:,.0f} steps/s on 2 cores"),
    ]  # fmt: skip


def trained(*words: str) -> dict[str, Any]:
    """Make a run by the command that a user types; its summary."""
    with tempfile.TemporaryDirectory() as top:
        command = [sys.executable, "-m", "trainer.run", *words, f"run_dir={top}/run", "logger.terminal=none"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads((Path(top) / "run" / "summary.json").read_text())
    return found


def solve(seeds: list[int]) -> list[Row]:
    """Greedy return on CartPole within 100,000 frames of two local agents together."""
    words = ("preset=cartpole", SHARED, "schedule.num_agents=2", "budget_frames=100_000")
    runs = [trained(*words, f"seed={seed}") for seed in seeds]
    returns = [run["eval_return_mean"] for run in runs]
    told = ", ".join(f"{run['eval_return_mean']:.0f} at {run['frames']:,} in {run['wall_s']:.0f} s" for run in runs)
    return [Row("shared gradient, CartPole, median greedy return", statistics.median(returns), "", 500.0, detail=told)]


def against_async(seeds: list[int]) -> list[Row]:
    """The same frames and updates by two local agents, and by one worker and the learner."""
    words = (*WORK, "budget_frames=20_000", "evaluator.every_frames=0")
    mine = [trained(*words, SHARED, "schedule.num_agents=2", f"seed={seed}") for seed in seeds]
    its = [trained(*words, "collector.num_workers=1", f"seed={seed}") for seed in seeds]
    speeds = [statistics.median(run["frames"] / run["wall_s"] for run in runs) for runs in (mine, its)]
    returns = [statistics.median(run["eval_last_return_mean"] for run in runs) for runs in (mine, its)]
    return [
        Row("shared gradient with two agents / async with one worker, frames/s", speeds[0] / speeds[1],
            detail=f"{speeds[0]:,.0f} and {speeds[1]:,.0f}, start included; 20,000 frames and as many updates"),
        Row("the same, greedy return of the last policy", returns[0] / returns[1],
            detail=f"{returns[0]:.0f} and {returns[1]:.0f}, medians of {len(seeds)} seeds"),
    ]  # fmt: skip


def main() -> None:
    arguments = parser("Local agents that share a gradient.", repeats=3)
    arguments.add_argument(
        "--only", nargs="*", choices=["speed", "solve", "async"], default=["speed", "solve", "async"]
    )
    arguments.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), []
    if "speed" in args.only:
        rows += speed(args.seconds, args.repeats)
    if "solve" in args.only:
        rows += solve(args.seeds)
    if "async" in args.only:
        rows += against_async(args.seeds)
    show("Shared gradients", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
