"""End a program that has done its work, although what an environment left in it may not end.

Python waits for every thread that is no daemon, and calls the functions of `atexit`, before it ends a process. Where an
environment runs in the program's own process (`schedule=sequential`, eval, play), either may last for ever.
"""

from __future__ import annotations

import os
import sys
import threading
import time

PATIENCE_S = 10.0  # from the end of the work to the end of the process, at most


def leave_soon(code: int, patience_s: float = PATIENCE_S) -> int:
    """End this process with `code` if it has not ended by itself after some time; returns the code at once.

    Args:
        code: the exit code.
        patience_s: the time.
    """
    threading.Thread(target=_leave, args=(code, patience_s), daemon=True).start()
    return code


def _leave(code: int, patience_s: float) -> None:
    time.sleep(patience_s)
    left = [thread.name for thread in threading.enumerate() if not thread.daemon]
    left = [name for name in left if name != threading.main_thread().name]
    what = f"its thread {left[0]}" if left else "a function that is called at the end (atexit)"
    try:
        print(f"warning: {what} goes on after the work is done: the process is ended", file=sys.stderr, flush=True)
    finally:
        os._exit(code)
