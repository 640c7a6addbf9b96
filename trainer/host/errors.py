"""How a run fails: what the user reads of it, and whose fault it was."""

from __future__ import annotations

import re
import signal
import time
import traceback
from collections import deque

import torch

from trainer.config.sections import FaultsConfig, first_line

LOST = 255  # exit code that Python gives a process whose fork server is gone


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


def device_failure(error: Exception, device: torch.device) -> RunFailed | None:
    """What to say of `error` if the learner's device, or the machine, gave up in the main process; else None."""
    text = first_line(error)
    if isinstance(error, torch.AcceleratorError):
        sentence = (
            f"{device} failed ({text}): look for its cause in nvidia-smi and the kernel's log, then resume the run"
        )
    elif isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in text:
        asked = re.search(r"tried to allocate ([\d.]+ \w+)", text, re.IGNORECASE)
        where = str(device) if isinstance(error, torch.OutOfMemoryError) else "the machine"
        sentence = (
            f"{where} has no memory left{f' for another {asked[1]}' if asked else ''}: lower learner.batch_size or "
            "algorithm.hidden_sizes, or have fewer runs on it"
        )
    elif isinstance(error, RuntimeError) and "does not have a deterministic implementation" in text:
        operation = text.partition(" ")[0]
        sentence = f"{operation} has no deterministic version on {device}: set learner.deterministic=false"
    else:
        return None
    return RunFailed(sentence, traceback="".join(traceback.format_exception(error)))


def exit_words(exitcode: int) -> str:
    """What ended a process, for a sentence."""
    if exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return "the end of its fork server" if exitcode == LOST else f"exit code {exitcode}"


def one_too_many(times: deque[float], faults: FaultsConfig) -> str | None:
    """Count a failure of now among those of a process, which are forgotten after `faults.period_seconds`.

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


def error_text(error: BaseException) -> str:
    """A child's exception for the main process: its traceback, and as the last line its cause in one sentence.

    Whatever a user's environment raises: also what is no `Exception`, has no text, or one that UTF-8 cannot hold.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["it cannot say what"]
    kind, text = type(error).__name__, lines[0] if lines else ""
    cause = text if kind == "EnvError" else f"{kind}: {text}"  # an EnvError is a sentence already
    return ("".join(traceback.format_exception(error)) + cause).encode(errors="backslashreplace").decode()


def split_error(text: str) -> tuple[str, str]:
    """Traceback and cause out of `error_text`'s; empty when there is none."""
    above, _, cause = text.strip().rpartition("\n")
    return above, cause
