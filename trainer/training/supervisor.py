"""The one place that watches, names, counts and restarts processes, whatever their role.

A role is a value, `Role`: what it is called, how it is started, its signs of life, what is done before another process
takes its place. `Supervised` is one process of a role, and `Supervisor` all those of a run with the fork server that
they come from. `trainer.training.processes` is what starts them.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.config.run_config import first_line
from trainer.config.sections import FaultsConfig
from trainer.host import programs
from trainer.host.errors import RunFailed, exit_words, one_too_many, split_error
from trainer.memory.pulse import Silence

AGAIN_S = 2.0  # until a process is tried again for which there was no room
EXIT_S = 3.0  # that a process may take to end once it has told why it does, or closed its pipe
SHUTDOWN_S = 4.0  # until one that is to end, and shows no sign of life, is killed
POLL_S = 2e-3  # between two looks at processes that end

Event = Callable[..., None]  # as `Loggers.event`


class Handle(Protocol):
    """A process that was started, as the main process holds it."""

    @property
    def pid(self) -> int | None:
        """Its id; None while it is not known."""

    @property
    def exitcode(self) -> int | None:
        """As that of `multiprocessing.Process`; None while it runs."""

    @property
    def told(self) -> str:
        """Why it ends, as `trainer.host.errors.error_text` puts it; "" if it has not said so."""

    @property
    def ended_at(self) -> float:
        """When it said that, or closed its pipe, in seconds of `time.monotonic`; infinity before."""

    @property
    def closed(self) -> bool:
        """Whether there is nothing to wait for at the run's end, though it runs."""

    def problem(self) -> str:
        """Take what it tells; why it must be replaced though it lives, or ""."""

    def kill(self) -> None:
        """End it at once, and wait for that. Safe to call twice."""


@dataclass(frozen=True)
class Role:
    """What the processes of a role differ in.

    Args:
        role: of its events, as "evaluator".
        name: of a process in sentences, by its id, which may not be known.
        start: starts one; OSError, EOFError and RuntimeError mean that the machine has no room for it.
        heartbeat: when it last showed life, in seconds of `time.monotonic`; one that lies ahead gives it time.
        hang_s: without a sign of life it is taken for hung.
        before: what is done before another one takes its place.
        then: how a sentence about its end closes.
        when: of its death, as " after 100 frames", for a sentence.
        known_as: in the line above its traceback; None: "the" and its role.
        agent: whose it is; "" where it is not one agent's.
        closing_s: that it may take to end at the run's end, as long as it shows life.
        waits_for_start: whether one that is not yet up is waited for then.
    """

    role: str
    name: Callable[[int | None], str]
    start: Callable[[], Handle]
    heartbeat: Callable[[], float]
    hang_s: float
    before: Callable[[], None] = lambda: None
    then: Callable[[], str] = lambda: "; another one takes its place"
    when: Callable[[], str] = lambda: ""
    known_as: str | None = None
    agent: str = ""
    closing_s: float = 5.0
    waits_for_start: bool = False


