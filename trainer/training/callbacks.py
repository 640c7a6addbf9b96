"""Callbacks: a user's objects that the main process calls while a run goes on.

An object has one or more of the methods of `Callback`; the others may be missing. All calls are made here, in the main
process and in the order in which the objects were given, between two slices of the training loop: learning waits for
them, collection goes on. An exception ends the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainer.config.fields import ConfigError
from trainer.config.sections import Config
from trainer.envs.import_paths import NoPart, function_at, part_at, path_and_arguments
from trainer.host.errors import RunFailed
from trainer.roles.agents import AgentPlan
from trainer.roles.evaluator import Evaluation
from trainer.telemetry.rows import Row

HOOKS = ("on_row", "on_evaluation", "on_checkpoint", "on_end")


class Callback(Protocol):
    """What a callback may have; it needs one of these methods. Each is given the run that goes on."""

    def on_row(self, run: Control, row: Row) -> None:
        """A row of training was written, every `logger.every_seconds` and at the end; `row` is a copy of it."""

    def on_evaluation(self, run: Control, evaluation: Evaluation) -> None:
        """Greedy episodes have ended, of weights that were taken at `evaluation.frames`."""

    def on_checkpoint(self, run: Control, frames: int) -> None:
        """A checkpoint was written, after `frames` frames, into the folder `run.run_dir / "checkpoints"`."""

    def on_end(self, run: Control, summary: dict[str, Any]) -> None:
        """The run has ended, however it did; `summary` is what RUN/summary.json will hold."""


@dataclass
class Control:
    """A run that goes on, as a callback sees it.

    Args:
        run_dir: the run folder.
        config: of the run.
        plans: of the agents that learn; empty before they are made, and after a run that could not begin.
        reason: why a callback has stopped the run; "" while none has.
    """

    run_dir: Path
    config: Config
    plans: Sequence[AgentPlan] = field(default=(), repr=False)
    reason: str = ""

    @property
    def frames(self) -> int:
        """Frames collected so far; of several agents in one world, those of the one with most."""
        counts = [plan.board.total_frames() for plan in self.plans]
        return sum(counts) if self.config.schedule.kind.local_agents else max(counts, default=0)

    @property
    def updates(self) -> int:
        """Updates made so far, by all agents."""
        return sum(int(plan.board.updates[0]) for plan in self.plans)

    def stop(self, reason: str = "") -> None:
        """End the training at the next possible moment: as at `evaluator.stop_at_return`, the run is then finished.

        Args:
            reason: stands in the summary.
        """
        self.reason = reason or "a callback has stopped it"

    def set_learning_rate(self, rate: float | None, agent: str | None = None) -> None:
        """Set the learning rate from the next updates on.

        A resumed run begins with the rate of its configuration again, until a callback sets another one.

        Args:
            rate: above 0; None: as the configuration says.
            agent: whose; None: of all.

        Raises:
            ValueError: the rate is not above 0, or there is no such agent.
        """
        if rate is not None and not 0.0 < rate < float("inf"):
            raise ValueError(f"a learning rate of {rate} is not above 0")
        named = [plan for plan in self.plans if agent in (None, plan.name)]
        if not named:
            raise ValueError(f"there is no agent {agent}: there are {', '.join(plan.name for plan in self.plans)}")
        for plan in named:
            plan.board.learning_rate[0] = rate or 0.0


class Callbacks:
    """Calls all callbacks of a run.

    Args:
        given: the objects, from `check`.
        control: the run, as they see it.
        event: takes the traceback of one that raised, as `Loggers.event` does.
    """

    def __init__(self, given: Sequence[Any], control: Control, event: Callable[[str], None]) -> None:
        self._given, self.control, self._event = list(given), control, event

    def row(self, row: Row) -> None:
        """A row of training was written.

        Raises:
            RunFailed: a callback raised; so do the methods below.
        """
        self._call("on_row", lambda: dict(row))

    def evaluation(self, evaluation: Evaluation) -> None:
        """An evaluation has ended."""
        self._call("on_evaluation", lambda: evaluation)

    def checkpoint(self, frames: int) -> None:
        """A checkpoint was written."""
        self._call("on_checkpoint", lambda: frames)

    def end(self, summary: dict[str, Any]) -> str:
        """The run has ended; a sentence where a callback raised, else ""."""
        try:
            self._call("on_end", lambda: dict(summary))
        except RunFailed as error:
            return str(error)
        return ""

    def _call(self, hook: str, argument: Callable[[], Any]) -> None:
        for callback in self._given:
            if (method := getattr(callback, hook, None)) is None:
                continue
            try:
                method(self.control, argument())
            except (Exception, SystemExit) as error:
                self._given.remove(callback)  # it is not called again while the run ends
                self._event(f"traceback of the callback:\n{''.join(traceback.format_exception(error))}")
                said = str(error).strip().partition("\n")[0]
                text = f"{type(error).__name__}: {said}" if said else type(error).__name__
                raise RunFailed(f"the callback {name_of(callback)} failed in {hook}: {text}") from error


def named(given: Sequence[Any]) -> list[Any]:
    """The callbacks of the key `callbacks`: objects that have import paths, or what functions and classes make.

    Raises:
        ConfigError: a path leads nowhere, or what it leads to cannot be made.
    """
    return [_made(*path_and_arguments(one, "callback")) for one in given]


def _made(path: str, kwargs: dict[str, Any]) -> Any:
    try:
        found = part_at(path)
        if not kwargs and not isinstance(found, type) and any(hasattr(found, hook) for hook in HOOKS):
            return found
        make = function_at(path, (), tuple(kwargs))
    except NoPart as error:
        raise ConfigError(f"callbacks={error}") from error
    try:
        return make(**kwargs)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ConfigError(f"callbacks={path} failed as it was made ({type(error).__name__}: {error})") from error


def check(given: Sequence[Any]) -> Sequence[Any]:
    """The callbacks, if each has a method to call.

    Raises:
        ConfigError: one of them has none, or is a class.
    """
    for callback in given:
        if isinstance(callback, type):
            raise ConfigError(
                f"the callback {callback.__name__} is a class: make an object of it, {callback.__name__}()"
            )
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise ConfigError(
                f"the callback {name_of(callback)} has none of the methods {', '.join(HOOKS)}: give it one"
            )
    return given


def name_of(callback: Any) -> str:
    """A callback's name in sentences: that of its class, or of a module or function itself."""
    return str(getattr(callback, "__name__", type(callback).__name__))
