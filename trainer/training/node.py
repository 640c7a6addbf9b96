"""A node: collector workers on another machine than the learner, and the end of the line to the gateway.

Runs in: a process of its own on that machine, started by `trainer.cluster.placing`.
Receives: the configuration, orders and weights from the gateway (`trainer.cluster.exchange`).
Sends: rows, counts, episodes and events of its workers.
Waits for: orders; then a moment for rows.
Stops when: it is ordered to; the gateway closes the line or says nothing for `GONE_S`; its parent dies; a worker fails
too often.
A worker that dies or hangs is replaced here, as on one machine.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from contextlib import closing
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from trainer.cluster import line
from trainer.cluster.code import code
from trainer.cluster.exchange import Failed, Hello, Orders, Progress, Refusal, Start, receive, send
from trainer.cluster.source import Source, plan_node
from trainer.config.fields import ConfigError
from trainer.config.machine import available_cores
from trainer.config.run_config import to_dict
from trainer.config.sections import BLOCK
from trainer.config.users_algorithms import add_algorithms, paths_of
from trainer.host import leftovers
from trainer.host.errors import RunFailed
from trainer.host.resources import allow_open_files, prepare_process
from trainer.host.signals import obey_parent
from trainer.memory.boards import RUN, STOP, ControlBoard
from trainer.roles.rollout import CollectorPlan
from trainer.run_folder.scratch import scratch_folder
from trainer.telemetry.metrics import EverySeconds
from trainer.training.collectors import CollectorWorkers
from trainer.training.processes import fork_server
from trainer.training.supervisor import Supervisor

GONE_S = 60.0  # after which a gateway that says nothing is taken for dead
FILL_S, ROUND_S = 0.02, 0.004  # most time that orders wait for rows, in async and in rounds
LOOK_S = 0.1  # between two looks at the workers
POLL_S = 1e-3


class Over(Exception):
    """The gateway, or the parent, is gone: nobody is left to report to."""


class Events:
    """Sentences for the main process, which go with the next report; see `trainer.telemetry.loggers.Loggers`.

    Args:
        pipe: to the gateway.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._told = pipe, list[tuple[str, str]]()

    def event(self, text: str, role: str = "", agent: str = "", pid: int | None = None) -> None:
        """Take a sentence."""
        self._told.append((role, text))

    def progress(self, text: str) -> None:
        """Send a line on the progress of a start, which is a sign of life, too."""
        send(self._pipe, Progress(text))

    def take(self) -> list[tuple[str, str]]:
        """The sentences since the last call."""
        told, self._told = self._told, []
        return told


def run(address: tuple[str, int], key: bytes, number: int, parent: int) -> int:
    """Body of the process.

    Args:
        address: of the gateway.
        key: that it knows.
        number: of the node.
        parent: descriptor of a pipe that ends when the process that started this one does.

    Returns:
        The exit code: 0, or 1 if the node was refused or has failed.
    """
    obey_parent()
    try:
        pipe = line.call(address, key)
    except (OSError, EOFError, AuthenticationError) as error:
        print(f"error: the run at {address[0]}:{address[1]} does not answer: {error}", file=sys.stderr)
        return 1
    with closing(pipe):
        try:
            send(pipe, Hello(number, os.getpid(), socket.gethostname(), available_cores(), os.nice(0), code()))
            answer, _ = receive(pipe)
            if isinstance(answer, Refusal):
                print(f"error: {answer.text}", file=sys.stderr)
                return 1
            _collect(answer, pipe, parent)
        except (RunFailed, ConfigError) as error:
            send(pipe, Failed(str(error), getattr(error, "traceback", "")))
            return 1
        except (OSError, EOFError, Over) as error:
            print(f"error: the run is gone: {error}", file=sys.stderr)
            return 1
    return 0


def _collect(start: Start, pipe: Connection, parent: int) -> None:
    leftovers.claim()
    prepare_process()
    allow_open_files()
    torch.set_num_threads(1)
    add_algorithms(paths_of(to_dict(start.config)))
    with scratch_folder(Path(tempfile.gettempdir()) / f"trainer_nodes_{os.getuid()}") as folder:
        node = Node(start, folder, pipe, parent)
        try:
            node.serve()
        finally:
            node.close()


class Node:
    """The workers of a node, and what answers the gateway's orders.

    Args:
        start: what the gateway has told.
        folder: for the node's files.
        pipe: to the gateway.
        parent: see `run`.
    """

    def __init__(self, start: Start, folder: Path, pipe: Connection, parent: int) -> None:
        config, standing = start.config, start.standing
        workers = [each.worker for each in standing]
        plan = plan_node(config, start.world, folder, workers)
        self._pipe, self._parent, self._events = pipe, parent, Events(pipe)
        self._rounds = config.schedule.kind.rounds
        self._control = ControlBoard(plan.streams.num_workers)
        self._control.command[0] = RUN
        self._source = Source(plan, self._control, standing)
        self._supervisor = Supervisor(config.faults, self._events.event)
        plans = [CollectorPlan(plan.config, (plan,), each.worker, each.start) for each in standing]
        self._collectors = CollectorWorkers(plan.config, plans, self._control, self._supervisor, self._events.progress)
        self._look = EverySeconds(LOOK_S)
        self._heard = time.monotonic()

    def serve(self) -> None:
        """Start the workers, and answer orders until told to stop.

        Raises:
            RunFailed: a worker could not be started, or failed too often.
            Over: the gateway or the parent is gone.
            OSError, EOFError: the line is broken.
        """
        self._supervisor.serve(fork_server(self._supervisor.processes))
        self._collectors.start()
        while True:
            orders = self._orders()
            self._source.obey(orders)
            if orders.stop:
                return
            self._fill()
            self._supervise()
            send(self._pipe, self._source.report(orders.number, self._events.take()))

    def _orders(self) -> Orders:
        """The next orders; meanwhile the workers are watched."""
        while True:
            ready = wait([self._pipe, self._parent], LOOK_S)
            if self._parent in ready and not os.read(self._parent, 1):
                raise Over("its parent has ended")
            if self._pipe in ready:
                orders: Orders = receive(self._pipe)[0]
                self._heard = time.monotonic()
                return orders
            if time.monotonic() > self._heard + GONE_S:
                raise Over(f"it has said nothing for {GONE_S:.0f} s")
            self._supervise()

    def _fill(self) -> None:
        """Wait until there are rows worth a report, or for a moment."""
        deadline = time.monotonic() + (ROUND_S if self._rounds else FILL_S)
        while time.monotonic() < deadline and not self._full():
            time.sleep(POLL_S)
            self._source.renew_limit()

    def _full(self) -> bool:
        pending = self._source.pending()
        return pending >= BLOCK or (self._rounds and pending > 0 and self._source.round_complete())

    def _supervise(self) -> None:
        if self._look.crossed():
            self._supervisor.check()
            self._source.replaced({plan.worker: plan.start for plan in self._collectors.plans})

    def close(self) -> None:
        """End the workers."""
        self._control.command[0] = STOP
        self._supervisor.wait()
        self._collectors.close()
        self._supervisor.close()
