"""Tasks as the main process sees them: done in a process that is supervised like the others, or in this one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.config.sections import Config, FaultsConfig
from trainer.host.errors import RunFailed, error_text, split_error
from trainer.memory.pulse import new_pulse
from trainer.roles import task as tasks
from trainer.roles.task import Work
from trainer.training.processes import Piped, spawn, use_fork_server
from trainer.training.supervisor import Event, Role, Supervised, wait_for

POLL_S = 0.05  # between two looks at a process that says nothing
PAUSE_S = 1e-3  # between two looks at one that is gone
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


def beside(config: Config, task: Task, event: Event | None = None) -> Any:
    """Do a task in a process of its own, or in a schedule of one process in this one; what its work returned.

    Args:
        config: the run.
        task: to be done.
        event: is told of failures that are survived, as `Loggers.event` is; None: none is.

    Raises:
        TaskFailed: it failed, or failed more often than `faults.max_failures` allows.
    """
    progress = _Progress(task)
    if config.schedule.kind.one_process:
        return _here(task, progress)
    use_fork_server()
    faults = config.faults if event is not None else replace(config.faults, max_failures=0)
    return _Remote(config, task, progress).result(faults, event or _nobody)


def _nobody(text: str, role: str = "", agent: str = "", pid: int | None = None) -> None:
    """Hears of the failures of a task whose first one is the last."""


def _here(task: Task, progress: _Progress) -> Any:
    def tell(what: str, value: Any) -> None:
        progress.hear(what, value)
        progress.look()

    try:
        return task.work(tell)
    except (Exception, SystemExit) as error:  # what a user's environment raises
        traceback, cause = split_error(error_text(error))
        raise TaskFailed(f"the {task.name} failed: {cause}", type(error).__name__, cause, traceback, None) from error


class _Progress:
    """Takes what the work tells, and says how far it is, if that was not said just now."""

    def __init__(self, task: Task) -> None:
        self._task, self._text, self._start = task, "", time.monotonic()
        self._said = self._start

    def hear(self, what: str, value: Any) -> None:
        """Take a value."""
        if what == "progress":
            self._text = f": {value}"
        elif what:
            self._task.told[what](value)

    def look(self) -> None:
        """Say how far it is."""
        now = time.monotonic()
        if now - self._said >= QUIET_S:
            self._said = now
            self._task.progress(f"{self._task.name}{self._text}, {now - self._start:.0f} s")


class _Remote:
    """A task's process, and what came of it."""

    def __init__(self, config: Config, task: Task, progress: _Progress) -> None:
        self._config, self._task, self._progress = config, task, progress
        self._results: list[Any] = []  # of the work, once it is done
        self._kind, self._pulse = "", new_pulse()
        self._pipes: list[Piped] = []

    def result(self, faults: FaultsConfig, event: Event) -> Any:
        """What the work returned.

        Raises:
            TaskFailed: it failed too often.
        """
        supervised = Supervised(self._role(), faults, event)
        try:
            supervised.start()
            while not self._results:
                self._progress.look()
                time.sleep(PAUSE_S)
                for piped in self._pipes[-1:]:
                    piped.listen(POLL_S)
                if not self._results:
                    supervised.check()
            wait_for([supervised])
        except RunFailed as error:
            traceback, cause = split_error(self._pipes[-1].told) if self._pipes else ("", "")
            kind = self._kind if cause else ""
            raise TaskFailed(str(error), kind, cause, traceback, error.pid) from error
        finally:
            supervised.close()
        return self._results[0]

    def _role(self) -> Role:
        name = self._task.name
        return Role(
            role=name,
            name=lambda pid: f"the {name} (pid {pid})" if pid else f"the {name}",
            start=self._begin,
            heartbeat=lambda: float(self._pulse[0]),
            hang_s=self._config.faults.hang_seconds,
            closing_s=CLOSE_S,
        )

    def _begin(self) -> Piped:
        self._pulse, self._kind = new_pulse(), ""
        arguments = (self._config, self._task.role, self._task.work, self._pulse)
        self._pipes.append(Piped(lambda pipe: spawn(tasks.run, (*arguments, pipe), self._task.name), self._hear))
        return self._pipes[-1]

    def _hear(self, message: tuple[str, Any]) -> str:
        what, value = message
        if what == "done":
            self._results.append(value)
        elif what == "error":
            self._kind, text = value
            return str(text)
        else:
            self._progress.hear(*value)
        return ""
