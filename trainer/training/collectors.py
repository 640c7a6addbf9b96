"""Collector workers in processes: all use of TorchRL's `MultiAsyncCollector` is in this file.

That collector starts all of its workers together. So a worker that replaces a dead one gets another collector, with
this worker alone. The weights reach all workers through the agents' boards.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import TensorDictReplayBuffer

from trainer.algorithms import make_policy
from trainer.config.run_config import first_line
from trainer.config.sections import Config
from trainer.host import programs
from trainer.host.errors import RunFailed
from trainer.host.resources import MEBIBYTE
from trainer.host.signals import STOPPING
from trainer.memory.boards import START_S, ControlBoard
from trainer.roles.agents import end_episodes, model_id, without_scheme
from trainer.roles.collector import StreamCollector, make_environment
from trainer.roles.rollout import CollectorPlan
from trainer.roles.shared_memory import SharedMemoryLink
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.rows import Row
from trainer.training.playing import resumed
from trainer.training.supervisor import Role, Supervised, Supervisor

POLL_S = 2e-3  # between two checks of workers that start
SAY_EVERY_S = 1.0  # between two lines on how many have started
NAMED_S = 3.0  # most time until the exit code of a worker that failed to start is known
THREAD_S = 0.1  # most time for the end of a thread in which TorchRL waits for a worker
SHUTDOWN_S = 4.0  # most time for the shutdown of a collector whose worker is gone
CLOSE_S = 30.0  # most time for a worker to close its environments, while it gives signs of life
SNAPSHOT_S = 5.0  # most time for the workers to save their state
SNAPSHOT_POLL_S = 2e-4


class CollectorWorkers:
    """Collectors in processes; see `trainer.training.playing.Collectors`.

    Args:
        config: of the run.
        plans: of the workers, in their order: all of the run, or those of a node.
        board: control board.
        supervisor: of the processes.
        progress: takes a line on the start, as `Loggers.progress`.
    """

    def __init__(
        self, config: Config, plans: Sequence[CollectorPlan], board: ControlBoard, supervisor: Supervisor,
        progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.config, self.board, self._progress, self.plans = config, board, progress, list(plans)
        self._collectors: list[Any] = []  # all of TorchRL's collectors, in the order in which they were made
        self._workers: dict[int, _Worker] = {}  # those that were started, by their place in `plans`
        self.supervised: list[Supervised] = [supervisor.add(self._role(at)) for at in range(len(plans))]

    def _role(self, at: int) -> Role:
        worker = self.plans[at].worker
        return Role(
            role=f"collector {worker}",
            name=partial(self._name, at),
            start=partial(self._start_again, at),
            heartbeat=lambda: float(self.board.heartbeat[worker]),
            hang_s=self.config.faults.hang_seconds,
            before=partial(self._make_room, at),
            then=lambda: "; another one takes its place, the others go on",
            when=partial(self._when, at),
            known_as=f"collector {worker}",
            closing_s=CLOSE_S,
        )

    @property
    def restarts(self) -> int:
        """Number of workers that replaced another one."""
        return sum(one.restarts for one in self.supervised)

    @property
    def processes(self) -> list[Any]:
        """The processes of the workers that were started."""
        found = [worker.process for worker in self._workers.values()]
        return [process for process in found if process is not None]

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """Continue the numbers of starts of the run that is resumed, and with `exact` the workers' state."""
        self.plans = resumed(self.plans, starts, exact)

    def starts(self) -> list[int]:
        """Number of starts of each worker."""
        return [plan.start + 1 for plan in self.plans]

    def start(self) -> None:
        """Start all workers and wait until they are up.

        Raises:
            RunFailed: one of them died or hung; an environment that cannot be made is not tried again.
        """
        places, began, said = range(len(self.plans)), time.monotonic(), EverySeconds(SAY_EVERY_S)
        making = self._begin(list(places))
        for at, one in enumerate(self.supervised):
            one.process = self._workers[at] = _Worker(self, self.plans[at].worker, making, at)
        while making.going_on():
            time.sleep(POLL_S)
            if said.crossed():
                up, seconds = int((self.board.pid > 0).sum()), time.monotonic() - began
                self._progress(f"starting workers: {up} of {len(places)} make their environments, {seconds:.0f} s")
            for at in places:
                if self.supervised[at].silent():
                    worker = self.plans[at].worker
                    raise RunFailed(
                        f"collector worker {worker} ({self._what(at)}) did not start within "
                        f"{START_S + self.config.faults.hang_seconds:.0f} s: look what its environment waits for, "
                        "or raise faults.hang_seconds",
                        role=f"collector {worker}",
                    )
        if making.error is not None:
            deadline = time.monotonic() + NAMED_S
            while time.monotonic() < deadline:  # the worker is named as soon as it is gone
                for one in self.supervised:
                    if (why := one.death()) is not None:
                        raise RunFailed(f"{one.name()} {why[0]}", one.role.role, why[1], one.pid)
                time.sleep(POLL_S)
            text = f"the collector workers could not be started: {first_line(making.error)}"
            raise RunFailed(text) from making.error
        making.known = True

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Let every worker collect a round."""
        self.board.round[0] += 1
        while (self.board.rounds_done < self.board.round[0]).any():
            wait()

    def save_snapshots(self, number: int) -> None:
        """Let each worker save its state while all wait for their next round."""
        board, deadline = self.board, time.monotonic() + SNAPSHOT_S
        if not self._collectors:
            return
        board.snapshot[0] = number
        while (board.snapshots_done < number).any() and time.monotonic() < deadline:
            if not all(one.alive for one in self.supervised):
                return  # its supervisor reports it; a checkpoint without snapshots is complete, too
            time.sleep(SNAPSHOT_POLL_S)

    def metrics(self) -> Row:
        """See `Collectors`."""
        return {"worker_restarts": self.restarts}

    def close(self) -> None:
        """Shut TorchRL's collectors down; a worker that has closed its environments ends at once."""
        for making in {worker.making for worker in self._workers.values()}:
            making.wait(THREAD_S)
        for collector in self._collectors:
            collector.shutdown(timeout=1.0, raise_on_error=False)
        for one in self.supervised:
            one.process = None
        self._collectors, self._workers = [], {}

    def _begin(self, places: list[int]) -> _Making:
        plans = [self.plans[at] for at in places]
        workers = [plan.worker for plan in plans]
        self.board.heartbeat[workers] = time.monotonic() + START_S
        self.board.pid[workers] = self.board.closed[workers] = 0
        # Made in two steps, so that close() finds the workers if the constructor fails, or is interrupted as it waits
        # for a worker whose environment hangs.
        collector = MultiAsyncCollector.__new__(MultiAsyncCollector)
        arguments = _arguments(plans, self.board)
        self._collectors.append(collector)
        return _Making(collector, arguments)

    def _start_again(self, at: int) -> _Worker:
        self._workers[at] = _Worker(self, self.plans[at].worker, self._begin([at]), 0, again=True)
        return self._workers[at]

    def _make_room(self, at: int) -> None:
        """Prepare the restart of a worker: end its open episodes, and delete its error and its collector."""
        plan = self.plans[at]
        self.board.write_error(plan.worker, "")
        collector = self._workers[at].making.collector
        if collector is not self._collectors[0]:  # it had this worker only
            collector.shutdown(timeout=SHUTDOWN_S, raise_on_error=False)
            self._collectors.remove(collector)
        end_episodes(plan.agents, plan.worker)
        self.plans[at] = dataclasses.replace(plan, start=plan.start + 1, exact=False)

    def _name(self, at: int, pid: int | None) -> str:
        return f"collector worker {self.plans[at].worker} ({f'pid {pid}, ' if pid else ''}{self._what(at)})"

    def _what(self, at: int) -> str:
        plan = self.plans[at]
        envs = plan.agents[0].streams.envs_per_worker
        return f"{envs} x {self.config.env.id}, seeds from {plan.first_seed}"

    def _when(self, at: int) -> str:
        plan = self.plans[at]
        frames = plan.agents[0].board.frames[plan.worker]
        return f" after {frames} frames" if frames else " while starting"