class Supervised:
    """A process of a run: when it dies, hangs or must be replaced, another one takes its place.

    Args:
        role: what it is.
        faults: how often it may fail.
        event: is told of every failure.
        before_start: called before a process is started.
    """

    def __init__(
        self, role: Role, faults: FaultsConfig, event: Event, before_start: Callable[[], None] = lambda: None
    ) -> None:
        self.role, self._faults, self._event, self._before_start = role, faults, event, before_start
        self.process: Handle | None = None
        self.restarts = 0
        self._failures: deque[float] = deque()
        self._silence = Silence(role.hang_s)
        self._again_at, self._ending_until = math.inf, math.nan

    @property
    def pid(self) -> int | None:
        """Of the process that is there now."""
        return None if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.exitcode is None

    def start(self) -> None:
        """Start it; where the machine has no room for it, that is a failure, and it is tried again.

        Raises:
            RunFailed: it failed more often than `faults.max_failures` allows.
        """
        self._before_start()  # who is gone tells it that the fork server may be, too
        self.process = None
        try:
            self.process = self.role.start()
        except RunFailed:  # of another role
            raise
        except (OSError, EOFError, RuntimeError) as error:  # no more tasks, memory, or room in /dev/shm
            why = f"could not be started: {first_line(error)}"
            self._count(why, "", error)
            self._again_at = time.monotonic() + AGAIN_S
            self._tell(f"{self.name()} {why}; it is tried again: make room in /dev/shm, or for memory or tasks")

    def check(self) -> None:
        """Start another one if it is gone; cheap enough for every wait.

        Raises:
            RunFailed: it failed more often than `faults.max_failures` allows.
        """
        process = self.process
        if process is None:
            if time.monotonic() >= self._again_at:
                self.start()
            return
        problem, silent = process.problem(), self.silent()
        if (death := self.death()) is not None:
            self._replace(*death)
        elif silent:
            process.kill()
            traceback, cause = split_error(process.told)  # it may hang as it closes
            quiet = f"showed no sign of life for {self._silence.silent_s:.0f} s and was ended"
            self._replace(f"died: {cause}" if cause else quiet, traceback)
        elif problem:
            self._replace(problem, "")

    def silent(self) -> bool:
        """Whether it has shown no sign of life for too long; to be asked now and then."""
        return self._silence.too_long(self.role.heartbeat())

    def death(self) -> tuple[str, str] | None:
        """Why it died, in words, and its own traceback; None while it lives."""
        process = self.process
        if process is None or (process.exitcode is None and time.monotonic() <= process.ended_at + EXIT_S):
            return None
        code, (traceback, cause) = process.exitcode, split_error(process.told)
        words = "it closed its pipe" if code is None else f"it was ended by {exit_words(code)}"
        return f"died{self.role.when()}: {cause or words}", traceback

    def _replace(self, why: str, traceback: str) -> None:
        self._end()
        self._count(why, traceback)
        self.restarts += 1
        if traceback:
            self._tell(f"traceback of {self.role.known_as or f'the {self.role.role}'}:\n{traceback}")
        self._tell(f"{self.name()} {why}{self.role.then()}")
        self.role.before()
        self.start()

    def _count(self, why: str, traceback: str, cause: Exception | None = None) -> None:
        if (often := one_too_many(self._failures, self._faults)) is not None:
            raise RunFailed(f"{self.name()} {why}{often}", self.role.role, traceback, self.pid) from cause

    def name(self) -> str:
        """Of its process, for a sentence."""
        return self.role.name(self.pid)

    def _tell(self, text: str) -> None:
        self._event(text, role=self.role.role, agent=self.role.agent, pid=self.pid)

    def closing(self) -> bool:
        """Whether it has not ended, and shows life; to be asked in turns once it is to end."""
        if math.isnan(self._ending_until):
            self._silence = Silence(SHUTDOWN_S, ends=not self.role.waits_for_start)
            self._ending_until = time.monotonic() + self.role.closing_s
        if not self.alive or self.process is None or self.process.closed or time.monotonic() > self._ending_until:
            return False
        return not self.silent()

    def close(self) -> None:
        """End it, and what it has started, if it has not ended. Safe to call twice."""
        if self.process is not None:
            self._end()

    def _end(self) -> None:
        assert self.process is not None
        self.process.kill()
        if self.process.pid:
            programs.end([self.process.pid])


class Supervisor:
    """All processes of a run, and the fork server that they come from.

    Args:
        faults: what is survived.
        event: is told of every failure.
    """

    def __init__(self, faults: FaultsConfig, event: Event) -> None:
        self._faults, self._event = faults, event
        self._server: list[Supervised] = []  # none where everything runs in one process
        self._others: list[Supervised] = []

    @property
    def server(self) -> Supervised:
        """The fork server, once there is one."""
        return self._server[0]

    def serve(self, server: Role) -> None:
        """Start the fork server, from which the others come."""
        self._server = [Supervised(server, self._faults, self._event)]
        self.server.start()

    def add(self, role: Role) -> Supervised:
        """Watch over a process, from the moment on that it is started."""
        self._others.append(Supervised(role, self._faults, self._event, self._check_server))
        return self._others[-1]

    def processes(self) -> list[Handle]:
        """Those that came from the fork server and were not replaced."""
        return [one.process for one in self._others if one.process is not None]

    def check(self) -> None:
        """Start another process in the place of each that is gone, the server first.

        Raises:
            RunFailed: one of them failed too often.
        """
        self._check_server()
        for one in self._others:
            one.check()

    def _check_server(self) -> None:
        """Before anybody starts a process: Python would start another server by itself, and nobody be told of it."""
        for server in self._server:
            server.check()

    def wait(self) -> None:
        """Wait until all have ended that were told to."""
        wait_for(self._others)

    def close(self) -> None:
        """End the processes, and what they left behind, as far as they have not ended themselves."""
        for process in self.processes():
            process.kill()
        for server in self._server:
            programs.end(None)
            programs.end_all(programs.children_of(server.pid or 0))
        self._server = []


def wait_for(processes: Sequence[Supervised]) -> None:
    """Wait until all that are to end have ended, all at a time; not for who shows no life, or takes too long."""
    while any([one.closing() for one in processes]):
        time.sleep(POLL_S)
