"""How far acting and updates are from the time of their matrix products alone, job by job.

    python -m benchmarks.limits [--json FILE] [--only cartpole pong ...] [--seconds 0.5] [--repeats 3]

A pass of acting and an update of the trainer's parts are observed while they run: every matrix product and convolution
is noted with its shapes and strides. The least time is that of these calls alone, one after another on one core, in
float32; bfloat16 is for information. Both sides take turns. Acting is a vector step's pass for all agents; an update is
of one agent, or of all eight stacked ones, on batches in memory.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.agents import IQN
from benchmarks.report import Row, figure, parser, show

if TYPE_CHECKING:
    import torch

    from trainer.training.system import System

FILLED_FRAMES = 1_000
BAR = 3.0  # of MLPs with 250 units and wider, convolutions and IQN
COMMON = ("schedule=sequential", "replay.capacity_frames=20_000", "agents.learner=sequential", "learner.num_threads=1")


@dataclass(frozen=True)
class Job:
    """Work to be measured.

    Args:
        words: what it is.
        arguments: configuration.
        bar: most times its limit; None: for information, as calls of so small products cost more than their arithmetic.
    """

    words: str
    arguments: tuple[str, ...]
    bar: float | None = None


JOBS = {
    "cartpole": Job("CartPole, MLP 120-84", ("preset=cartpole",)),
    "lunarlander": Job("LunarLander, MLP 256-256", ("preset=lunarlander", "algorithm.hidden_sizes=[256,256]"), BAR),
    "pong": Job("Pong, Nature CNN", ("preset=pong",), BAR),
    "treasurehunt": Job("treasurehunt, IQN 250-250, two agents", tuple(IQN), BAR),
    "minatar": Job("MinAtar Breakout, Rainbow", ("preset=minatar", "algorithm=rainbow"), BAR),
    "stacked": Job(
        "treasurehunt, MLP 120-84, eight agents stacked",
        ("preset=treasurehunt", "env.kwargs.num_agents=8", "agents.learner=stacked"),
    ),
    "ludo": Job("Ludo by self-play, MLP 128-128 dueling", ("preset=ludo_selfplay",)),
}


@dataclass(frozen=True)
class Layout:
    """Shape and strides of an argument that is a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def filled(self, dtype: torch.dtype) -> torch.Tensor:
        """Random numbers in this layout."""
        import torch

        size = 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return torch.randn(size).to(dtype).as_strided(self.shape, self.strides)


Call = tuple[Any, tuple[Any, ...]]  # an operation, and its arguments, with a Layout for each tensor


@contextmanager
def noted(calls: Counter[Call]) -> Iterator[None]:
    """Count the matrix products and convolutions that run meanwhile, those in TorchScript too."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    def layout(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return Layout(tuple(argument.shape), argument.stride())
        return tuple(argument) if isinstance(argument, list) else argument

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._overloadpacket in flop_registry:
                calls[func, tuple(map(layout, args))] += 1
            return func(*args, **(kwargs or {}))

    with Noting():
        yield


def counted(work: Callable[[], object]) -> tuple[int, Counter[Call]]:
    """Floating-point operations of one call of `work`, and the calls that do them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    calls: Counter[Call] = Counter()
    with torch.no_grad(), FlopCounterMode(display=False) as counter, noted(calls):
        work()
    return counter.get_total_flops(), calls


def products(calls: Counter[Call], dtype: torch.dtype) -> Callable[[], None]:
    """A function that makes these calls, on random numbers of a type."""
    from torch import no_grad

    made = []
    for (operation, arguments), count in calls.items():
        given = [
            one.filled(dtype) if isinstance(one, Layout) else list(one) if isinstance(one, tuple) else one
            for one in arguments
        ]
        made += [partial(operation, *given)] * count

    @no_grad()
    def run() -> None:
        for call in made:
            call()

    return run


def seconds_of(work: Callable[[], object], seconds: float) -> float:
    """Median seconds of a call, of at least three."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def phases(system: System) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Acting and an update by the parts of a run with enough transitions, to be counted and to be timed."""
    import torch

    from benchmarks import parts
    from trainer.learning.feed import flat

    rollout, updating = parts.rollouts(system)[0], system.learners.updating[0]  # type: ignore[attr-defined]
    with torch.inference_mode():
        seen = [agent.seen() for agent in rollout.agents]
    batches = [flat(learner.replay.sample()) for learner in updating.learners]
    update = (
        partial(updating.stack.update, batches) if len(batches) > 1 else partial(updating.updater.update, batches[0])
    )
    for _ in range(3):  # recorded in the first call, optimised in the second
        update()

    def act() -> None:
        rollout.policies.act(seen)

    # In inference mode, as workers act, a linear layer is not taken apart into its product before it is noted.
    return {"acting": (act, torch.inference_mode()(act)), "update": (update, update)}


def measure(name: str, seconds: float, repeats: int) -> list[Row]:
    """The rows of one of `JOBS`, six for acting and six for an update."""
    import torch

    from benchmarks import parts

    job, rows = JOBS[name], list[Row]()
    given = {argument.partition("=")[0] for argument in job.arguments}
    common = [argument for argument in COMMON if argument.partition("=")[0] not in given]
    with parts.opened(parts.config(*job.arguments, *common, parts.BUDGET)) as system:
        while system.total_frames() < FILLED_FRAMES:
            parts.rollouts(system)[0].collect_round()
        for phase, (work, timed) in phases(system).items():
            flop, calls = counted(work)
            sides = {"taken": timed, "float32": products(calls, torch.float32)}
            sides["bfloat16"] = products(calls, torch.bfloat16)
            for side in sides.values():
                side()
            found = parts.by_turns({key: partial(seconds_of, side, seconds) for key, side in sides.items()}, repeats)
            rows += rows_of(f"{job.words}, {phase}", job.bar, flop, sum(calls.values()), found)
    return rows


def rows_of(name: str, bar: float | None, flop: int, calls: int, found: dict[str, list[float]]) -> list[Row]:
    """The rows of acting or of an update from the seconds of each side."""
    ratio = statistics.median(a / b for a, b in zip(found["taken"], found["float32"], strict=True))
    taken, exact, half = (statistics.median(found[side]) for side in ("taken", "float32", "bfloat16"))
    limits = f"{figure(1e3 * taken)} ms taken, {figure(1e3 * exact)} ms in float32, {figure(1e3 * half)} in bfloat16"
    return [
        Row(f"{name}: taken / limit", ratio, "x", bar, at_most=True, detail=limits),
        Row(f"{name}: operations", flop / 1e6, "MFLOP", detail=f"in {calls} products"),
        Row(f"{name}: rate of these products in float32", flop / exact / 1e9, "GFLOP/s"),
        Row(f"{name}: rate of these products in bfloat16", flop / half / 1e9, "GFLOP/s"),
        Row(f"{name}: limit", 1e3 * exact, "ms"),
        Row(f"{name}: taken", 1e3 * taken, "ms"),
    ]


def main() -> None:
    arguments = parser("Time of acting and of an update / time of their matrix products alone.", 0.5, 3)
    arguments.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), help="jobs; all by default")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter, rows = Meter(), list[Row]()
    for name in args.only:
        rows += measure(name, args.seconds, args.repeats)
    show("Taken / limit: the matrix products alone, on one core", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
