"""Signs of life of a process whose sub-environments are made, reset and stepped one after another.

Eight resets of a slow simulator take eight times as long as one: whoever watches the process is told after each.
"""

from __future__ import annotations

from collections.abc import Callable


def _nobody() -> None:
    """Where nobody watches."""


_watcher: Callable[[], None] = _nobody


def tell(watcher: Callable[[], None] | None) -> None:
    """From now on call `watcher` after each sub-environment that was made, reset, stepped or closed; None: nobody."""
    global _watcher
    _watcher = watcher or _nobody


def beat() -> None:
    """One sub-environment is done."""
    _watcher()


def watcher() -> Callable[[], None]:
    """What `beat` calls, for a hot loop."""
    return _watcher
