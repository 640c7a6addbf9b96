"""Imported by the fork server only, as its first module: lets it and all its children end with the main process.

A fork server ends when no process has its pipe open any more. But its children have it open: if the main process were
killed, they would keep the fork server and one another alive, and the programs that they started would outlive them.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings

from trainer.host import programs
from trainer.host.errors import LOST
from trainer.host.signals import STOPPING, die_with_parent, tell_of_parents_end

# The fork server adopts orphans, and Python warns when one of them ends.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")


def main_ended(number: int = 0, frame: object = None) -> None:
    """End all processes of the run if the main process has ended.

    The signal also comes when only the thread has ended that started the fork server; then nothing happens.
    """
    if os.getppid() == programs.main_pid():
        return
    deadline = time.monotonic() + programs.SWEEP_S
    # When a child ends, this process adopts its children; repeat until there are none.
    while (children := programs.children_of(os.getpid())) and time.monotonic() < deadline:
        programs.end_all(children)
        time.sleep(0.005)
    programs.end(None)
    os._exit(1)


def default_signals() -> None:
    """Restore the default signal handlers in a child, so that signals end programs that environments start."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:  # Python's server ignores SIGINT
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def note_parent() -> None:
    """Note which process forks."""
    _forking[:] = [os.getpid()]


def end_with_server() -> None:
    """Let a child of the fork server end with it from its first moment, before `obey_parent` is called."""
    if _forking == [SERVER]:
        die_with_parent()
        if os.getppid() != SERVER:  # the fork server has ended since the fork
            os._exit(LOST)


SERVER, _forking = os.getpid(), [0]
os.register_at_fork(before=note_parent, after_in_child=end_with_server)
os.register_at_fork(after_in_child=default_signals)
signal.signal(signal.SIGUSR2, main_ended)
tell_of_parents_end(signal.SIGUSR2)
# Imports leave hardly any garbage, and looking for it takes a quarter of their time. Children never look through what
# was there before them: they would copy the pages of memory that they share.
gc.disable()
os.register_at_fork(before=gc.freeze, after_in_child=gc.enable)
main_ended()  # the main process may have ended before the line above
