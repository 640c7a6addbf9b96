"""The trainer beside other libraries: the same jobs, the same replay ratio, in one run on this machine.

    python -m benchmarks.peers [--json FILE] [--sb3 PYTHON] [--only NAME ...] [--solve ppo]

Each job of `works.py` is run in turns by this trainer (`peer_ours.py`), by Stable-Baselines3 (`peer_sb3.py`, by the
Python of another virtual environment: `pip install torch==2.13.0`, then `"stable-baselines3==2.9.*"
"gymnasium[box2d,mujoco]" ale-py opencv-python-headless`) and, for CartPole only, by TorchRL's DQNTrainer
(`peer_torchrl.py`). Both sides try the same numbers of environments and threads; the best choice of each counts, by the
median over the repeats. The row below each comparison says by how much their updates per frame differ, with a bar of
1 %. Then follows the time to solve CartPole with the trainer's default preset: seconds from the first frame to the
weights whose mean greedy return over 20 episodes is at least 475. If a driver is missing or fails, its row is empty.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Row, figure, parser, show
from benchmarks.works import WORKS

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900  # of one run
SOLVED_RETURN, SOLVED_S, SEEDS = 475, 10.0, (0, 1, 2, 3, 4)
NOT_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # each driver sets its own number


@dataclass(frozen=True)
class Comparison:
    """One job and one peer.

    Args:
        name: for `--only` and the rows.
        env_id: the job.
        peer: who it is compared to.
        envs: numbers of environments that both sides choose from.
        bar: least ratio of frames per second; None: for information.
        their_envs: for a peer that is run as its documentation has it, with fewer choices; None: the same as ours.
    """

    name: str
    env_id: str
    peer: str
    envs: tuple[int, ...]
    bar: float | None
    their_envs: tuple[int, ...] | None = None


THREADS = (1, 2)
UPDATES_DIFFER = 1.0  # per cent, at most
COMPARISONS = (
    Comparison("cartpole", "CartPole-v1", "Stable-Baselines3", (8, 16, 64), 2.5),
    Comparison("lunarlander", "LunarLander-v3", "Stable-Baselines3", (8, 16), 1.6),
    Comparison("pong", "ALE/Pong-v5", "Stable-Baselines3", (1, 8), 1.3),
    Comparison("halfcheetah", "HalfCheetah-v5", "Stable-Baselines3 SAC", (1, 8), 1.6),
    Comparison("pendulum", "Pendulum-v1", "Stable-Baselines3 SAC", (1, 8), 1.6),
    Comparison("torchrl", "CartPole-v1", "TorchRL DQNTrainer", (8, 16, 64), None),
    Comparison("torchrl-documented", "CartPole-v1", "TorchRL DQNTrainer, one environment", (8, 16, 64), 10.0, (1,)),
)


def run(command: Sequence[str]) -> dict[str, Any]:
    """The JSON line that a driver prints; `{"error": ...}` when it prints none."""
    environment = {k: v for k, v in os.environ.items() if k not in NOT_ONE_THREAD} | {"PYTHONDONTWRITEBYTECODE": "1"}
    print("$", " ".join(command), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        tail = (done.stderr.strip().splitlines() or ["nothing printed"])[-1]
        return {"error": f"exit code {done.returncode}: {tail}"}
    print(lines[-1], file=sys.stderr, flush=True)
    return json.loads(lines[-1])


def commands(comparison: Comparison, args: argparse.Namespace) -> dict[str, dict[str, list[str]]]:
    """The command lines of each side, `ours` and `theirs`, by the name of the choice."""
    steps = str(round(WORKS[comparison.env_id].steps * args.share))
    ours = [sys.executable, "-m", "benchmarks.peer_ours", "--env", comparison.env_id, "--steps", steps]
    if comparison.peer.startswith("TorchRL"):
        other = [sys.executable, "-m", "benchmarks.peer_torchrl", "--steps", steps]
    else:
        other = [str(args.sb3), "-m", "benchmarks.peer_sb3", "--env", comparison.env_id, "--steps", steps]

    def choices(command: list[str], envs: Sequence[int]) -> dict[str, list[str]]:
        return {
            f"{n} environments, {threads} threads": [*command, "--n-envs", str(n), "--threads", str(threads)]
            for n in envs
            for threads in THREADS
        }

    return {"ours": choices(ours, comparison.envs), "theirs": choices(other, comparison.their_envs or comparison.envs)}


Lines = dict[str, list[dict[str, Any]]]  # what a side's drivers printed, for each choice in words


def compare(comparison: Comparison, args: argparse.Namespace) -> list[Row]:
    """Run both sides by turns; the rows of the comparison."""
    sides = commands(comparison, args)
    lines: dict[str, Lines] = {side: {} for side in sides}
    for _ in range(args.repeats):
        for side, choices in sides.items():
            for words, command in choices.items():
                lines[side].setdefault(words, []).append(run(command))
    return rows_of(comparison, lines["ours"], lines["theirs"])


def rows_of(comparison: Comparison, ours: Lines, theirs: Lines) -> list[Row]:
    """The ratio of frames per second, and the difference of updates per frame."""
    mine, other = best(ours), best(theirs)
    name = f"peers, {comparison.env_id}"
    return [
        Row(f"{name}, frames/s / {comparison.peer}", mine.rate / other.rate if other.rate > 0 else math.nan,
            bar=comparison.bar, detail=f"ours {mine.words}; theirs {other.words}"),
        Row(f"{name}, updates for each frame, difference to {comparison.peer}",
            100 * abs(mine.ratio / other.ratio - 1) if other.ratio > 0 else math.nan, "%", UPDATES_DIFFER, True,
            detail=f"{mine.updates:,} updates of {mine.frames:,} frames; {other.updates:,} of {other.frames:,}"),
    ]  # fmt: skip


@dataclass(frozen=True)
class Best:
    """The choice of a side that counts; NaN where none ran."""

    rate: float = math.nan
    updates: int = 0
    frames: int = 0
    words: str = "failed"

    @property
    def ratio(self) -> float:
        """Updates for each frame."""
        return self.updates / self.frames if self.frames else math.nan


def best(choices: Lines) -> Best:
    """The highest median of frames per second among a side's choices."""
    found = [Best(words=f"failed ({lines[0]['error']})") for lines in choices.values() if "error" in lines[0]][:1]
    for words, lines in choices.items():
        ran = [line for line in lines if "error" not in line]
        if ran:
            rate = statistics.median(line["env_steps_per_s"] for line in ran)
            told = f"{figure(rate)}/s with {words}"
            found.append(Best(rate, ran[0]["updates"], ran[0]["env_steps"], told))
    return max(found, key=lambda one: -1.0 if math.isnan(one.rate) else one.rate)


