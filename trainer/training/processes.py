"""Start processes; besides TorchRL's collector (`trainer.training.collectors`) no other file does.

All processes come from one fork server, which has imported torch once. It has a role like the others, as it may die.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing as mp

from trainer.host import programs
from trainer.host.errors import LOST, RunFailed
from trainer.host.signals import STOPPING
from trainer.training.supervisor import Handle, Role

END_KNOWN_S = 1.0  # time in which the fork server's end is found, after that of one of its processes
POLL_S = 1e-3


def spawn(target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
    """Start a process from the fork server that runs `target(*args)`."""
    process = mp.get_context().Process(target=target, args=args, name=name, daemon=True)
    process.start()
    return process


class Piped:
    """A process of `multiprocessing` with a pipe, as a `trainer.training.supervisor.Handle`.

    Args:
        start: starts the process with its end of the pipe.
        hear: takes a message; returns the text of an error, from `trainer.host.errors.error_text`, else "".
    """

    def __init__(self, start: Callable[[Connection], BaseProcess], hear: Callable[[Any], str]) -> None:
        self.pipe, theirs = Pipe()
        self._hear, self.told, self.ended_at = hear, "", math.inf
        try:
            self._process = start(theirs)
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int | None:
        """Its id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    @property
    def closed(self) -> bool:
        """False: the end of the run waits for it."""
        return False

    def problem(self) -> str:
        """Read its messages; it has no other problems."""
        self.listen()
        return ""

    def listen(self, timeout_s: float = 0.0) -> None:
        """Read all messages; waits up to `timeout_s` for the first one."""
        try:
            while not self.pipe.closed and self.pipe.poll(timeout_s):
                self.told, timeout_s = self._hear(self.pipe.recv()) or self.told, 0.0
                if self.told:
                    self.ended_at = min(self.ended_at, time.monotonic())
        except (EOFError, OSError):  # it is about to end, or has
            self.ended_at = min(self.ended_at, time.monotonic())

    def send(self, message: Any) -> None:
        """Send a message; does nothing if the process is dead, which its supervisor finds."""
        try:
            self.pipe.send(message)
        except OSError:
            return

    def join(self) -> None:
        """Wait for its end."""
        self._process.join()

    def kill(self) -> None:
        """Kill it, and read its last messages."""
        self._process.kill()
        self._process.join()
        self.listen()
        self.pipe.close()


def fork_server(processes: Callable[[], Sequence[Handle]]) -> Role:
    """The role of the fork server; its processes die with it.

    Args:
        processes: that came from it; their end may be found before its own.
    """
    known: set[int | None] = set()
    return Role(
        role="fork server",
        name=lambda pid: f"the fork server (pid {pid})",
        start=lambda: _Server(processes, known),
        heartbeat=time.monotonic,  # it only serves; one that somebody stopped is let go on
        hang_s=math.inf,
        then=lambda: ", and all that came from it; it is restarted",
    )


class _Server:
    """The fork server; see `trainer.training.supervisor.Handle`.

    Args:
        processes: that came from it, and those before it.
        known: of them, ids of those that were lost with a server.
    """

    told, ended_at, closed = "", math.inf, True

    def __init__(self, processes: Callable[[], Sequence[Handle]], known: set[int | None]) -> None:
        self._processes, self._known = processes, known
        self.exitcode: int | None = None
        try:
            self.pid = use_fork_server()
        except OSError as error:
            raise RunFailed(f"the fork server could not be started ({error}): free some processes or memory") from error

    def problem(self) -> str:
        """Look whether it has ended, and let one go on that somebody stopped, which would hang whoever starts one."""
        lost = {process.pid for process in self._processes() if process.exitcode == LOST} - self._known
        self._known |= lost  # each is waited for once: one may have ended with this exit code by itself
        deadline = time.monotonic() + (END_KNOWN_S if lost else 0.0)
        self.exitcode = _exitcode(self.pid)
        while self.exitcode is None and _pid() == self.pid and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self.exitcode = _exitcode(self.pid)
        if self.exitcode is not None:
            return ""
        if _pid() != self.pid:
            return "died"  # and Python has waited for it
        os.kill(self.pid, signal.SIGCONT)
        return ""

    def kill(self) -> None:
        """It ends by itself, with the last process that knows it."""


def use_fork_server() -> int:
    """Let children come from a server that has imported torch once, one thread each; its process id."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    mp.set_start_method("forkserver", force=True)  # importing torchrl has set spawn
    multiprocessing.set_forkserver_preload(
        [
            "trainer.host.forkserver",
            "torchrl.collectors",
            "trainer.shared_gradient.local_agent",
            "trainer.roles.evaluator",
            "trainer.roles.task",
            "trainer.roles.final_work",
        ]
    )
    programs.begin_run()
    _start_tracker()
    # Blocked from birth, for Ctrl-C and what a batch system sends go to its children too before they obey.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _pid()


@contextmanager
def same_start_method() -> Iterator[None]:
    """Let `multiprocessing` start processes after the context as before it: the process may be a notebook's."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        mp.set_start_method(before, force=True)  # None: as if none had been chosen


def _start_tracker() -> None:
    """Start what removes the semaphores that killed processes leave; that there are some is no news for users."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, "ignore:resource_tracker"]))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _pid() -> int:
    return multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined,no-any-return]


def _exitcode(pid: int) -> int | None:
    """Of a child that has ended, as `Popen.returncode`; it is left to be waited for. None: it lives, or it is known."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None  # it was waited for
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
