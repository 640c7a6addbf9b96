"""Tasks as the main process sees them: work in a supervised process, or with `sequential` in this one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.config.sections import Config, FaultsConfig
from trainer.envs import EnvError
from trainer.host.errors import RunFailed, error_text, split_error
from trainer.host.saying import say
from trainer.memory.pulse import new_pulse
from trainer.roles import task as tasks
from trainer.roles.task import Work
from trainer.telemetry.metrics import EverySeconds
from trainer.training.processes import Piped, spawn, use_fork_server
from trainer.training.supervisor import Event, Role, Supervised, wait_for

POLL_S = 0.05  # most time of a wait for a message
PAUSE_S = 1e-3  # between two waits
QUIET_S = 1.0  # between two lines on the progress
SAY_EVERY_S = 5.0  # the same, before the run has loggers
CLOSE_S = 5.0  # most time for the process to end once its work is done


class TaskFailed(RuntimeError):
    """A task has raised, or its process died or hung; the text is one sentence for the user.

    Args:
        text: the sentence.
        kind: class of the exception; "" if the process died or hung.
        cause: text of the exception.
        traceback: of the exception.
        pid: of the process.
    """

    def __init__(self, text: str, kind: str, cause: str, traceback: str, pid: int | None) -> None:
        super().__init__(text)
        self.kind, self.cause, self.traceback, self.pid = kind, cause, traceback, pid


@dataclass(frozen=True)
class Task:
    """Work for another process, for which the main process waits.

    Args:
        name: of the process, for sentences: "final evaluation".
        role: by which the process is seeded, one of `trainer.host.seeds.ROLES`.
        work: a function of a module, or a partial of one.
        progress: takes a line on the progress, about once a second.
        told: functions that take the values which the work reports, by name; "progress" need not be among them.
    """

    name: str
    role: str
    work: Work
    progress: Callable[[str], None]
    told: dict[str, Callable[[Any], None]] = field(default_factory=dict)


def before_the_run(config: Config, name: str, work: Work) -> Any:
    """Do a task with the environment while there are no loggers yet; its progress is printed now and then.

    Raises:
        EnvError: the environment cannot be made, or not be trained on.
        TaskFailed: something else went wrong.
    """
    said = EverySeconds(SAY_EVERY_S)

    def tell(text: str) -> None:
        if config.logger.terminal != "none" and said.crossed():
            say(text)

    try:
        return beside(config, Task(name, "describe", work, tell))
    except TaskFailed as error:
        if error.kind == "EnvError":
            raise EnvError(error.cause) from error
        raise


def beside(config: Config, task: Task, event: Event | None = None) -> Any:
    """Do a task in another process, or in this one if the schedule has one process; returns what its work returned.

    Args:
        config: of the run.
        task: the task.
        event: takes a sentence about each failure, as `Loggers.event`, and the task is tried again; None: it is not.

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
    """Ignore a failure: the task is not tried again."""


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
    """Takes what the work reports, and prints its progress now and then."""

    def __init__(self, task: Task) -> None:
        self._task, self._text, self._start = task, "", time.monotonic()
        self._said = self._start

    def hear(self, what: str, value: Any) -> None:
        """Take a value that the work reports."""
        if what == "progress":
            self._text = f": {value}"
        elif what:
            self._task.told[what](value)

    def look(self) -> None:
        """Print the progress, if that was not done within `QUIET_S`."""
        now = time.monotonic()
        if now - self._said >= QUIET_S:
            self._said = now
            self._task.progress(f"{self._task.name}{self._text}, {now - self._start:.0f} s")


class _Remote:
    """The process of a task, and its result."""

    def __init__(self, config: Config, task: Task, progress: _Progress) -> None:
        self._config, self._task, self._progress = config, task, progress
        self._results: list[Any] = []  # of the work, once it is done
        self._kind, self._pulse = "", new_pulse()
        self._pipes: list[Piped] = []

    def result(self, faults: FaultsConfig, event: Event) -> Any:
        """Start the process and wait; returns what the work returned.

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
