"""Signals: how a run is asked to end, and how its processes end with the main one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from trainer.run_folder import manifest

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # SLURM sends USR1 before the time is up


class Stopped(BaseException):
    """A signal asked the run to end. Not an Exception: nobody may take it for a failure and go on."""


class StopSignals:
    """Within it, SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the run to end; Ctrl-C after that ends the process at once.

    Only the main thread may enter it. A signal that was ignored before (SIGHUP under nohup) stays ignored.

    Args:
        leftovers: folder whose manifest's files are removed when the process ends at once.

    Attributes:
        number: of the first signal; 0 before it.
    """

    def __init__(self, leftovers: Path) -> None:
        self.number = 0
        self._leftovers = leftovers
        self._after_s: float | None = None
        self._raised = False
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """Of the first signal, as SIGINT."""
        return signal.Signals(self.number).name

    def __enter__(self) -> StopSignals:
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._ring)
        _give_up_in_forks(True)
        return self

    def __exit__(self, *_: object) -> None:
        _give_up_in_forks(False)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def raising(self, after_s: float) -> Iterator[None]:
        """Within it, a signal is raised as `Stopped`, in whatever runs: at once, or after `after_s` seconds.

        The latter is for code that looks at `number` by itself, unless something holds it up.
        """
        self._after_s = after_s
        try:
            if self.number:
                self._raise()
            yield
        except Exception as error:
            if self._raised:  # who was interrupted made another exception of it
                raise Stopped from error
            raise
        finally:
            self._after_s = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, _: object) -> None:
        if self.number and number != signal.SIGINT:  # TERM follows USR1 when a job's time is up: save on
            return
        if self.number:
            manifest.remove_all(self._leftovers)
            os._exit(128 + number)  # the children follow: `die_with_parent`
        self.number = number
        if self._after_s:
            signal.setitimer(signal.ITIMER_REAL, self._after_s)
        elif self._after_s is not None:
            self._raise()

    def _ring(self, *_: object) -> None:
        if self._after_s is not None:
            self._raise()

    def _raise(self) -> NoReturn:
        self._raised = True
        raise Stopped


def obey_parent() -> None:
    """For a child process: leave signals to the main process, and die with the parent.

    By handlers that do nothing, for what is ignored or blocked stays so in every program that an environment starts,
    which then could not be ended; handlers are given up by `exec`, and here by `fork` too.
    """
    for number in STOPPING:
        signal.signal(number, _leave_to_main)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # the fork server has a handler for it
    _give_up_in_forks(True)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent()
    main = multiprocessing.parent_process()
    if main is not None and not main.is_alive():  # it ended before it was watched
        os._exit(1)


def _leave_to_main(number: int, frame: object) -> None:
    """Ctrl-C and what a batch system sends go to all processes; each ends when the main one says."""


_forks: list[bool] = []  # whether what this process forks gives up its handlers; empty: it was never asked


def _give_up_in_forks(wanted: bool) -> None:
    """What an environment forks must end when it is told to, and knows nothing of the run."""
    if not _forks:
        os.register_at_fork(after_in_child=_default_signals)
    _forks[:] = [wanted]


def _default_signals() -> None:
    for number in STOPPING if _forks[0] else ():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as the process that forked it has ended, whatever it is doing then."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell_of_parents_end(number: int) -> None:
    """Let the kernel send a signal when the parent's *thread* has ended that started this process, and adopt orphans.

    The signal comes again for the thread that takes its place, and so on until the last one.
    """
    _prctl(PR_SET_PDEATHSIG, number)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
