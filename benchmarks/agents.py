"""Several agents in one world: speed, start-up, stacked against one after another, learning.

    python -m benchmarks.agents [--json FILE] [--only speed startup stacked sleeping learning modes soak]
        [--seeds 0 1 2 3 4]

`speed` is measured on treasurehunt with IQN, batch 64, and one update per 100 turns for each agent. `benchmarks.worlds`
measures the worlds alone.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row, figure, parser, show
from trainer.telemetry.rows import read

if TYPE_CHECKING:
    from trainer.learning.feed import Batch  # torch is imported where it is needed: the start-up of runs is measured
    from trainer.memory.boards import ControlBoard
    from trainer.roles.agents import AgentPlan

SLEEPERS, SLEEP_S = 8, 0.02  # agents whose updates sleep, for as long as an IQN update of cleanup takes
# Sorrel's learner: width 250, 64 cosines, 12 quantiles, a noisy dueling head, double, 5 frames stacked.
IQN = [
    "preset=treasurehunt", "algorithm=iqn", "algorithm.num_fractions=12", "algorithm.num_acting_fractions=12",
    "algorithm.hidden_sizes=[250,250]",
    "algorithm.dueling=true", "algorithm.noisy=true", "env.frame_stack=5", "learner.batch_size=64",
    "schedule.frames_per_update=100", "evaluator.every_frames=0", "learner.learning_rate=2.5e-4",
]  # fmt: skip


def run(*arguments: str) -> dict[str, Any]:
    """Make one run by the command that a user types; its summary, with the seconds until its first update."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, start = Path(folder) / "run", time.time()
        command = [sys.executable, "-m", "trainer.run", *arguments, f"run_dir={run_dir}", "logger.terminal=none"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
        rows, _ = read(run_dir)
        first = next((row for row in rows if all_learn(row)), None)
        summary["total_s"], summary["first"] = time.time() - start, first
        return summary


def all_learn(row: dict[str, Any]) -> bool:
    """Whether every agent has made an update."""
    updates = [value for key, value in row.items() if key.endswith("/updates")]
    return bool(updates) and min(updates) > 0


def speed() -> list[Row]:
    """Agent-steps a second with the learner of Sorrel, for each way of learning and precision."""
    rows = []
    ways = [("process", "float32"), ("stacked", "float32"), *([("process", "bfloat16")] if has_bfloat16() else [])]
    for learner, precision in ways:
        words = (f"agents.learner={learner}", f"learner.precision={precision}")
        summary = run(*IQN, *words, "budget_frames=200_000")
        rate = 2 * summary["frames_per_s"]
        detail = f"{summary['updates_per_s']:.0f} updates/s of both agents"
        rows.append(Row(f"treasurehunt, IQN, {learner}, {precision}, agent-steps", rate, "1/s", detail=detail))
    return rows


def has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices; other CPUs emulate it, at a tenth of the speed of float32."""
    return "avx512_bf16" in Path("/proc/cpuinfo").read_text() or "amx_bf16" in Path("/proc/cpuinfo").read_text()


def startup() -> list[Row]:
    """Seconds from the command until five agents, each in its own process, have made updates."""
    summary = run(
        "preset=treasurehunt", "env.kwargs.num_agents=5", "agents.learner=process", "logger.every_seconds=0.2",
        "learner.warmup_frames=1_000", "budget_frames=100_000", "evaluator.every_frames=0",
    )  # fmt: skip
    before_training = summary["total_s"] - summary["wall_s"]
    seconds = before_training + (summary["first"]["wall_s"] if summary["first"] else float("nan"))
    return [Row("from the command until five agents learn", seconds, "s", 10.0, True, "the final evaluation included")]


def stacked(repeats: int) -> list[Row]:
    """Updates a second of eight agents, stacked / one after another, on batches in memory."""
    import torch

    from trainer.algorithms import build
    from trainer.config.algorithms import DQNConfig
    from trainer.config.sections import LearnerConfig
    from trainer.envs import DiscreteAction, EnvSpec, Leaf
    from trainer.learning.stacking import Stack
    from trainer.learning.update import Updater

    torch.set_num_threads(1)
    rows = []
    for hidden, size, bar in (([120, 84], 64, 2.2), ([64, 64], 32, 3.0)):
        spec = EnvSpec("windows", (Leaf("observation", (150,), "bool", "binary"),), DiscreteAction(4))
        algorithm, config = DQNConfig(hidden_sizes=hidden), LearnerConfig(batch_size=size)
        both: list[list[Updater]] = [
            [Updater(build(algorithm, config, spec), config, torch.device("cpu")) for _ in range(8)] for _ in range(2)
        ]
        one_by_one, stack = both[0], Stack(both[1])
        batches: list[Batch] = [
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


def sleeping_learner(plan: AgentPlan, control: ControlBoard, device: str, pipe: Connection) -> None:
    """Body of a learner process whose updates sleep; everything else is the trainer's code."""
    import torch

    from trainer.learning.update import Updater
    from trainer.roles import learner_process as learning

    def update(self: Updater, batch: Batch) -> torch.Tensor:
        time.sleep(SLEEP_S)
        self.last_batch = batch
        return torch.zeros(len(batch["action"]))

    Updater.update = update  # type: ignore[method-assign]
    learning.run(plan, control, device, pipe)


def sleeping(seconds: float, repeats: int) -> list[Row]:
    """Speed of eight learner processes / of one, and of the collector beside them / alone, where updates only sleep.

    The learner processes of agents that should not learn are stopped; the three states take turns.
    """
    from benchmarks import machine, parts
    from trainer.roles import learner_process as learning

    config = parts.config(
        "preset=treasurehunt", f"env.kwargs.num_agents={SLEEPERS}", "agents.learner=process",
        "agents.hang_seconds=1e9", "schedule.frames_per_update=null", parts.BUDGET,
    )  # fmt: skip
    run, learning.run = learning.run, sleeping_learner  # what processes are started with
    with parts.opened(config) as system:
        learning.run = run
        boards = [plan.board for plan in system.plans]
        pids = [pid for learner in system.learners.remote if (pid := learner.supervised.pid) is not None]
        while not all(board.updates[0] for board in boards):
            system.check()
            time.sleep(0.1)

        def cpu_s(pids: list[int]) -> float:
            return machine.cpu_s({pid: fields for pid, fields in machine.stats().items() if pid in pids})

        def measure(learning_agents: int) -> tuple[float, float, float, float]:
            """Of the slowest learning agent updates/s; frames/s, also by the collector's CPU time; learners' cores."""
            for number, pid in enumerate(pids):
                os.kill(pid, signal.SIGCONT if number < learning_agents else signal.SIGSTOP)
            time.sleep(parts.SETTLE_S)
            before, frames, start = [int(board.updates[0]) for board in boards], system.total_frames(), time.monotonic()
            used, collected = cpu_s(pids), cpu_s(system.board.pid.tolist())
            time.sleep(seconds)
            spent = time.monotonic() - start
            made = [int(board.updates[0]) - old for board, old in zip(boards, before, strict=True)]
            updates, frames = min(made[:learning_agents], default=0), system.total_frames() - frames
            collected, used = cpu_s(system.board.pid.tolist()) - collected, cpu_s(pids) - used
            return updates / spent, frames / spent, frames / collected, used / spent

        try:
            turns = [[measure(count) for count in (0, 1, SLEEPERS)] for _ in range(repeats)]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    return sleepers_rows(turns)


def sleepers_rows(turns: Sequence[Sequence[Sequence[float]]]) -> list[Row]:
    """The rows of `sleeping`: of each turn what was measured with no, one and all agents learning."""
    from benchmarks import parts

    one, all_of_them = ([turn[state][0] for turn in turns] for state in (1, 2))
    alone, beside = ([turn[state][1] for turn in turns] for state in (0, 2))
    paces = f"{statistics.median(one):.1f} updates/s of one alone, {statistics.median(all_of_them):.1f} of the slowest"
    cores = statistics.median(turn[2][3] for turn in turns)
    rates = (
        f"{statistics.median(beside):,.0f} frames/s beside them, {statistics.median(alone):,.0f} alone; they keep "
        f"{cores:.2f} cores busy"
    )
    return [
        Row(
            f"{SLEEPERS} learner processes that sleep / one, time for as many updates each",
            parts.ratio(one, all_of_them),
            "x",
            1.15,
            True,
            paces,
        ),
        Row(f"collection beside {SLEEPERS} of them / alone", parts.ratio(beside, alone), "x", 0.95, detail=rates),
        Row(
            "the same by the collector's CPU seconds",
            parts.ratio(*([turn[state][2] for turn in turns] for state in (2, 0))),
        ),
    ]


def modes(seeds: list[int], frames: int) -> list[Row]:
    """Returns with each schedule, and the largest difference of their means.

    The unit is the standard error of a difference of two means, from the spread of seeds within a schedule. Above the
    bar the difference is significant at 5 % for three means of three seeds (Tukey's range test, q(3, 6) / sqrt 2).
    """
    returns = {
        schedule: [
            run("preset=treasurehunt", f"schedule={schedule}", f"seed={seed}", f"budget_frames={frames}")[
                "eval_return_mean"
            ]
            for seed in seeds
        ]
        for schedule in ("sequential", "sync", "async")
    }
    means = [statistics.mean(values) for values in returns.values()]
    within = statistics.mean(statistics.variance(values) for values in returns.values())
    error = math.sqrt(2 * within / len(seeds))
    rows = [
        Row(f"treasurehunt, schedule={name}, mean return of {len(seeds)} seeds", statistics.mean(values), "",
            detail=", ".join(figure(value) for value in values))
        for name, values in returns.items()
    ]  # fmt: skip
    largest = (max(means) - min(means)) / error if error else math.nan
    detail = f"{max(means) - min(means):.1f} of return, one standard error is {error:.1f}"
    return [*rows, Row("largest difference between schedules", largest, "standard errors", 3.07, True, detail)]


def learning(seeds: list[int]) -> list[Row]:
    """Return of the preset after 1M agent-steps, and the time that takes."""
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
    from benchmarks.machine import tree
    from benchmarks.soak import anonymous_mb

    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "trainer.run", "preset=treasurehunt", "env.kwargs.num_agents=50",
            "env.kwargs.height=61", "env.kwargs.width=61",
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
                if process.poll() is not None:
                    raise RuntimeError(f"the run of 50 agents ended with exit code {process.returncode}")
                family = list(tree(process.pid))
                resident = sum(anonymous_mb(pid) for pid in family)
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
    parts = ("speed", "startup", "stacked", "sleeping", "learning", "modes", "soak")
    arguments.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    arguments.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    arguments.add_argument("--frames", type=int, default=500_000, help="of each run of modes, on three seeds")
    arguments.add_argument("--minutes", type=float, default=10.0, help="of the soak")
    options = arguments.parse_args()
    made = {
        "speed": speed,
        "startup": startup,
        "stacked": lambda: stacked(options.repeats),
        "sleeping": lambda: sleeping(options.seconds, options.repeats),
        "learning": lambda: learning(options.seeds),
        "modes": lambda: modes(options.seeds[:3], options.frames),
        "soak": lambda: soak(options.minutes),
    }
    from benchmarks.machine import Meter

    meter = Meter()
    rows = [row for part in options.only for row in made[part]()]
    show("Agents", rows, options.json, meter.stop().note())


if __name__ == "__main__":
    main()
