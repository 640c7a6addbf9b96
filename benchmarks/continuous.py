"""Updates per second of algorithms for actions in a box, beside those of others and beside their arithmetic, in turns.

    python -m benchmarks.continuous --sb3 PYTHON_WITH_SB3 [--json FILE]

HalfCheetah's sizes: 17 numbers seen, 6 of an action, layers of 256-256, batches of 256. Nothing is sampled: the
trainer's `Updater.update` is given batches, and Stable-Baselines3's `train` a buffer that returns one (TQC and CrossQ
are of sb3-contrib). `plain` is SAC as a short script writes it (`benchmarks.plain_sac`), `eager` this trainer's update
without recording (one batched product for both critics, fused Adam), and the limit of the arithmetic is the time of an
update's matrix products alone. Each side is a process; while one measures, the others wait.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    from trainer.learning.update import Updater


@dataclass(frozen=True)
class Comparison:
    """A ratio of updates per second.

    Args:
        words: what is compared.
        algorithm: of both sides.
        side: of `SIDES`, above the line.
        others: below the line, the fastest of them; `sb3 1` is Stable-Baselines3 on one thread.
        bar: least ratio; None: for information.
        times: how many of the others there are room for, as two cores have twice the arithmetic of one.
    """

    words: str
    algorithm: str
    side: str
    others: tuple[str, ...]
    bar: float | None = None
    times: int = 1


SB3 = ("sb3 1", "sb3 2")
COMPARISONS = (
    Comparison("one thread / Stable-Baselines3 on one", "sac", "one thread", ("sb3 1",), 1.2),
    Comparison("two cores / Stable-Baselines3 on one or two", "sac", "at once", SB3, 1.6),
    Comparison("one thread / Stable-Baselines3 on one", "td3", "one thread", ("sb3 1",)),
    Comparison("one thread / sb3-contrib on one", "tqc", "one thread", ("sb3 1",), 1.4),
    Comparison("two cores / sb3-contrib on one or two", "tqc", "at once", SB3, 1.4),
    Comparison("one thread / sb3-contrib on one", "crossq", "one thread", ("sb3 1",), 1.4),
    Comparison("two cores / sb3-contrib on one or two", "crossq", "two threads", SB3, 1.4),
    Comparison("one thread / a plain script", "sac", "one thread", ("plain",), 1.6),
    Comparison("one thread / eager, batched critics, fused Adam", "sac", "one thread", ("eager",), 1.2),
    Comparison("one thread / limit of the arithmetic", "sac", "one thread", ("limit",), 0.55),
    Comparison("two cores / limit of the arithmetic", "sac", "at once", ("limit",), 0.45, 2),
)


def made(name: str, **options: Any) -> tuple[Updater, list[dict[Any, Any]]]:
    """An updater, and batches for it; `options` are of the section `learner`."""
    import torch

    from benchmarks.agreement import batches
    from trainer.algorithms import build
    from trainer.config.algorithms import AnyAlgorithmConfig, section_of
    from trainer.config.sections import LearnerConfig
    from trainer.envs import BoxAction, EnvSpec, Leaf
    from trainer.learning.update import Updater

    given = batches(8)
    box = BoxAction((6,), (-1.0,) * 6, (1.0,) * 6)
    spec = EnvSpec("made", (Leaf("observation", (17,), "float32", "vector"),), box)
    more = {"actor_every_updates": 3, "target_tau": None} if name == "crossq" else {"target_tau": 0.005}
    section = section_of(AnyAlgorithmConfig(hidden_sizes=[256, 256], **more), name)
    config = LearnerConfig(**{"learning_rate": 3e-4, "max_grad_norm": None, "batch_size": 256, **options})
    updater = Updater(build(section, config, spec), config, torch.device("cpu"))
    updater.prepare(given[0])
    return updater, given


def recorded(name: str, **options: Any) -> Callable[[int], Any]:
    """Updates of the trainer."""
    updater, given = made(name, **options)
    return lambda number: updater.update(given[number % 8])


def plain(name: str) -> Callable[[int], Any]:
    """Updates of the short script, with the same batches."""
    from benchmarks.agreement import batches
    from benchmarks.plain_sac import PlainSAC

    given, script = batches(8), PlainSAC(17, 6)
    return lambda number: script.update(given[number % 8])


def limit(name: str) -> Callable[[int], Any]:
    """The matrix products of an update alone."""
    import torch

    from benchmarks.limits import counted, products

    run = products(counted(partial(recorded(name, parallel_parts=False), 0))[1], torch.float32)
    return lambda number: run()


SIDES: dict[str, Callable[[str], Callable[[int], Any]]] = {
    "one thread": partial(recorded, parallel_parts=False),
    "at once": recorded,
    "two threads": partial(recorded, parallel_parts=False, num_threads=2),
    "eager": partial(recorded, parallel_parts=False, execution="eager"),
    "plain": plain,
    "limit": limit,
}


def serve(name: str, side: str) -> None:
    """Make updates for so many seconds for each line of standard input, and print how many a second."""
    import torch

    from trainer.host.resources import prepare_process

    prepare_process()
    torch.set_num_threads(2 if side == "two threads" else 1)
    update = SIDES[side](name)
    for line in itertools.chain(["0.5"], sys.stdin):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < float(line):
            update(count)
            count += 1
        print(count / (time.perf_counter() - start), flush=True)


def measured(name: str, sides: list[str], sb3: str, seconds: float, repeats: int) -> dict[str, list[float]]:
    """Updates per second of each side of an algorithm, in turns; none of a side that fails."""
    theirs = [sb3, "-m", "benchmarks.peer_agreement", "--serve", name]
    ours = [sys.executable, "-m", "benchmarks.continuous", "--serve", name]
    processes: dict[str, Any] = {}
    for side in sides:
        command = [*theirs, side.partition(" ")[2]] if side.startswith("sb3") else [*ours, side]
        process: Any = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if process.stdout.readline():  # of the warm-up
            processes[side] = process
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, process in processes.items():
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
            found[side].append(float(process.stdout.readline()))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return found


def row(compared: Comparison, found: dict[str, list[float]]) -> Row:
    """The ratio, by the medians of both sides."""
    rates = {side: statistics.median(values) for side, values in found.items() if values}
    name = f"{compared.algorithm}, {compared.words}"
    known = [side for side in compared.others if side in rates]
    if compared.side not in rates or not known:
        return Row(name, float("nan"), bar=compared.bar, detail="a side failed")
    other = max(known, key=lambda side: rates[side])
    detail = f"{rates[compared.side]:.0f} updates/s; {other}: {rates[other]:.0f}"
    return Row(name, rates[compared.side] / rates[other] / compared.times, bar=compared.bar, detail=detail)


def arithmetic(rate: float) -> list[Row]:
    """Operations of an update of SAC, and their rate by the limit's updates per second."""
    from benchmarks.limits import counted

    flop = counted(partial(recorded("sac", parallel_parts=False), 0))[0]
    return [
        Row("sac, operations of an update", flop / 1e6, "MFLOP"),
        Row("sac, rate of its matrix products alone, one core", flop * rate / 1e9, "GFLOP/s"),
    ]


def main() -> None:
    """Print the ratios."""
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:4])
        return
    names = list(dict.fromkeys(compared.algorithm for compared in COMPARISONS))
    arguments = parser("Updates of continuous control beside those of others.", seconds=1.0)
    arguments.add_argument("--sb3", required=True, help="Python of an environment with Stable-Baselines3 and -contrib")
    arguments.add_argument("--only", nargs="+", choices=names, default=names)
    args = arguments.parse_args()
    rows = []
    for name in args.only:
        of = [compared for compared in COMPARISONS if compared.algorithm == name]
        sides = list(dict.fromkeys(side for compared in of for side in (compared.side, *compared.others)))
        found = measured(name, sides, args.sb3, args.seconds, args.repeats)
        rows += [row(compared, found) for compared in of]
        if found.get("limit"):
            rows += arithmetic(statistics.median(found["limit"]))
    show("Updates/s of continuous control", rows, args.json)


if __name__ == "__main__":
    main()
