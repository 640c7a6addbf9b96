"""How a run fails: what the user reads of it, and whose fault it was."""

from __future__ import annotations

import signal
import time
from collections import deque

from trainer.config import FaultsConfig


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


def one_too_many(times: deque[float], faults: FaultsConfig) -> str | None:
    """Count a failure of now among those of a process, which are forgotten after ``faults.period_seconds``.

    Returns:
        None while it is survived; else what to put behind the sentence that says what happened.
    """
    now = time.monotonic()
    times.append(now)
    while times[0] < now - faults.period_seconds:
        times.popleft()
    if len(times) <= faults.max_failures:
        return None
    often = f" ({len(times)} failures within {faults.period_seconds:.0f} s, more than faults.max_failures="
    return f"{often}{faults.max_failures})" if len(times) > 1 else ""
