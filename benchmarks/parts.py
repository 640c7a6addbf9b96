"""Open the trainer's parts for a measurement, and compare two things fairly."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer import envs
from trainer.config.compose import load
from trainer.config.run_config import to_dict
from trainer.config.sections import Config
from trainer.host.resources import prepare_process
from trainer.host.signals import Stopped, StopSignals
from trainer.roles.agents import streams_of
from trainer.roles.rollout import Rollout
from trainer.run_folder import folder as run_folder
from trainer.telemetry.loggers import RunInfo, open_loggers
from trainer.training.building import build, choose_device
from trainer.training.cluster_collectors import ClusterCollectors
from trainer.training.collectors import CollectorWorkers
from trainer.training.loop import Loop
from trainer.training.playing import LocalCollectors
from trainer.training.system import System
from trainer.training.train import _train

NO_LIMIT = 2**60  # frames
BUDGET = "budget_frames=10_000_000_000"  # never used up
SETTLE_S = 0.1  # after a process was let go
ENOUGH = -1  # in place of a signal's number


@dataclass(frozen=True)
class Trained:
    """What a training loop did: counts, and wall seconds from its first line to its last."""

    frames: int
    updates: int
    wall_s: float


def config(*arguments: str) -> Config:
    """The configuration of `KEY=VALUE` arguments; by default silent, on the CPU, one worker, no evaluations."""
    quiet = ["logger.terminal=none", "evaluator.every_frames=0", "learner.device=cpu", "collector.num_workers=1"]
    given = {argument.partition("=")[0] for argument in arguments}
    return load([*(a for a in quiet if a.partition("=")[0] not in given), *arguments]).config


def worker_processes(system: System) -> list[Any]:
    """The collectors' processes; none with `schedule=sequential`, or where they are on nodes."""
    if isinstance(system.collectors, ClusterCollectors):
        return []
    assert isinstance(system.collectors, CollectorWorkers | LocalCollectors)
    return system.collectors.processes


def rollouts(system: System) -> list[Rollout]:
    """The rollouts in this process, with `schedule=sequential`."""
    assert isinstance(system.collectors, LocalCollectors)
    return system.collectors.rollouts


@contextlib.contextmanager
def opened(config: Config) -> Iterator[System]:
    """A run's parts as `trainer.training.train` makes them, in a temporary folder; collectors wait for a limit."""
    prepare_process()
    torch.set_num_threads(config.learner.num_threads)
    world, device = envs.describe_world(config.env), choose_device(config.learner.device)
    top = Path(tempfile.mkdtemp(prefix="benchmark-"))
    loggers, kept = None, contextlib.ExitStack()
    try:
        folder = run_folder.opened(replace(config, run_dir=str(top / "run")), ["benchmark"])
        run_dir, config = kept.enter_context(folder)
        streams = streams_of(config)
        info = RunInfo(
            run_dir, config.env.id, config.algorithm.name, config.seed, config.budget_frames, to_dict(config),
            streams.num_workers, streams.num_streams, str(device),
        )  # fmt: skip
        loggers = open_loggers(config.logger, info)
        with StopSignals(leftovers=top) as stop, stop.raising(after_s=0):
            system = build(config, run_dir, world, device, run_dir / "scratch", loggers, stop)
            try:
                system.start()
                system.publish()
                yield system
            finally:
                resume(system)
                system.close()
    except Stopped:
        raise KeyboardInterrupt from None
    finally:
        if loggers is not None:
            loggers.close({})
        kept.close()
        shutil.rmtree(top, ignore_errors=True)


def train(system: System) -> Trained:
    """The trainer's training loop, to the end of its budget or until another thread calls `enough`."""
    start = time.perf_counter()
    try:
        _train(system, Loop(system))
    except Stopped:
        if system.stop.number != ENOUGH:
            raise
    return Trained(system.total_frames(), system.learners.local[0].updater.updates, time.perf_counter() - start)


def enough(system: System) -> None:
    """Let the training loop end after its current update."""
    system.stop.number = ENOUGH


def pause(system: System) -> None:
    """Stop the collectors' processes by a signal; if they waited for a limit instead, they would use CPU time."""
    _signal(system, signal.SIGSTOP)


def resume(system: System) -> None:
    """Let the collectors' processes go on."""
    _signal(system, signal.SIGCONT)


def _signal(system: System, number: int) -> None:
    for process in worker_processes(system):
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, number)


def wait_until_stepping(system: System, seconds: float = 120.0) -> None:
    """Wait until every collector has collected a frame.

    Raises:
        TimeoutError: one has not.
    """
    end = time.monotonic() + seconds
    while not (system.plans[0].board.frames > 0).all():
        system.check()
        if time.monotonic() > end:
            raise TimeoutError(
                f"after {seconds:g} s {(system.plans[0].board.frames == 0).sum()} collectors have no frame"
            )
        time.sleep(0.01)


def collected_per_s(system: System, seconds: float) -> float:
    """Frames per second of all collectors over `seconds` of this process doing nothing."""
    time.sleep(SETTLE_S)
    frames, start = system.total_frames(), time.perf_counter()
    time.sleep(seconds)
    rate = (system.total_frames() - frames) / (time.perf_counter() - start)
    system.check()
    return rate


def calls_per_s(call: Callable[[], object], seconds: float, per_call: int = 1) -> float:
    """How often a second something happens that one call of `call` does `per_call` times."""
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        call()
        count += per_call
    return count / (now - start)


def by_turns(measures: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Call each measure `repeats` times in turns, A B A B, so that a drift of the machine affects all alike."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def ratio(over: list[float], under: list[float]) -> float:
    """Median of the ratios of measurements that were neighbours in time."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