class _Worker:
    """A worker of one of TorchRL's collectors; see `trainer.training.supervisor.Handle`.

    Args:
        workers: of the run.
        worker: its number.
        making: its collector.
        place: its index among the workers of this collector.
        again: whether it replaces another worker.
    """

    ended_at = math.inf

    def __init__(
        self, workers: CollectorWorkers, worker: int, making: _Making, place: int, again: bool = False
    ) -> None:
        self._workers, self._worker, self.making, self._place, self._again = workers, worker, making, place, again

    @property
    def process(self) -> Any:
        """The process, of `multiprocessing`; None before TorchRL has started it."""
        processes = getattr(self.making.collector, "procs", ())
        return processes[self._place] if self._place < len(processes) else None

    @property
    def pid(self) -> int | None:
        """Process id, which it writes onto the board when it starts."""
        return int(self._workers.board.pid[self._worker]) or None

    @property
    def exitcode(self) -> int | None:
        """None while it runs, and while TorchRL waits for its start, as TorchRL notices its death by itself."""
        return None if self.process is None or self.making.going_on() else self.process.exitcode

    @property
    def told(self) -> str:
        """The error that it wrote onto the board."""
        return self._workers.board.read_error(self._worker)

    @property
    def closed(self) -> bool:
        """Whether its environments are closed, or are still being made after a restart."""
        return bool(self._workers.board.closed[self._worker]) or (self._again and self.making.going_on())

    def problem(self) -> str:
        """Whether TorchRL could not start it, or it uses too much memory, in words; "" if neither."""
        if self.making.going_on():
            return ""
        config = self._workers.config
        if not self.making.known:
            self.making.known = True
            torch.set_num_threads(config.learner.num_threads)  # TorchRL changed it
            if self.making.error is not None:
                return f"could not be started: {first_line(self.making.error)}"
        limit = config.faults.worker_memory_mb
        used = _resident_bytes(self.pid or 0) / MEBIBYTE if limit is not None else 0.0
        if limit is not None and used > limit:
            return f"held {used:.0f} MB, more than faults.worker_memory_mb={limit}"
        return ""

    def kill(self) -> None:
        """End it at once."""
        process = self.process
        if process is not None and process.exitcode is None:
            programs.end_all([process.pid])
            process.join()