def solve_ours(seed: int, args: argparse.Namespace) -> float:
    """Seconds to solve CartPole with the default preset; infinite when it was not solved within its budget."""
    with tempfile.TemporaryDirectory() as folder:
        keys = [
            f"seed={seed}", f"run_dir={folder}/run", f"evaluator.stop_at_return={SOLVED_RETURN}",
            "evaluator.episodes=20", "evaluator.final_episodes=20", "logger.terminal=none", "learner.device=cpu",
        ]  # fmt: skip
        command = [sys.executable, "-m", "trainer.run", *keys]
        print("$", " ".join(command), file=sys.stderr, flush=True)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return math.nan
        seconds = json.loads((Path(folder) / "run" / "summary.json").read_text())["solved_s"]
    print(f"seed {seed}: {seconds} s", file=sys.stderr, flush=True)
    return math.inf if seconds is None else seconds


def solve_sb3(seed: int, args: argparse.Namespace, how: str) -> float:
    """Seconds to solve CartPole by Stable-Baselines3 with rl-zoo3's settings for `ppo` or DQN (`zoo`)."""
    words = {"ppo": "--n-envs 8 --steps 100000", "zoo": "--steps 50000"}[how].split()
    line = run([str(args.sb3), "-m", "benchmarks.peer_sb3", "--solve", how, "--seed", str(seed), *words])
    if "error" in line:
        return math.nan
    return math.inf if line["solve_greedy_s"] is None else line["solve_greedy_s"]


def solve_row(name: str, solve: Callable[[int], float], bar: float | None) -> Row:
    """Median over the seeds."""
    seconds = [solve(seed) for seed in SEEDS]
    known = [s for s in seconds if not math.isnan(s)]
    median = statistics.median(known) if known else math.nan
    words = ", ".join("failed" if math.isnan(s) else "unsolved" if math.isinf(s) else f"{s:.1f}" for s in seconds)
    return Row(name, median, "s", bar, at_most=True, detail=f"seeds {SEEDS[0]} to {SEEDS[-1]}: {words}")


def main() -> None:
    names = [comparison.name for comparison in COMPARISONS] + ["solve"]
    arguments = parser("The same jobs by this trainer and by other libraries.", repeats=3)
    arguments.add_argument(
        "--sb3", type=Path, default=Path("python-with-sb3"), help="Python that has Stable-Baselines3"
    )
    arguments.add_argument("--only", nargs="*", default=names, choices=names)
    arguments.add_argument("--solve", nargs="*", default=[], choices=("ppo", "zoo"), help="peers to solve CartPole too")
    arguments.add_argument("--share", type=float, default=1.0, help="of each job's frames, to try the benchmark itself")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter = Meter()
    rows = [row for comparison in COMPARISONS if comparison.name in args.only for row in compare(comparison, args)]
    if "solve" in args.only:
        rows.append(solve_row("time to solve CartPole, default preset", lambda seed: solve_ours(seed, args), SOLVED_S))
        for how in args.solve:
            name = f"time to solve CartPole, Stable-Baselines3 {'PPO' if how == 'ppo' else 'DQN'}, rl-zoo3's settings"
            rows.append(solve_row(name, partial(solve_sb3, args=args, how=how), None))
    show("Beside other libraries", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
