"""Several agents in one world: speed beside the public program, start-up, stacked against one after another, learning.

    python -m benchmarks.agents [--json FILE] [--only speed startup stacked learning soak] [--seeds 0 1 2 3 4]

The public program's figures are in the issue's documents: 650 agent-steps/s on treasurehunt with IQN, batch 64, one
update per 100 turns and agent; 24 to 39 s until five agents learn. ``benchmarks.worlds`` measures the worlds alone.
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

from benchmarks.report import Row, figure, parser, show

PUBLIC, SPEED_BAR = 650.0, 15.0
# The public program's learner: width 250, 64 cosines, 12 quantiles, a noisy dueling head, double, 5 frames stacked.
IQN = [
    "preset=treasurehunt", "algorithm=iqn", "algorithm.num_fractions=12", "algorithm.hidden_sizes=[250,250]",
    "algorithm.dueling=true", "algorithm.noisy=true", "env.frame_stack=5", "learner.batch_size=64",
    "schedule.frames_per_update=100", "evaluator.every_frames=0", "learner.learning_rate=2.5e-4",
]  # fmt: skip


def run(*arguments: str) -> dict[str, Any]:
    """The summary of one run by the command that people type, with the seconds until its first update."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, start = Path(folder) / "run", time.time()
        command = [sys.executable, "-m", "trainer.run", *arguments, f"run_dir={run_dir}", "logger.terminal=none"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        first = next((row for row in rows if all_learn(row)), None)
        summary["total_s"], summary["first"] = time.time() - start, first
        return summary


def all_learn(row: dict[str, Any]) -> bool:
    """Whether every agent has made an update."""
    own = [value for key, value in row.items() if key.endswith("/updates")]
    return bool(own) and min(own) > 0


def speed() -> list[Row]:
    """Agent-steps a second with the public program's learner, by each way of learning."""
    rows = []
    for learner in ("stacked", "process"):
        summary = run(*IQN, f"agents.learner={learner}", "budget_frames=200_000")
        rate = 2 * summary["frames_per_s"]
        detail = f"{rate:,.0f} agent-steps/s, {summary['updates_per_s']:.0f} updates/s of both agents"
        bar = SPEED_BAR if learner == "stacked" else None
        rows.append(
            Row(f"treasurehunt, IQN, {learner} / public program's {PUBLIC:.0f}", rate / PUBLIC, "x", bar, detail=detail)
        )
    return rows


def startup() -> list[Row]:
    """Seconds from the command until five agents, each in its own process, have made updates."""
    summary = run(
        "preset=treasurehunt", "env.kwargs.num_agents=5", "agents.learner=process", "logger.every_seconds=0.2",
        "learner.warmup_frames=1_000", "budget_frames=100_000", "evaluator.every_frames=0",
    )  # fmt: skip
    before_training = summary["total_s"] - summary["wall_s"]
    seconds = before_training + (summary["first"]["wall_s"] if summary["first"] else float("nan"))
    return [
        Row("five agents up and learning", seconds, "s", 10.0, True, "upper bound: the end's evaluation is counted")
    ]


def stacked(repeats: int) -> list[Row]:
    """Updates a second of eight agents in one stack over those of one after another, on batches in memory."""
    import torch

    from envs import EnvSpec, Leaf
    from trainer.algorithms import ALGORITHMS
    from trainer.config import AlgorithmConfig, LearnerConfig
    from trainer.learning import Learner
    from trainer.stacking import Stack

    torch.set_num_threads(1)
    rows = []
    for hidden, size, bar in (([120, 84], 64, 2.2), ([64, 64], 32, 3.0)):
        spec = EnvSpec("windows", (Leaf("observation", (150,), "bool", "binary"),), num_actions=4)
        algorithm, config = AlgorithmConfig(hidden_sizes=hidden), LearnerConfig(batch_size=size)
        both: list[list[Learner]] = [
            [
                Learner(ALGORITHMS["dqn"](algorithm, config, spec), config, algorithm, torch.device("cpu"))
                for _ in range(8)
            ]
            for _ in range(2)
        ]
        one_by_one, stack = both[0], Stack(both[1])
        batches = [
            {
                "action": torch.randint(0, 4, (size,)),
                "observation": torch.rand(size, 150) < 0.2,
                ("next", "observation"): torch.rand(size, 150) < 0.2,
                ("next", "reward"): torch.randn(size, 1),
                ("next", "terminated"): torch.rand(size, 1) < 0.1,
                ("next", "truncated"): torch.zeros(size, 1, dtype=torch.bool),
                ("next", "done"): torch.zeros(size, 1, dtype=torch.bool),
            }
            for _ in range(8)
        ]
        ratios = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            for _ in range(40):
                for learner, batch in zip(one_by_one, batches, strict=True):
                    learner.update(batch)
            middle = time.perf_counter()
            for _ in range(40):
                stack.update(batches)
            ratios.append((middle - start) / (time.perf_counter() - middle))
        text = "-".join(map(str, [150, *hidden, 4]))
        alone = (middle - start) / 40 * 1e3
        detail = f"{', '.join(figure(ratio) for ratio in ratios[1:])}; one after another {alone:.2f} ms"
        rows.append(
            Row(
                f"stacked / one after another, 8 agents, {text}, batch {size}",
                statistics.median(ratios[1:]),
                "x",
                bar,
                detail=detail,
            )
        )
    return rows


def learning(seeds: list[int]) -> list[Row]:
    """Return of the preset after 1M agent-steps, and how long it took."""
    runs = [run("preset=treasurehunt", f"seed={seed}") for seed in seeds]
    returns = [summary["eval_return_mean"] for summary in runs]
    detail = f"{', '.join(figure(value) for value in returns)}; 500,000 frames of each of 2 agents"
    seconds = statistics.median(summary["wall_s"] for summary in runs)
    return [
        Row("treasurehunt, greedy return per agent", statistics.median(returns), "", 170.0, detail=detail),
        Row("treasurehunt, 1M agent-steps", seconds, "s", 60.0, True, "median wall time of training"),
    ]


def soak(minutes: float) -> list[Row]:
    """Growth of memory and file descriptors of all processes of 50 agents in a larger world."""
    from benchmarks.machine import memory, tree

    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "trainer.run", "preset=treasurehunt", "env.kwargs={num_agents:50,height:61,width:61}",
            f"run_dir={folder}/run", "logger.terminal=none", "budget_frames=1_000_000_000",
            "replay.capacity_frames=6_400",
            "collector.envs_per_worker=4", "evaluator.every_frames=0", "learner.warmup_frames=2_000",
            "schedule.frames_per_update=200",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            seen = []
            start = time.monotonic()
            while time.monotonic() - start < minutes * 60:
                time.sleep(10)
                family = list(tree(process.pid))
                resident = sum(memory(pid).pss_mb for pid in family)
                handles = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in family)
                seen.append((resident, handles))
        finally:
            process.terminate()
            process.wait()
    settled = seen[len(seen) // 3]
    growth = seen[-1][0] / settled[0] - 1
    return [
        Row(
            f"50 agents, growth of memory over {minutes:g} minutes",
            100 * growth,
            "%",
            2.0,
            True,
            f"{seen[-1][0]:,.0f} MiB",
        ),
        Row("50 agents, growth of file descriptors", seen[-1][1] - settled[1], "", 0, True, f"{seen[-1][1]} in all"),
    ]


def main() -> None:
    arguments = parser("Several agents in one world")
    parts = ("speed", "startup", "stacked", "learning", "soak")
    arguments.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    arguments.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    arguments.add_argument("--minutes", type=float, default=10.0, help="of the soak")
    options = arguments.parse_args()
    made = {
        "speed": speed,
        "startup": startup,
        "stacked": lambda: stacked(options.repeats),
        "learning": lambda: learning(options.seeds),
        "soak": lambda: soak(options.minutes),
    }
    show("Agents", [row for part in options.only for row in made[part]()], options.json)


if __name__ == "__main__":
    main()