class _Making:
    """The start of a collector in a thread, as TorchRL waits there for its workers, which may take seconds or hang.

    Attributes:
        error: with which it failed.
        known: whether the main process has seen its end.
    """

    def __init__(self, collector: Any, arguments: dict[str, Any]) -> None:
        self.collector, self._arguments = collector, arguments
        self.error: Exception | None = None
        self.known = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def going_on(self) -> bool:
        """Whether TorchRL waits for workers."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most `seconds`."""
        self._thread.join(seconds)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # only the main thread handles them, no process started here
        try:
            self.collector.__init__(**self._arguments)
            self.collector.start()
        except Exception as error:  # of a worker, of any type, or TorchRL's about a worker that is gone
            self.error = error


def _resident_bytes(pid: int) -> int:
    """Memory of a process that it shares with no other, in bytes; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _arguments(plans: list[CollectorPlan], board: ControlBoard) -> dict[str, Any]:
    """Arguments of TorchRL's collector; the replay and the policy that it wants are those of the first agent."""
    agents = plans[0].agents
    first = agents[0]
    policy_factory = partial(make_policy, first.config, first.spec)
    policy = policy_factory()  # not the learner's: TorchRL moves what it gets into shared memory
    buffer = TensorDictReplayBuffer(storage=first.storage, batch_size=first.config.learner.batch_size, shared=True)
    theirs = [dataclasses.replace(plan, agents=tuple(without_scheme(agent) for agent in agents)) for plan in plans]
    return {
        "create_env_fn": [make_environment] * len(plans),
        "create_env_kwargs": [
            {"plan": plan, "link": SharedMemoryLink(board, plan.agents, plan.worker)} for plan in theirs
        ],
        "policy": policy,
        "policy_factory": policy_factory,
        "frames_per_batch": first.config.collector.envs_per_worker,
        "total_frames": -1,
        "replay_buffer": buffer,
        "extend_buffer": False,
        "collector_class": StreamCollector,
        "weight_sync_schemes": {model_id(agent): agent.weights for agent in agents},
    }
