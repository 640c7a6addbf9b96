"""Signs of life of a process that makes, resets and steps its sub-environments one after another.

Eight resets of a slow simulator take eight times as long as one, so there is a sign of life after each.
"""

from __future__ import annotations

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
