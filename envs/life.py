"""Signs of life of a process that makes, resets and steps its sub-environments one after another.

Eight resets of a slow simulator take eight times as long as one, so there is a sign of life after each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def _nobody() -> None:
    """Do nothing: the process is not watched."""


_watcher: Callable[[], None] = _nobody


def tell(watcher: Callable[[], None] | None) -> None:
    """Set the function that is called when a sub-environment was made, reset, stepped or closed; None: no function."""
    global _watcher
    _watcher = watcher or _nobody


def beat() -> None:
    """Call the function: one sub-environment is done."""
    _watcher()


def watcher() -> Callable[[], None]:
    """The function that `beat` calls, for a hot loop."""
    return _watcher


_forked = [False]  # whether this process is a fork of a watched one


def _note_fork() -> None:
    _forked[0] = _watcher is not _nobody


def leave_if_forked() -> None:
    """End this process if an environment has forked it and then returned in it: it would do a worker's work twice."""
    if _forked[0]:
        text = "warning: a process that the environment forked came back from it, and is ended: let it end by os._exit"
        print(text, file=sys.stderr, flush=True)
        os._exit(1)


os.register_at_fork(after_in_child=_note_fork)
