"""A script without a main guard: every process of a run imports it again, and so it would start the run again.

Such a process ends at once with an exit code of its own, by which the main process knows why.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

from trainer.host import programs

EXIT = 254  # exit code of such a process
WORDS = "a call outside of the main guard"  # for it, in a sentence about its end


def importing_main() -> bool:
    """Whether this process is importing the main module of its parent."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def leave_if_child_of_run() -> None:
    """End this process if a run has started it."""
    mark = os.environ.get(programs.RUN, "").partition(".")[0]
    if mark and mark != str(os.getpid()):
        os._exit(EXIT)


def sentence() -> str:
    """What the user can do, for a ConfigError."""
    path = getattr(sys.modules["__main__"], "__file__", None) or "the script"
    return (
        f"trainer.train is called outside of a main guard in {path}, which every process of a run imports again: put "
        'the call, and what follows it, under the line if __name__ == "__main__":'
    )
