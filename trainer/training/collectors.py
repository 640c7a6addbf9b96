"""The collector's processes as the main process sees them: started, watched, restarted.

TorchRL's `MultiAsyncCollector` starts its workers together and knows no other start, so a worker that takes a dead
one's place comes with a collector of its own, of one worker. Weights reach all of them through the same board.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torchrl.data import TensorDictReplayBuffer

from trainer.algorithms import make_policy
from trainer.config.run_config import first_line
from trainer.config.sections import Config
from trainer.host import programs
from trainer.host.errors import RunFailed, exit_words, one_too_many, split_error
from trainer.host.signals import STOPPING
from trainer.memory.boards import START_S, ControlBoard
from trainer.memory.silence import Silence
from trainer.replay.streams import close_episodes
from trainer.roles.agents import AgentPlan, model_id, without_scheme
from trainer.roles.collector import StreamCollector, make_environment
from trainer.roles.rollout import CollectorPlan
from trainer.roles.shared_memory import SharedMemoryLink
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.metrics import EverySeconds
from trainer.training.learners import SHUTDOWN_S

POLL_S = 2e-3  # between two looks at workers that start
SAY_EVERY_S = 1.0  # between two words of how far they are
NAMED_S = 3.0  # until the exit code of a worker that failed to start is known
AGAIN_S = 2.0  # until a worker is tried again for which there was no room
CLOSE_S = 30.0  # that workers may take to close their environments, as long as each one that is closed shows life
MEBIBYTE = 2**20

# Gives a collector that is not yet made, and what makes it: whoever interrupts that finds the processes in the former.
Create = Callable[[list[CollectorPlan]], tuple[Any, Callable[[], None]]]


class CollectorWorkers:
    """All collector workers of a run; one that dies, hangs or grows too large is started anew.

    Args:
        config: the run.
        plans: of the workers, in their order.
        board: control board.
        create: makes TorchRL's collector for some of them.
        loggers: are told of every death.
    """

    def __init__(
        self, config: Config, plans: Sequence[CollectorPlan], board: ControlBoard, create: Create, loggers: Loggers
    ) -> None:
        self.config, self.board, self._create, self._loggers = config, board, create, loggers
        self.plans = list(plans)
        self.restarts = 0
        self._collectors: list[Any] = []  # all that were made, the first one first
        self._place: list[tuple[Any, int]] = []  # of each worker
        self._starting: dict[int, _Start] = {}
        self._again_at: dict[int, float] = {}  # when a worker is tried again that found no room to start
        self._silence = [Silence(config.faults.hang_seconds) for _ in plans]
        self._failures: list[deque[float]] = [deque() for _ in plans]

    @property
    def first(self) -> Any:
        """The collector that all workers began in."""
        return self._collectors[0]

    @property
    def processes(self) -> list[Any]:
        """The process of each worker, as far as they are started."""
        found = [(getattr(collector, "procs", ()), index) for collector, index in self._place]
        return [processes[index] for processes, index in found if index < len(processes)]

    def start(self) -> None:
        """Start all workers and wait until they are up.

        Raises:
            RunFailed: one of them died or hung on its way; an environment that cannot be made is not tried again.
        """
        start, began, said = self._begin(list(range(len(self.plans)))), time.monotonic(), EverySeconds(SAY_EVERY_S)
        while start.thread.is_alive():
            time.sleep(POLL_S)
            if said.crossed():
                making, seconds = int((self.board.pid > 0).sum()), time.monotonic() - began
                self._loggers.progress(
                    f"starting workers: {making} of {len(self.plans)} make their environments, {seconds:.0f} s"
                )
            silent = [worker for worker in range(len(self.plans)) if self._silent(worker)]
            if silent:
                raise RunFailed(
                    f"collector worker {silent[0]} ({self._what(silent[0])}) did not start within "
                    f"{START_S + self.config.faults.hang_seconds:.0f} s: look what its environment waits for, "
                    "or raise faults.hang_seconds",
                    role=f"collector {silent[0]}",
                )
        if start.error is not None:
            deadline = time.monotonic() + NAMED_S
            while time.monotonic() < deadline:  # the worker is named as soon as it is gone
                for worker in range(len(self.plans)):
                    if (exitcode := self._exitcode(worker)) is not None:
                        raise self._failure(worker, *self._death(worker, exitcode))
                time.sleep(POLL_S)
            raise RunFailed(f"the collector workers could not be started: {first_line(start.error)}") from start.error

    def check(self) -> None:
        """Start anew whoever is gone; cheap enough for every wait.

        Raises:
            RunFailed: one of them failed more often than `faults.max_failures` allows.
        """
        for worker in range(len(self.plans)):
            if worker in self._again_at:
                if time.monotonic() >= self._again_at[worker]:
                    self._start_anew(worker)
                continue
            start = self._starting.get(worker)
            if start is not None and not start.thread.is_alive():
                del self._starting[worker]
                torch.set_num_threads(self.config.learner.num_threads)  # TorchRL changed it
                if start.error is not None and self._exitcode(worker) is None:
                    self._kill(worker)
                    self._replace(worker, f"could not be started: {first_line(start.error)}", "")
                    continue
                start = None
            if (exitcode := self._exitcode(worker)) is not None:
                if start is None:  # else TorchRL still waits for it and finds out by itself
                    self._replace(worker, *self._death(worker, exitcode))
            elif self._silent(worker):
                self._kill(worker)
                traceback, cause = split_error(self.board.read_error(worker))  # it may hang as it closes
                silent = f"showed no sign of life for {self._silence[worker].silent_s:.0f} s and was ended"
                self._replace(worker, f"died: {cause}" if cause else silent, traceback)
            elif (limit := self.config.faults.worker_memory_mb) is not None and start is None:
                used = _resident_bytes(int(self.board.pid[worker])) / MEBIBYTE
                if used > limit:
                    self._kill(worker)
                    self._replace(worker, f"held {used:.0f} MB, more than faults.worker_memory_mb={limit}", "")

    def close(self) -> None:
        """Stop all of them; the board says STOP already."""
        for start in self._starting.values():
            start.thread.join(0.1)
        begun, workers = time.monotonic(), range(len(self.plans))
        self._silence = [Silence(SHUTDOWN_S, ends=True) for _ in workers]
        while time.monotonic() - begun < CLOSE_S and any(self._closing(worker) for worker in workers):
            time.sleep(POLL_S)
        for collector in self._collectors:
            collector.shutdown(timeout=1.0, raise_on_error=False)  # who has closed ends at once

    def _closing(self, worker: int) -> bool:
        """Whether a worker still makes or closes its environments, and shows life at that."""
        if self.board.closed[worker] or worker in self._starting or worker in self._again_at:
            return False
        return self._exitcode(worker) is None and not self._silent(worker)

    def _begin(self, workers: list[int]) -> _Start:
        now = time.monotonic()
        self.board.heartbeat[workers] = now + START_S
        self.board.pid[workers] = self.board.closed[workers] = 0
        collector, make = self._create([self.plans[worker] for worker in workers])
        self._collectors.append(collector)
        if len(workers) == len(self.plans):
            self._place = [(collector, i) for i in range(len(workers))]
        else:
            self._place[workers[0]] = (collector, 0)
        return _Start(make)

    def _replace(self, worker: int, why: str, traceback: str) -> None:
        if (often := one_too_many(self._failures[worker], self.config.faults)) is not None:
            raise self._failure(worker, why + often, traceback)
        self.restarts += 1
        role, pid = f"collector {worker}", int(self.board.pid[worker])
        programs.end([pid])
        if traceback:
            self._loggers.event(f"traceback of collector {worker}:\n{traceback}", role, pid=pid)
        self._loggers.event(f"{self._name(worker)} {why}; another one takes its place, the others go on", role, pid=pid)
        self.board.write_error(worker, "")
        collector, _ = self._place[worker]
        if collector is not self.first and collector in self._collectors:  # nothing is left in it
            collector.shutdown(timeout=SHUTDOWN_S, raise_on_error=False)
            self._collectors.remove(collector)
        close_streams(self.plans[worker].agents, worker)
        plan = self.plans[worker]
        self.plans[worker] = dataclasses.replace(plan, start=plan.start + 1, exact=False)
        self._start_anew(worker)

    def _start_anew(self, worker: int) -> None:
        """Begin a worker in a dead one's place; what the machine is short of (memory, tasks) is one more failure."""
        self._again_at.pop(worker, None)
        try:
            self._starting[worker] = self._begin([worker])
        except RunFailed:  # the fork server died too often
            raise
        except (OSError, RuntimeError) as error:  # no room in /dev/shm; no more threads
            why = f"could not be started: {first_line(error)}"
            if (often := one_too_many(self._failures[worker], self.config.faults)) is not None:
                raise self._failure(worker, why + often, "") from error
            self._again_at[worker] = time.monotonic() + AGAIN_S
            text = f"{self._name(worker)} {why}; it is tried again: make room in /dev/shm, or for memory or tasks"
            self._loggers.event(text, f"collector {worker}")

    def _failure(self, worker: int, why: str, traceback: str) -> RunFailed:
        return RunFailed(f"{self._name(worker)} {why}", f"collector {worker}", traceback, int(self.board.pid[worker]))

    def _name(self, worker: int) -> str:
        pid = f"pid {self.board.pid[worker]}, " if self.board.pid[worker] else ""
        return f"collector worker {worker} ({pid}{self._what(worker)})"

    def _what(self, worker: int) -> str:
        plan = self.plans[worker]
        envs = plan.agents[0].streams.envs_per_worker
        return f"{envs} x {self.config.env.id}, seeds from {plan.first_seed}"

    def _death(self, worker: int, exitcode: int) -> tuple[str, str]:
        """Why it died, in words, and its own traceback."""
        traceback, cause = split_error(self.board.read_error(worker))
        frames = self.plans[worker].agents[0].board.frames[worker]
        when = f"after {frames} frames" if frames else "while starting"
        return f"died {when}: {cause or f'it was ended by {exit_words(exitcode)}'}", traceback

    def _exitcode(self, worker: int) -> int | None:
        collector, index = self._place[worker]
        processes = getattr(collector, "procs", ())
        return processes[index].exitcode if index < len(processes) else None

    def _silent(self, worker: int) -> bool:
        return self._silence[worker].too_long(float(self.board.heartbeat[worker]))

    def _kill(self, worker: int) -> None:
        collector, index = self._place[worker]
        for process in getattr(collector, "procs", ())[index : index + 1]:
            programs.end_all([process.pid])
            process.join()


def close_streams(agents: Sequence[AgentPlan], worker: int) -> None:
    """End the open episodes of a worker that is gone, for the one that takes its place."""
    for agent in agents:
        own = agent.streams.streams_of(worker)
        cursor = agent.board.cursor[own]
        cursor[:] = cursor.max()  # it may have died between two of them, when all rows were written
        columns = {name: column.numpy() for name, column in agent.storage._storage.items()}
        close_episodes(columns, agent.streams, np.arange(own.start, own.stop), cursor.copy())


class _Start:
    """A collector that is being made, in a thread: TorchRL waits for its workers, which may take seconds or hang."""

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # they are the main thread's, and of nobody it starts
        try:
            self._make()
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


def collector_arguments(plans: list[CollectorPlan], board: ControlBoard) -> dict[str, Any]:
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
