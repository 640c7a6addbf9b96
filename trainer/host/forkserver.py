"""Imported first by the fork server, and nowhere else: it ends with the main process, and all that came from it too.

By itself it ends when the last process that knows it has ended. Its children know it, and so would keep it, and one
another, alive when the main process is killed; and what they started would outlive them all.
"""

from __future__ import annotations

import os
import signal
import time
import warnings

from trainer.host import programs
from trainer.host.errors import LOST
from trainer.host.signals import STOPPING, die_with_parent, tell_of_parents_end

# Orphans of its children become its own, and it is told of their ends.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")


def main_ended(number: int = 0, frame: object = None) -> None:
    """End everything, if it was the main process that ended, and not only the thread of it that started this one."""
    if os.getppid() == programs.main_pid():
        return
    deadline = time.monotonic() + programs.SWEEP_S
    # Whose parent has ended becomes a child of this process, until nobody is left.
    while (children := programs.children_of(os.getpid())) and time.monotonic() < deadline:
        programs.end_all(children)
        time.sleep(0.005)
    programs.end(None)
    os._exit(1)


def default_signals() -> None:
    """What an environment of the main process starts from here knows nothing of the run, and can be told to end."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:  # which the server itself ignores
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def note_parent() -> None:
    """Who forks now."""
    _forking[:] = [os.getpid()]


def end_with_server() -> None:
    """A child of this server ends with it from the first moment on, long before it obeys its run."""
    if _forking == [SERVER]:
        die_with_parent()
        if os.getppid() != SERVER:  # it has ended meanwhile
            os._exit(LOST)


SERVER, _forking = os.getpid(), [0]
os.register_at_fork(before=note_parent, after_in_child=end_with_server)
os.register_at_fork(after_in_child=default_signals)
signal.signal(signal.SIGUSR2, main_ended)
tell_of_parents_end(signal.SIGUSR2)
main_ended()  # it ended before it was watched
