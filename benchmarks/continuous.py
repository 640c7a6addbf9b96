"""Updates per second of SAC and TD3 on one thread, with Stable-Baselines3's in turns.

    python -m benchmarks.continuous --sb3 PYTHON_WITH_SB3 [--json FILE]

HalfCheetah's sizes: 17 numbers seen, 6 of an action, layers of 256-256, batches of 256. Nothing is sampled: the
trainer's `Updater.update` is given batches, and Stable-Baselines3's `train` a buffer that returns one. Each side is a
process; while one measures, the other waits.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.report import Row, parser, show

BARS = {"sac": 1.2, "td3": None}


def serve(name: str) -> None:
    """Make updates for so many seconds for each line of standard input, and print how many a second."""
    import torch

    from benchmarks.agreement import batches
    from trainer.algorithms import build
    from trainer.config.algorithms import ALGORITHMS
    from trainer.config.sections import LearnerConfig
    from trainer.envs import BoxAction, EnvSpec, Leaf
    from trainer.host.resources import prepare_process
    from trainer.learning.update import Updater

    prepare_process()
    torch.set_num_threads(1)
    given = batches(8)
    box = BoxAction((6,), (-1.0,) * 6, (1.0,) * 6)
    spec = EnvSpec("made", (Leaf("observation", (17,), "float32", "vector"),), box)
    section = ALGORITHMS[name].section(name=name, hidden_sizes=[256, 256], target_tau=0.005)
    config = LearnerConfig(learning_rate=3e-4, max_grad_norm=None, batch_size=256)
    updater = Updater(build(section, config, spec), config, torch.device("cpu"))
    updater.prepare(given[0])
    answer(lambda number: updater.update(given[number % 8]))


def answer(update: Callable[[int], Any]) -> None:
    """Answer each line of standard input, a number of seconds, by updates per second in it."""
    for line in itertools.chain(["0.5"], sys.stdin):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < float(line):
            update(count)
            count += 1
        print(count / (time.perf_counter() - start), flush=True)


def measure(name: str, sb3: str, seconds: float, repeats: int) -> Row:
    """The ratio of both sides."""
    commands = {
        "trainer": [sys.executable, "-m", "benchmarks.continuous", "--serve", name],
        "sb3": [sb3, "-m", "benchmarks.peer_agreement", "--serve", name],
    }
    sides: dict[str, Any] = {
        side: subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for side, command in commands.items()
    }
    found: dict[str, list[float]] = {side: [] for side in sides}
    for process in sides.values():
        process.stdout.readline()  # of the warm-up
    for _ in range(repeats):
        for side, process in sides.items():
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
            found[side].append(float(process.stdout.readline()))
    for process in sides.values():
        process.stdin.close()
        process.wait()
    ratio = statistics.median(a / b for a, b in zip(found["trainer"], found["sb3"], strict=True))
    mine, theirs = (statistics.median(values) for values in found.values())
    detail = f"trainer {mine:.0f}, Stable-Baselines3 {theirs:.0f} updates/s"
    return Row(f"{name}, updates on one thread", ratio, bar=BARS[name], detail=detail)


def main() -> None:
    """Print the ratios."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return
    arguments = parser("Updates of SAC and TD3 beside Stable-Baselines3's.", seconds=2.0)
    arguments.add_argument("--sb3", required=True, help="Python of an environment with Stable-Baselines3")
    args = arguments.parse_args()
    rows = [measure(name, args.sb3, args.seconds, args.repeats) for name in BARS]
    show("Trainer / Stable-Baselines3", rows, args.json)


if __name__ == "__main__":
    main()
