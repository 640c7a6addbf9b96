"""The fork server, from which all processes of a run come, as the main process sees it: a role like the others."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import time
from collections import deque
from collections.abc import Iterable
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from trainer.config.sections import FaultsConfig
from trainer.host import programs
from trainer.host.errors import LOST, RunFailed, exit_words, one_too_many
from trainer.host.signals import STOPPING
from trainer.telemetry.loggers import Loggers

END_KNOWN_S = 1.0  # until its end can be waited for, once that of a process that came from it is known
POLL_S = 1e-3


class ForkServer:
    """Starts it from the main thread, and anew when it dies; those that came from it die with it.

    Args:
        faults: what is survived.
        loggers: are told of its deaths.
    """

    def __init__(self, faults: FaultsConfig, loggers: Loggers) -> None:
        self._faults, self._loggers = faults, loggers
        self._failures: deque[float] = deque()
        self._lost: set[int | None] = set()
        self.restarts = 0
        self.pid = ensure_running()

    def check(self, processes: Iterable[BaseProcess] = ()) -> None:
        """Start it anew if it died; cheap enough for every wait.

        To be called before anybody starts a process: Python would start a server in a dead one's place by itself, and
        nobody be told of it.

        Args:
            processes: that came from it; they may be known to be lost a little before its own end is.

        Raises:
            RunFailed: it died more often than ``faults.max_failures`` allows.
        """
        exitcode, lost = _exitcode(self.pid), {own.pid for own in processes if own.exitcode == LOST}
        deadline = time.monotonic() + (END_KNOWN_S if lost - self._lost else 0.0)
        while exitcode is None and _pid() == self.pid and time.monotonic() < deadline:
            time.sleep(POLL_S)
            exitcode = _exitcode(self.pid)
        self._lost |= lost  # each is waited for once: one may have ended with this exit code by itself
        if exitcode is None and _pid() == self.pid:
            os.kill(self.pid, signal.SIGCONT)  # one that somebody stopped would hang whoever starts a process
            return
        text = f"the fork server (pid {self.pid}) died"
        if exitcode is not None:
            text += f": it was ended by {exit_words(exitcode)}"
        if (often := one_too_many(self._failures, self._faults)) is not None:
            raise RunFailed(text + often, role="fork server", pid=self.pid)
        self.restarts += 1
        self._loggers.event(f"{text}, and all that came from it; it is started anew", role="fork server", pid=self.pid)
        try:
            self.pid = ensure_running()
        except OSError as error:
            raise RunFailed(
                f"{text}, and could not be started anew ({error}): free some processes or memory"
            ) from error

    def close(self) -> None:
        """End what the run's processes left behind; they have ended themselves."""
        programs.end(None)
        programs.end_all(programs.children_of(self.pid))


def ensure_running() -> int:
    """Start the fork server where there is none; its process id."""
    programs.begin_run()
    _start_tracker()
    # Blocked from birth, for Ctrl-C and what a batch system sends go to its children too before they obey.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _pid()


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
