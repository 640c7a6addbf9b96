"""How a run fails: what the user reads of it, and whose fault it was."""

from __future__ import annotations

import signal
import time
from collections import deque


class RunFailed(RuntimeError):
    """A run that ended before its budget for no wish of the user's; its text is one sentence for the user.

    Args:
        text: the sentence.
        role: the process that failed.
        traceback: its own traceback, if it left one.
        pid: the process's id; None: this one's.
    """

    def __init__(self, text: str, role: str = "main", traceback: str = "", pid: int | None = None) -> None:
        super().__init__(text)
        self.role, self.traceback, self.pid = role, traceback, pid


def exit_words(exitcode: int) -> str:
    """What ended a process, for a sentence."""
    return f"signal {signal.Signals(-exitcode).name}" if exitcode < 0 else f"exit code {exitcode}"


def failures_within(times: deque[float], period_s: float) -> int:
    """Count a failure of now, and how many there were within the last ``period_s`` seconds; forgets older ones."""
    now = time.monotonic()
    times.append(now)
    while times[0] < now - period_s:
        times.popleft()
    return len(times)
