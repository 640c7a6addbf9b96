"""Signals: how a user or SLURM stops a run, and how child processes end with the main process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from trainer.run_folder import manifest

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # SLURM sends USR1 before the time is up


class Stopped(BaseException):
    """A signal asked the run to end. Not an `Exception`, so that no code takes it for a failure and goes on."""


class StopSignals:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the run to end, and Ctrl-C after that ends it at once.

    In another thread than the main one it leaves all signals alone. A signal that was ignored before (SIGHUP under
    nohup) stays ignored.

    Args:
        leftovers: folder whose files, as its manifest names them, are removed when the process ends at once.

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
        """Name of the first signal, as SIGINT."""
        return signal.Signals(self.number).name

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._ring)
        _give_up_in_forks(True)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        _give_up_in_forks(False)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def raising(self, after_s: float) -> Iterator[None]:
        """A context in which a signal raises `Stopped` in the running code.

        Args:
            after_s: seconds from the signal to the exception. Above 0 for code that checks `number` itself: the
                exception then only ends code that hangs.
        """
        self._after_s = after_s
        try:
            if self.number:
                self._raise()
            yield
        except Exception as error:
            if self._raised:  # the interrupted code has turned `Stopped` into another exception
                raise Stopped from error
            raise
        finally:
            self._after_s = None
            if self._before:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, _: object) -> None:
        if self.number and number != signal.SIGINT:  # SLURM sends TERM after USR1: go on saving
            return
        if self.number:
            manifest.remove_all(self._leftovers)
            os._exit(128 + number)  # the children end too, by `die_with_parent`
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
    """Set up a child process: the main process alone reacts to signals, and the child dies with its parent.

    The handlers do nothing. Ignoring or blocking the signals would be inherited by programs that an environment starts,
    and these could not be stopped; handlers are reset by `exec`, and here after `fork` too.
    """
    for number in STOPPING:
        signal.signal(number, _leave_to_main)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # the fork server has a handler for it
    _give_up_in_forks(True)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent()
    main = multiprocessing.parent_process()
    if main is not None and not main.is_alive():  # it ended before the line above
        os._exit(1)


def _leave_to_main(number: int, frame: object) -> None:
    """Do nothing: Ctrl-C and a batch system's signals reach all processes, but the main one decides when each ends."""


_forks: list[bool] = []  # one bool: whether forks of this process reset their handlers; empty before the first call


def _give_up_in_forks(wanted: bool) -> None:
    """Choose whether processes that this one forks reset their handlers: signals must end what an environment forks."""
    if not _forks:
        os.register_at_fork(after_in_child=_default_signals)
    _forks[:] = [wanted]


def _default_signals() -> None:
    for number in STOPPING if _forks[0] else ():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as its parent has ended."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_with_parent() -> None:
    """Let the kernel send this process SIGTERM when its parent has ended: a run then saves and stops."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def tell_of_parents_end(number: int) -> None:
    """Let the kernel send this process a signal when its parent ends, and let this process adopt orphans.

    The kernel sends it when the parent's *thread* ends that started this process. Another thread then takes its place,
    and the signal comes again when that one ends, and so on until the last.
    """
    _prctl(PR_SET_PDEATHSIG, number)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
