"""Tasks as the main process sees them: started, watched, started anew; `trainer.training.system` says how."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from torch import Tensor

from trainer.config.sections import FaultsConfig
from trainer.host import programs
from trainer.host.errors import error_text, exit_words, one_too_many, split_error
from trainer.memory.pulse import Pulse
from trainer.roles.task import Work

POLL_S = 0.05  # between two looks at a process that says nothing
QUIET_S = 1.0  # until there is a word of how far it is
CLOSE_S = 5.0  # that its process may take to end once its work is done


class TaskFailed(RuntimeError):
    """A task whose process raised, died or hung; its text is one sentence for the user.

    Args:
        text: the sentence.
        kind: the class of what was raised; empty if it died or hung.
        cause: what was raised, in words.
        traceback: of what was raised.
        pid: of the process.
    """

    def __init__(self, text: str, kind: str, cause: str, traceback: str, pid: int | None) -> None:
        super().__init__(text)
        self.kind, self.cause, self.traceback, self.pid = kind, cause, traceback, pid


@dataclass(frozen=True)
class Task:
    """Something that is done beside the main process, which waits for it.

    Args:
        name: of its process, for sentences: "final evaluation".
        role: that its process is seeded by, one of `trainer.host.seeds.ROLES`.
        work: what is done: a function of a module, or a partial of one.
        progress: is told how far it is, about once a second.
        told: what takes the values that the work tells, by their name. "progress" need not be among them.
    """

    name: str
    role: str
    work: Work
    progress: Callable[[str], None]
    told: dict[str, Callable[[Any], None]] = field(default_factory=dict)


Start = Callable[[Task, Tensor, Connection], BaseProcess]


def carry_out(task: Task, start: Start | None, faults: FaultsConfig, event: Callable[..., None] | None = None) -> Any:
    """Do it, and again if its process fails; what the work returned.

    Args:
        task: what is to be done.
        start: starts its process; None: it is done in this one.
        faults: how often it may fail, and how long it may show no sign of life.
        event: is told of failures that are survived, as `Loggers.event` is; None: none is.

    Raises:
        TaskFailed: it failed more often than `faults.max_failures` allows.
    """
    if start is None:
        return _here(task)
    failures: deque[float] = deque()
    while True:
        try:
            return _beside(task, start, faults.hang_seconds)
        except TaskFailed as failure:
            if event is None:
                raise
            if (often := one_too_many(failures, faults)) is not None:
                raise TaskFailed(
                    f"{failure}{often}", failure.kind, failure.cause, failure.traceback, failure.pid
                ) from failure
            if failure.traceback:
                event(f"traceback of the {task.name}:\n{failure.traceback}", task.name, pid=failure.pid)
            event(f"{failure}; another one takes its place", task.name, pid=failure.pid)


def _here(task: Task) -> Any:
    hear, look = _ears(task)

    def tell(what: str, value: Any) -> None:
        hear(what, value)
        look()

    try:
        return task.work(tell)
    except (Exception, SystemExit) as error:  # what a user's environment raises
        traceback, cause = split_error(error_text(error))
        raise TaskFailed(f"the {task.name} failed: {cause}", type(error).__name__, cause, traceback, None) from error


def _ears(task: Task) -> tuple[Callable[[str, Any], None], Callable[[], None]]:
    """What takes what the work tells, and what says how far it is, if that was not said just now."""
    text, start = "", time.monotonic()
    said = start

    def hear(what: str, value: Any) -> None:
        nonlocal text
        if what == "progress":
            text = f": {value}"
        elif what:
            task.told[what](value)

    def look() -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= QUIET_S:
            said = now
            task.progress(f"{task.name}{text}, {now - start:.0f} s")

    return hear, look


def _beside(task: Task, start: Start, hang_s: float) -> Any:
    pipe, theirs = Pipe()
    pulse, (hear, look) = Pulse(hang_s), _ears(task)
    process = start(task, pulse.memory, theirs)
    theirs.close()

    def failed(why: str, kind: str = "", cause: str = "", traceback: str = "") -> TaskFailed:
        return TaskFailed(f"the {task.name} (pid {process.pid}) {why}", kind, cause, traceback, process.pid)

    try:
        while True:
            look()
            hung = pulse.hung()
            if pipe.poll(POLL_S):
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):
                    raise failed(f"died: {_end_of(process)}") from None
                if kind == "done":
                    process.join(CLOSE_S)
                    return value
                if kind == "error":
                    traceback, cause = split_error(value[1])
                    raise failed(f"died: {cause}", value[0], cause, traceback)
                hear(*value)
            elif process.exitcode is not None:  # and something that it has started holds the pipe open
                raise failed(f"died: {_end_of(process)}")
            elif hung:
                raise failed(f"showed no sign of life for {pulse.silence.silent_s:.0f} s and was ended")
    finally:
        pipe.close()
        process.kill()
        process.join()
        programs.end([process.pid or 0])


def _end_of(process: BaseProcess) -> str:
    process.join(CLOSE_S)  # its exit code comes a little later than the end of its pipe
    return "it closed its pipe" if process.exitcode is None else f"it was ended by {exit_words(process.exitcode)}"
