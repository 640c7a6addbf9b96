"""Side by side with other libraries: the same jobs, the same replay ratio, in one run on this machine.

    python -m benchmarks.peers [--json FILE] [--peerbench DIR] [--venvs DIR] [--only NAME ...] [--solve ppo]

Each job of ``works.py`` is run by this trainer (``peer_ours.py``), by Stable-Baselines3 (``sb3_dqn.py`` in the folder
of peers' drivers, in its own virtual environment, made by that folder's ``install.sh sb3``) and, CartPole only, by
TorchRL's DQNTrainer (``peer_torchrl.py``), by turns. Each side has several settings of threads and environments, and
its best one counts, by the median over the repeats. Then the time to solve CartPole: seconds from the first frame to
the weights whose greedy mean over 20 episodes is at least 475, with the trainer's default preset. A driver that is
missing or fails leaves a row without a value.
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
        name: for ``--only`` and the rows.
        env_id: the job.
        ours: settings of this trainer to choose from, as words of ``peer_ours.py``.
        peer: who it is compared to.
        theirs: settings of the peer to choose from, as words of its driver.
        bar: least ratio of frames per second; None: for information.
    """

    name: str
    env_id: str
    ours: tuple[str, ...]
    peer: str
    theirs: tuple[str, ...]
    bar: float | None


OURS = {
    "CartPole-v1": ("--envs-per-worker 16", "--envs-per-worker 64"),
    "LunarLander-v3": ("--envs-per-worker 16", "--envs-per-worker 16 --threads 2"),
    "ALE/Pong-v5": ("--envs-per-worker 8", "--envs-per-worker 8 --threads 2"),
}
COMPARISONS = (
    Comparison(
        "cartpole", "CartPole-v1", OURS["CartPole-v1"], "Stable-Baselines3",
        ("--n-envs 8", "--n-envs 8 --threads 2"), 2.5,
    ),
    Comparison(
        "lunarlander", "LunarLander-v3", OURS["LunarLander-v3"], "Stable-Baselines3",
        ("--n-envs 8", "--n-envs 8 --threads 2"), 1.6,
    ),
    Comparison(
        "pong", "ALE/Pong-v5", OURS["ALE/Pong-v5"], "Stable-Baselines3",
        ("--n-envs 1 --threads 2", "--n-envs 8", "--n-envs 8 --threads 2"), 1.3,
    ),
    Comparison(
        "torchrl", "CartPole-v1", OURS["CartPole-v1"][:1], "TorchRL DQNTrainer",
        ("--n-envs 1", "--n-envs 1 --threads 2"), 10.0,
    ),
    # As nobody documents it, but as fast as it goes in one process.
    Comparison(
        "torchrl-vector", "CartPole-v1", OURS["CartPole-v1"][:1], "TorchRL DQNTrainer with 8 environments",
        ("--n-envs 8",), None,
    ),
)  # fmt: skip


def run(command: Sequence[str], cwd: Path = ROOT) -> dict[str, Any]:
    """The JSON line that a driver prints; ``{"error": ...}`` when it prints none."""
    environment = {k: v for k, v in os.environ.items() if k not in NOT_ONE_THREAD} | {"PYTHONDONTWRITEBYTECODE": "1"}
    print("$", " ".join(command), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        tail = (done.stderr.strip().splitlines() or ["nothing printed"])[-1]
        return {"error": f"exit code {done.returncode}: {tail}"}
    print(lines[-1], file=sys.stderr, flush=True)
    return json.loads(lines[-1])


def commands(comparison: Comparison, args: argparse.Namespace) -> tuple[list[list[str]], list[list[str]], Path]:
    """Command lines of our settings and of the peer's, and the folder that the peer's run in."""
    steps = str(round(WORKS[comparison.env_id].steps * args.share))
    own = [sys.executable, "-m", "benchmarks.peer_ours", "--env", comparison.env_id, "--steps", steps]
    if comparison.peer.startswith("TorchRL"):
        base, cwd = [sys.executable, "-m", "benchmarks.peer_torchrl", "--steps", steps], ROOT
    else:
        python = str((args.venvs / "pb_sb3" / "bin" / "python").absolute())
        base, cwd = [python, "sb3_dqn.py", "--env", comparison.env_id, "--steps", steps], args.peerbench
    return [[*own, *s.split()] for s in comparison.ours], [[*base, *s.split()] for s in comparison.theirs], cwd


def compare(comparison: Comparison, args: argparse.Namespace) -> Row:
    """The row of one comparison."""
    ours, theirs, cwd = commands(comparison, args)
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _ in range(args.repeats):
        for side, lines, folder in (("ours", ours, ROOT), ("theirs", theirs, cwd)):
            for i, command in enumerate(lines):
                runs.setdefault((side, i), []).append(run(command, folder))
    mine, my_words = best(runs, "ours", comparison.ours)
    other, other_words = best(runs, "theirs", comparison.theirs)
    name = f"peers, {comparison.env_id}, frames/s / {comparison.peer}"
    ratio = mine / other if other > 0 else math.nan
    return Row(name, ratio, bar=comparison.bar, detail=f"ours {my_words}; {comparison.peer} {other_words}")


def best(runs: dict[tuple[str, int], list[dict[str, Any]]], side: str, settings: Sequence[str]) -> tuple[float, str]:
    """The highest median of frames per second among a side's settings, and words for it; NaN when no setting ran."""
    medians = {}
    for i, words in enumerate(settings):
        rates = [line["env_steps_per_s"] for line in runs[side, i] if "error" not in line]
        if rates:
            medians[words] = statistics.median(rates)
    if not medians:
        return math.nan, f"failed ({runs[side, 0][0]['error']})"
    words = max(medians, key=lambda key: medians[key])
    updates = next(line["updates"] for line in runs[side, settings.index(words)] if "error" not in line)
    return medians[words], f"{figure(medians[words])}/s with {words} ({updates} updates)"


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
    """Seconds to solve CartPole by Stable-Baselines3 with rl-zoo3's settings for ``ppo`` or DQN (``zoo``)."""
    words = {"ppo": "--n-envs 8 --steps 100000", "zoo": "--steps 50000"}[how].split()
    python = str((args.venvs / "pb_sb3" / "bin" / "python").absolute())
    line = run([python, "sb3_dqn.py", "--solve", how, "--seed", str(seed), *words], args.peerbench)
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
    drivers = ROOT.parent / "shared" / "peerbench"
    arguments.add_argument("--peerbench", type=Path, default=drivers, help="peers' drivers")
    arguments.add_argument("--venvs", type=Path, default=Path("/tmp/peer-venvs"), help="peers' virtual environments")
    arguments.add_argument("--only", nargs="*", default=names, choices=names)
    arguments.add_argument("--solve", nargs="*", default=[], choices=("ppo", "zoo"), help="peers to solve CartPole too")
    arguments.add_argument("--share", type=float, default=1.0, help="of each job's frames, to try the benchmark itself")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter = Meter()
    rows = [compare(comparison, args) for comparison in COMPARISONS if comparison.name in args.only]
    if "solve" in args.only:
        rows.append(solve_row("time to solve CartPole, default preset", lambda seed: solve_ours(seed, args), SOLVED_S))
        for how in args.solve:
            name = f"time to solve CartPole, Stable-Baselines3 {'PPO' if how == 'ppo' else 'DQN'}, rl-zoo3's settings"
            rows.append(solve_row(name, lambda seed, how=how: solve_sb3(seed, args, how), None))
    show("Side by side with peers", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
