"""Watch and restart the processes of all roles; no other file does.

`Role` describes a role: its name, how a process is started, its signs of life, and what happens before a restart.
`Supervised` is one process of a role; `Supervisor` has all processes of a run, with the fork server that they come
from. `trainer.training.processes` starts them.
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

AGAIN_S = 2.0  # time until the next attempt to start a process, after one failed
EXIT_S = 3.0  # time in which a process must end after it has reported an error, or closed its pipe
SHUTDOWN_S = 4.0  # time without a sign of life, after which a process that must end is killed
POLL_S = 2e-3  # sleep while waiting for processes to end

Event = Callable[..., None]  # as `Loggers.event`


class Handle(Protocol):
    """A started process, as the main process sees it."""

    @property
    def pid(self) -> int | None:
        """Its id; None while it is not known."""

    @property
    def exitcode(self) -> int | None:
        """As in `multiprocessing.Process`; None while it runs."""

    @property
    def told(self) -> str:
        """The error that it has reported, from `trainer.host.errors.error_text`; "" for none."""

    @property
    def ended_at(self) -> float:
        """When it reported the error, or closed its pipe, in seconds of `time.monotonic`; infinity before."""

    @property
    def closed(self) -> bool:
        """Whether the end of the run need not wait for it, although it runs."""

    def problem(self) -> str:
        """Read its messages; returns why it must be replaced although it runs, or ""."""

    def kill(self) -> None:
        """Kill it, and wait for its end. Safe to call twice."""


@dataclass(frozen=True)
class Role:
    """A role of processes.

    Args:
        role: name of the role in events, as "evaluator".
        name: name of a process in sentences, by its process id, which may be None.
        start: starts a process; raises OSError, EOFError or RuntimeError if the machine has no room for it.
        heartbeat: time of the last sign of life, in seconds of `time.monotonic`; a time in the future gives it longer.
        hang_s: time without a sign of life, after which it counts as hung.
        before: called before a restart.
        then: end of the sentence about its death.
        when: time of its death for that sentence, as " after 100 frames".
        known_as: its name above a traceback; None: "the" and its role.
        agent: that it belongs to, "" for none.
        closing_s: time that it may take to end at the end of the run, while it shows life.
        waits_for_start: whether the end of the run waits for one that is still starting.
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
    """A process of a run, which is restarted when it dies, hangs or must be replaced.

    Args:
        role: of the process.
        faults: the section `faults`.
        event: takes a sentence about every failure, as `Loggers.event`.
        before_start: called before every start.
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
        """Id of the present process."""
        return None if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.exitcode is None

    def start(self) -> None:
        """Start it. If the machine has no room for it, that counts as a failure, and `check` tries again.

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
        """Restart it if it has died or hangs; cheap enough for every wait.

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
        """Whether it has shown no sign of life for too long; must be called regularly."""
        return self._silence.too_long(self.role.heartbeat())

    def death(self) -> tuple[str, str] | None:
        """Why it died, in words, and its traceback; None while it lives."""
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
        """Name of the process in sentences."""
        return self.role.name(self.pid)

    def _tell(self, text: str) -> None:
        self._event(text, role=self.role.role, agent=self.role.agent, pid=self.pid)

    def closing(self) -> bool:
        """Whether the end of the run still waits for it; called repeatedly at the end."""
        if math.isnan(self._ending_until):
            self._silence = Silence(SHUTDOWN_S, ends=not self.role.waits_for_start)
            self._ending_until = time.monotonic() + self.role.closing_s
        if not self.alive or self.process is None or self.process.closed or time.monotonic() > self._ending_until:
            return False
        return not self.silent()

    def close(self) -> None:
        """Kill it, and the programs that it has started, if it has not ended. Safe to call twice."""
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
        faults: the section `faults`.
        event: takes a sentence about every failure, as `Loggers.event`.
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
        """Add a process, which is watched from its start on."""
        self._others.append(Supervised(role, self._faults, self._event, self._check_server))
        return self._others[-1]

    def processes(self) -> list[Handle]:
        """Those that came from the fork server and were not replaced."""
        return [one.process for one in self._others if one.process is not None]

    def check(self) -> None:
        """Restart every process that has died or hangs, the fork server first.

        Raises:
            RunFailed: one of them failed too often.
        """
        self._check_server()
        for one in self._others:
            one.check()

    def _check_server(self) -> None:
        """Check the fork server before every start of a process, as Python would restart it without an event."""
        for server in self._server:
            server.check()

    def wait(self) -> None:
        """Wait until all processes have ended."""
        wait_for(self._others)

    def close(self) -> None:
        """Kill all processes that have not ended, and programs that they left."""
        for process in self.processes():
            process.kill()
        for server in self._server:
            programs.end(None)
            programs.end_all(programs.children_of(server.pid or 0))
        self._server = []


def wait_for(processes: Sequence[Supervised]) -> None:
    """Wait until all processes have ended, but not for one that shows no life or takes too long."""
    while any([one.closing() for one in processes]):
        time.sleep(POLL_S)
