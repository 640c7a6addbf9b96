"""Failures of a run: the sentences that the user reads."""

from __future__ import annotations

import re
import signal
import time
import traceback
from collections import deque

import torch

from trainer.config.run_config import first_line
from trainer.config.sections import FaultsConfig
from trainer.host import unguarded

LOST = 255  # Python's exit code for a process whose fork server has ended


class RunFailed(RuntimeError):
    """A run failed; the text is one sentence for the user.

    Args:
        text: the sentence.
        role: of the process that failed.
        traceback: of the process that failed, "" if there is none.
        pid: of the process that failed; None: this one.
    """

    def __init__(self, text: str, role: str = "main", traceback: str = "", pid: int | None = None) -> None:
        super().__init__(text)
        self.role, self.traceback, self.pid = role, traceback, pid


def device_failure(error: Exception, device: torch.device) -> RunFailed | None:
    """Explain an error of the learner's device or of the machine's memory; None for any other error.

    Args:
        error: raised in the main process.
        device: of the learner.
    """
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
    """The cause of a process's end, for a sentence."""
    if exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    known = {LOST: "the end of its fork server", unguarded.EXIT: unguarded.WORDS}
    return known.get(exitcode, f"exit code {exitcode}")


def one_too_many(times: deque[float], faults: FaultsConfig) -> str | None:
    """Count a failure of a process, and tell whether the run must end.

    Args:
        times: of the process's failures so far, in s; this one is added, those before `faults.period_seconds` removed.
        faults: the section `faults`.

    Returns:
        None if the process may be restarted; else words to append to the sentence about the failure.
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
    """Write a child's exception as text for the main process: the traceback, and as last line its cause.

    It takes whatever an environment raises: also what is no `Exception`, or has no text, or text that is not UTF-8.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["it cannot say what"]
    kind, text = type(error).__name__, lines[0] if lines else ""
    cause = text if kind == "EnvError" else f"{kind}: {text}"  # an EnvError is a sentence already
    return ("".join(traceback.format_exception(error)) + cause).encode(errors="backslashreplace").decode()


def split_error(text: str) -> tuple[str, str]:
    """Split the result of `error_text` into traceback ("" if there is none) and cause."""
    above, _, cause = text.strip().rpartition("\n")
    return above, cause
