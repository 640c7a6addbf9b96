"""Write the learning table, docs/learning.md: the return of presets x algorithms x seeds.

    python -m benchmarks.learning [--only LunarLander-v3 ...] [--algorithms dqn ...] [--seeds 5 6 7 8 9] [--jobs 2]

Each run is `python -m trainer.run` with the preset's budget, as a user types it. Its return is the mean of 100 greedy
episodes of the best policy, which the evaluations during the run chose; these episodes have other seeds. A run that is
in docs/learning/runs.jsonl is not repeated (delete its line to repeat it), so the benchmark can be stopped and started
again. The table has the median and the interquartile mean over seeds with 95 % bootstrap intervals (Agarwal et al.
2021, the method of rliable); the curves show the interquartile mean of the evaluations. New runs take seeds 5 to 9,
because presets were tuned on 0 to 4. Runs that were made before one of `CHANGES` are marked until they are repeated.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.learning_tasks import ALGORITHMS, CHANGES, TASKS, Change, Task
from benchmarks.machine import cpu_s, describe, machine_cpu_s, tree
from benchmarks.report import Row, figure, parser, show
from trainer.telemetry.rows import of_kind, read

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "learning"
RUNS = FOLDER / "runs.jsonl"
NOTES = FOLDER / "notes.md"  # bars that were missed, and what was tried


def key(run: dict[str, Any]) -> tuple[str, str, int]:
    """Task, algorithm and seed, which identify a run."""
    return run["task"], run["algorithm"], run["seed"]


def finished() -> dict[tuple[str, str, int], dict[str, Any]]:
    """The recorded runs; of several with the same key the newest."""
    lines = RUNS.read_text().splitlines() if RUNS.exists() else []
    return {key(run): run for run in map(json.loads, lines)}


def train(task: Task, algorithm: str, seed: int, jobs: int) -> dict[str, Any]:
    """Make one run by the command that a user types, and return its record; `jobs` says how many run at a time."""
    words = [*task.arguments, *ALGORITHMS[algorithm], f"seed={seed}"]
    others, start = -others_cpu_s(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "trainer.run", *words]
        subprocess.run(
            [*command, f"run_dir={run_dir}", "logger.terminal=none"], check=True, stdout=subprocess.DEVNULL, cwd=ROOT
        )
        summary = json.loads((run_dir / "summary.json").read_text())
        curve = [
            [row["frames"], round(float(row["eval_return_mean"]), 2)] for row in of_kind(read(run_dir)[0], "evaluation")
        ]
        commit = json.loads((run_dir / "versions.json").read_text()).get("git_commit", "")
    return {
        "task": task.name,
        "algorithm": algorithm,
        "seed": seed,
        "command": " ".join(["python", *command[1:]]),
        "return": round(summary["eval_return_mean"], 2),
        "last_return": round(summary["eval_last_return_mean"], 2),
        "episodes": summary["eval_episodes"],
        "frames": summary["frames"],
        "updates": summary["updates"],
        "wall_s": round(summary["wall_s"], 1),
        "commit": commit,
        "hardware": describe(),
        "jobs": jobs,
        "other_cores": round((others + others_cpu_s()) / (time.perf_counter() - start), 1),
        "curve": curve,
    }


def others_cpu_s() -> float:
    """Seconds of CPU time that all programs but this benchmark and its runs have spent."""
    return machine_cpu_s() - cpu_s(tree())


def interquartile_mean(values: ArrayLike) -> Any:
    """Mean of the middle half along the last axis, [..., N] to [...] (Agarwal et al. 2021, section 4.3)."""
    from scipy.stats import trim_mean

    return trim_mean(values, 0.25, axis=-1)


def interval(values: Sequence[float], draws: int = 2_000) -> tuple[float, float]:
    """95 % bootstrap interval of the interquartile mean over seeds."""
    means = interquartile_mean(np.random.default_rng(0).choice(values, (draws, len(values))))
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def rows(runs: Iterable[dict[str, Any]]) -> list[Row]:
    """A row for each task and algorithm; the bar stands beside the best algorithm of a task."""
    runs, table = list(runs), []
    for task in TASKS:
        lines = []
        for algorithm in task.algorithms:
            trials = [run for run in runs if (run["task"], run["algorithm"]) == (task.name, algorithm)]
            if not trials:
                continue
            returns = [run["return"] for run in trials]
            low, high = interval(returns)
            minutes = statistics.median(run["wall_s"] for run in trials) / 60
            detail = (
                f"IQM {figure(interquartile_mean(returns))} [{figure(low)}, {figure(high)}], {len(trials)} seeds, "
                f"{statistics.median(run['frames'] for run in trials):,.0f} frames, {minutes:.1f} min"
            )
            lines.append(Row(f"{task.name}, {algorithm}", statistics.median(returns), "", detail=detail))
        if lines:
            best = max(lines, key=lambda line: line.value)
            lines[lines.index(best)] = Row(best.name, best.value, "", task.bar, detail=best.detail)
        table += lines
    return table


def write_table(runs: Iterable[dict[str, Any]]) -> None:
    """docs/learning.md with a table for each task, and its curves; then docs/learning/notes.md, written by hand."""
    runs = sorted(runs, key=key)
    machines = dict(zip(sorted({machine(run) for run in runs}), ascii_lowercase, strict=False))
    parts = [
        "# Learning table\n",
        "`python -m benchmarks.learning` writes this page. A run's return is the mean of 100 greedy episodes of "
        "its best policy, which the evaluations during the run chose; these episodes have other seeds. The table "
        "has the median over seeds and the interquartile mean (IQM) with its 95 % bootstrap interval over seeds. "
        "The command below a table repeats its runs, one for each seed. All runs are in "
        "[learning/runs.jsonl](learning/runs.jsonl), with their curves and commits.\n",
        "**last policy**: the same for the last policy of each run, for which no evaluation made a choice. **made "
        "at**: the commits of the runs; a mark says that the command gives other results now. Presets were tuned "
        "on seeds 0 to 4 (see the end), so nothing was chosen by the rows with seeds 5 to 9. In runs made before "
        "36cc05b a point of the curve has the frame count at which the evaluation was requested, but weights from "
        "up to one evaluation's distance later, so these curves rise too early.\n",
        "Hardware:\n",
        *(f"- {letter}: {hardware}" for hardware, letter in machines.items()),
        "",
    ]
    for task in TASKS:
        trials = [run for run in runs if run["task"] == task.name]
        if not trials:
            continue
        parts.append(f"## {task.name}\n\nBar: {task.bar:g} ({task.reference})\n")
        parts.append(
            "| algorithm | seeds | median | IQM | each seed | last policy | frames | minutes | hardware | made at |\n"
            "|---|---|---|---|---|---|---|---|---|---|"
        )
        for algorithm in task.algorithms:
            of = [run for run in trials if run["algorithm"] == algorithm]
            if of:
                parts.append(line(algorithm, of, machines))
        parts.append("")
        parts += footnotes(trials)
        commands = {run["algorithm"]: run["command"] for run in reversed(trials)}  # of each one's first seed
        parts += [f"    {commands[name]}" for name in task.algorithms if name in commands]
        picture = FOLDER / f"{slug(task.name)}.png"
        draw(task, trials, picture)
        parts.append(f"\n![{task.name}](learning/{picture.name})\n")
    if NOTES.exists():
        parts.append(NOTES.read_text().rstrip())
    (FOLDER.parent / "learning.md").write_text("\n".join(parts).rstrip() + "\n")


def machine(run: dict[str, Any]) -> str:
    """The machine of a run, how many runs it made at a time, and whether other programs ran beside them."""
    beside = ", beside other programs" if run.get("other_cores", 0.0) > 0.2 else ""
    return f"{run['hardware']}; {run['jobs']} at a time{beside}"


@functools.cache
def contains(commit: str, change: str) -> bool:
    """Whether a commit contains a change; False if git does not know one of them."""
    command = ["git", "merge-base", "--is-ancestor", change, commit]
    return bool(commit) and subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def outdated(run: dict[str, Any]) -> list[Change]:
    """The changes before which a run was made."""
    return [
        change
        for change in CHANGES
        if run["algorithm"] in change.algorithms
        and (not change.tasks or run["task"] in change.tasks)
        and not contains(run.get("commit", ""), change.commit)
    ]


def mark(change: Change) -> str:
    """The mark of a change in a table: one asterisk for the first, two for the second, and so on."""
    return r"\*" * (CHANGES.index(change) + 1)  # Markdown's asterisks


def footnotes(runs: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each change before which one of a table's runs was made."""
    found = dict.fromkeys(change for change in CHANGES for run in runs if change in outdated(run))
    lines = [f"- {mark(change)} made before {change.commit}: {change.what}" for change in found]
    return [*lines, ""] if lines else []


