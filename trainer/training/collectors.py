"""Everything that is TorchRL's collector: how it is made, and its workers' processes.

TorchRL's `MultiAsyncCollector` starts its workers together and knows no other start, so a worker that takes a dead
one's place comes with a collector of its own, of one worker. Weights reach all of them through the agents' boards.
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
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.metrics import EverySeconds
from trainer.training.playing import resumed
from trainer.training.supervisor import Role, Supervised, Supervisor

POLL_S = 2e-3  # between two looks at workers that start
SAY_EVERY_S = 1.0  # between two words of how far they are
NAMED_S = 3.0  # until the exit code of a worker that failed to start is known
THREAD_S = 0.1  # that a thread may take to end in which TorchRL waits for a worker
SHUTDOWN_S = 4.0  # that TorchRL may take to forget a worker that is gone
CLOSE_S = 30.0  # that workers may take to close their environments, as long as each one that is closed shows life
SNAPSHOT_S = 5.0  # that they may take to write down where they stand
SNAPSHOT_POLL_S = 2e-4


class CollectorWorkers:
    """Collectors in processes of their own; see `trainer.training.playing.Collectors`.

    Args:
        config: the run.
        plans: of the workers, in their order.
        board: control board.
        supervisor: watches over them.
        loggers: are told how far they are as they start.
    """

    def __init__(
        self, config: Config, plans: Sequence[CollectorPlan], board: ControlBoard, supervisor: Supervisor,
        loggers: Loggers,
    ) -> None:  # fmt: skip
        self.config, self.board, self._loggers, self.plans = config, board, loggers, list(plans)
        self._collectors: list[Any] = []  # of TorchRL, all that were made, the first one first
        self._workers: dict[int, _Worker] = {}  # that are started
        self.supervised: list[Supervised] = [supervisor.add(self._role(worker)) for worker in range(len(plans))]

    def _role(self, worker: int) -> Role:
        return Role(
            role=f"collector {worker}",
            name=partial(self._name, worker),
            start=partial(self._start_again, worker),
            heartbeat=lambda: float(self.board.heartbeat[worker]),
            hang_s=self.config.faults.hang_seconds,
            before=partial(self._make_room, worker),
            then=lambda: "; another one takes its place, the others go on",
            when=partial(self._when, worker),
            known_as=f"collector {worker}",
            closing_s=CLOSE_S,
        )

    @property
    def restarts(self) -> int:
        """How often another worker took one's place."""
        return sum(one.restarts for one in self.supervised)

    @property
    def processes(self) -> list[Any]:
        """The process of each worker, as far as they are started."""
        found = [worker.process for worker in self._workers.values()]
        return [process for process in found if process is not None]

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """Go on with the numbers of those before, and where they stood."""
        self.plans = resumed(self.plans, starts, exact)

    def starts(self) -> list[int]:
        """How often each was started."""
        return [plan.start + 1 for plan in self.plans]

    def start(self) -> None:
        """Start all workers and wait until they are up.

        Raises:
            RunFailed: one of them died or hung on its way; an environment that cannot be made is not tried again.
        """
        workers, began, said = range(len(self.plans)), time.monotonic(), EverySeconds(SAY_EVERY_S)
        making = self._begin(list(workers))
        for worker, one in enumerate(self.supervised):
            one.process = self._workers[worker] = _Worker(self, worker, making, worker)
        while making.going_on():
            time.sleep(POLL_S)
            if said.crossed():
                up, seconds = int((self.board.pid > 0).sum()), time.monotonic() - began
                self._loggers.progress(
                    f"starting workers: {up} of {len(workers)} make their environments, {seconds:.0f} s"
                )
            for worker in workers:
                if self.supervised[worker].silent():
                    raise RunFailed(
                        f"collector worker {worker} ({self._what(worker)}) did not start within "
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
        """Have each worker write down where it stands, while all wait for their next round."""
        board, deadline = self.board, time.monotonic() + SNAPSHOT_S
        if not self._collectors:
            return
        board.snapshot[0] = number
        while (board.snapshots_done < number).any() and time.monotonic() < deadline:
            if not all(one.alive for one in self.supervised):
                return  # its supervisor says so; a checkpoint without its snapshots is a whole one all the same
            time.sleep(SNAPSHOT_POLL_S)

    def close(self) -> None:
        """Let TorchRL forget them; who has closed its environments ends at once."""
        for making in {worker.making for worker in self._workers.values()}:
            making.wait(THREAD_S)
        for collector in self._collectors:
            collector.shutdown(timeout=1.0, raise_on_error=False)
        for one in self.supervised:
            one.process = None
        self._collectors, self._workers = [], {}

    def _begin(self, workers: list[int]) -> _Making:
        self.board.heartbeat[workers] = time.monotonic() + START_S
        self.board.pid[workers] = self.board.closed[workers] = 0
        # Made in two steps, so that close() finds the workers also when the constructor fails, or is interrupted as it
        # waits for a worker whose environment is hung.
        collector = MultiAsyncCollector.__new__(MultiAsyncCollector)
        arguments = _arguments([self.plans[worker] for worker in workers], self.board)
        self._collectors.append(collector)
        return _Making(collector, arguments)

    def _start_again(self, worker: int) -> _Worker:
        self._workers[worker] = _Worker(self, worker, self._begin([worker]), 0, again=True)
        return self._workers[worker]

    def _make_room(self, worker: int) -> None:
        """For another worker in a dead one's place: its streams and its error's place are free again."""
        self.board.write_error(worker, "")
        collector = self._workers[worker].making.collector
        if collector is not self._collectors[0]:  # nothing is left in it
            collector.shutdown(timeout=SHUTDOWN_S, raise_on_error=False)
            self._collectors.remove(collector)
        plan = self.plans[worker]
        end_episodes(plan.agents, worker)
        self.plans[worker] = dataclasses.replace(plan, start=plan.start + 1, exact=False)

    def _name(self, worker: int, pid: int | None) -> str:
        return f"collector worker {worker} ({f'pid {pid}, ' if pid else ''}{self._what(worker)})"

    def _what(self, worker: int) -> str:
        plan = self.plans[worker]
        envs = plan.agents[0].streams.envs_per_worker
        return f"{envs} x {self.config.env.id}, seeds from {plan.first_seed}"

    def _when(self, worker: int) -> str:
        frames = self.plans[worker].agents[0].board.frames[worker]
        return f" after {frames} frames" if frames else " while starting"


class _Worker:
    """A worker of one of TorchRL's collectors; see `trainer.training.supervisor.Handle`.

    Args:
        workers: all of them.
        worker: its number.
        making: the collector that it is in.
        place: in that.
        again: it takes another one's place.
    """

    ended_at = math.inf

    def __init__(
        self, workers: CollectorWorkers, worker: int, making: _Making, place: int, again: bool = False
    ) -> None:
        self._workers, self._worker, self.making, self._place, self._again = workers, worker, making, place, again

    @property
    def process(self) -> Any:
        """Of `multiprocessing`; None before TorchRL has started it."""
        processes = getattr(self.making.collector, "procs", ())
        return processes[self._place] if self._place < len(processes) else None

    @property
    def pid(self) -> int | None:
        """Its id, which it tells as it starts."""
        return int(self._workers.board.pid[self._worker]) or None

    @property
    def exitcode(self) -> int | None:
        """None while it runs, and while TorchRL still waits for it, which finds out by itself."""
        return None if self.process is None or self.making.going_on() else self.process.exitcode

    @property
    def told(self) -> str:
        """What it left on the board."""
        return self._workers.board.read_error(self._worker)

    @property
    def closed(self) -> bool:
        """Whether its environments are, or are made in the place of others."""
        return bool(self._workers.board.closed[self._worker]) or (self._again and self.making.going_on())

    def problem(self) -> str:
        """That TorchRL could not start it, or that it has grown too large."""
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
    """A collector that is being made, in a thread: TorchRL waits for its workers, which may take seconds or hang.

    Attributes:
        error: that came of it.
        known: whether its end was looked at.
    """

    def __init__(self, collector: Any, arguments: dict[str, Any]) -> None:
        self.collector, self._arguments = collector, arguments
        self.error: Exception | None = None
        self.known = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def going_on(self) -> bool:
        """Whether TorchRL still waits for workers."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for it, but not longer."""
        self._thread.join(seconds)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # they are the main thread's, and of nobody it starts
        try:
            self.collector.__init__(**self._arguments)
            self.collector.start()
        except Exception as error:  # a worker's own one, of any type, or TorchRL's about a worker that is gone
            self.error = error


def _resident_bytes(pid: int) -> int:
    """Memory of a process that is its own; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _arguments(plans: list[CollectorPlan], board: ControlBoard) -> dict[str, Any]:
    """What TorchRL's collector is made of; its own replay and policy are the first agent's."""
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