def line(algorithm: str, runs: Sequence[dict[str, Any]], machines: dict[str, str]) -> str:
    """A line of the table in Markdown."""
    returns = [run["return"] for run in runs]
    low, high = interval(returns)
    minutes = statistics.median(run["wall_s"] for run in runs) / 60
    last = [run["last_return"] for run in runs]
    frames = statistics.median(run["frames"] for run in runs)
    hardware = ", ".join(sorted({machines[machine(run)] for run in runs}))
    marks = [mark(change) for change in CHANGES if any(change in outdated(run) for run in runs)]
    commits = ", ".join(sorted({run.get("commit", "")[:7] or "?" for run in runs}))
    return (
        f"| {algorithm} | {numbers(sorted(run['seed'] for run in runs))} | {statistics.median(returns):.1f} "
        f"| {interquartile_mean(returns):.1f} [{low:.1f}, {high:.1f}] | {values(returns)} "
        f"| {statistics.median(last):.1f} ({values(last)}) | {frames:,.0f} | {minutes:.1f} | {hardware} "
        f"| {' '.join([commits, *marks])} |"
    )


def values(returns: Sequence[float]) -> str:
    """`-70.0, -80.0`: the returns, with commas between them."""
    return ", ".join(f"{value:.1f}" for value in returns)


def numbers(seeds: Sequence[int]) -> str:
    """`0-4`, or `0, 2, 4` where some seeds are missing."""
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole and len(seeds) > 1 else ", ".join(map(str, seeds))


def slug(name: str) -> str:
    """The name of a task as part of a file name."""
    return name.lower().replace(",", "").replace(" ", "_")


def draw(task: Task, runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the evaluations: interquartile mean and interval over seeds, a colour for each algorithm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for number, algorithm in enumerate(task.algorithms):
        curves = [np.array(run["curve"]).T for run in runs if run["algorithm"] == algorithm and run["curve"]]
        if not curves:
            continue
        frames = np.linspace(0, max(curve[0][-1] for curve in curves), 60)[1:]
        # A run that stopped when it was perfect stays at its last value.
        values = np.array([np.interp(frames, curve[0], curve[1]) for curve in curves])
        middle = interquartile_mean(values.T)
        low, high = np.array([interval(column, 200) for column in values.T]).T
        axes.plot(frames, middle, label=f"{algorithm} ({len(curves)})", color=f"C{number}")
        axes.fill_between(frames, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
    axes.axhline(task.bar, color="gray", linestyle=":", label=f"bar {task.bar:g}")
    axes.set(title=task.name, xlabel="frames", ylabel="greedy return, interquartile mean over seeds")
    axes.legend()
    picture.savefig(path)


def main() -> None:
    arguments = parser("Returns of algorithms and presets")
    arguments.add_argument("--only", nargs="+", default=[task.name for task in TASKS], help="names of tasks")
    arguments.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=list(range(5, 10)))
    arguments.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = arguments.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = finished()
    wanted = [
        (task, algorithm, seed)
        for task in TASKS
        if task.name in options.only
        for number, seed in enumerate(options.seeds)
        if number < task.seeds
        for algorithm in task.algorithms
        if algorithm in options.algorithms and (task.name, algorithm, seed) not in known
    ]

    def work(job: tuple[Task, str, int]) -> None:
        run = train(*job, options.jobs)
        with RUNS.open("a") as file:
            file.write(json.dumps(run) + "\n")
        print(
            f"{run['task']}, {run['algorithm']}, seed {run['seed']}: {run['return']} in {run['wall_s']} s", flush=True
        )

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, wanted))
    runs = finished().values()
    write_table(runs)
    show("Learning", rows(runs), options.json, "median over seeds; the whole table is in docs/learning.md")


if __name__ == "__main__":
    main()
