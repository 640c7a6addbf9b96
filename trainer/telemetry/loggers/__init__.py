"""Loggers: one object, `Loggers`, that hands rows and events to all sinks.

A new logger needs one file with a `Sink`, one line in `trainer.config.registries` and one YAML file.
"""

from __future__ import annotations

import difflib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config.fields import ConfigError
from trainer.config.registries import LOGGERS, OPTIONAL_LOGGERS, registered
from trainer.config.sections import LoggerConfig
from trainer.envs.import_paths import is_path
from trainer.telemetry.loggers.sink import Event, RunInfo, Sink
from trainer.telemetry.rows import Row

__all__ = ["Event", "Loggers", "Row", "RunInfo", "Sink", "open_loggers"]

# Opens a sink. The function is `notify`: a text that the sink hands to it, from any thread, becomes an event.
OpenSink = Callable[[LoggerConfig, RunInfo, Callable[[str], None]], Sink]


class Loggers:
    """Hands rows and events to every sink. Used by one thread only, and not from a signal handler.

    Logging never ends a run: a sink that raises OSError (a full disk), or a user's sink that raises anything, is
    reported by one event and tried again with the next row.

    Args:
        sinks: by name; rows and events go to them in this order, and they are closed in it.
        notices: texts from the sinks, also from their threads; each becomes an event.
    """

    def __init__(self, sinks: dict[str, Sink], notices: deque[str]) -> None:
        self._sinks = sinks
        self._notices = notices
        self._failing: set[str] = set()

    def write(self, row: Row) -> None:
        """Hand one row to every sink."""
        self._hand_out_notices()
        for name, sink in list(self._sinks.items()):
            self._guarded(name, lambda sink=sink: sink.write(row))  # type: ignore[misc]
        self._hand_out_notices()

    def event(
        self, text: str, role: str = "main", agent: str = "", pid: int | None = None, video: Path | None = None,
        frames: int = 0,
    ) -> None:  # fmt: skip
        """Hand an event (a warning, an evaluation, the death of a process) to every sink.

        Args:
            text: one line, or more for a traceback.
            role: of the process that the event is about.
            agent: that the event is about, if any.
            pid: of the process that the event is about; None: this one.
            video: that the event is about, an MP4.
            frames: at which the policy was taken that it shows.
        """
        self._hand_out_notices()
        who = os.getpid() if pid is None else pid
        self._hand_out(Event(datetime.now(), role, text, agent, who, video=video, frames=frames))
        self._hand_out_notices()

    def progress(self, text: str) -> None:
        """Show the progress of something that takes long, as "starting workers: 3 of 16".

        The live view shows the text until the next one, until "" or until the next row of training. A plain terminal
        prints at most one in five seconds. A call costs as much as drawing the view.
        """
        self._hand_out_notices()
        self._hand_out(Event(datetime.now(), "main", text, passing=True))
        self._hand_out_notices()

    def close(self, summary: dict[str, Any]) -> None:
        """Close all sinks, even if one fails; `summary` is the content of summary.json. A second call does nothing."""
        self._hand_out_notices()
        while self._sinks:
            name = next(iter(self._sinks))
            sink = self._sinks.pop(name)
            self._guarded(name, lambda sink=sink: sink.close(summary))  # type: ignore[misc]
            self._hand_out_notices()  # to the sinks that are still open

    def _hand_out(self, event: Event) -> None:
        event = replace(event, text=printable(event.text))
        for name, sink in list(self._sinks.items()):
            self._guarded(name, lambda sink=sink: sink.event(event))  # type: ignore[misc]

    def _hand_out_notices(self) -> None:
        while self._notices:
            self._hand_out(Event(datetime.now(), "main", self._notices.popleft()))

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if not isinstance(error, OSError) and not is_path(name):
                raise
            if name not in self._failing:
                self._failing.add(name)
                why = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self._notices.append(f"warning: the {name} logger cannot write ({why}); training goes on")
        else:
            self._failing.discard(name)


def printable(text: str) -> str:
    """The text with control characters, and what is not UTF-8, written as escapes."""
    spelled = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(spelled)


def open_loggers(config: LoggerConfig, run: RunInfo, print_to_terminal: bool = True) -> Loggers:
    """Open the sinks that are always on, and the one that `config.name` asks for.

    Args:
        config: the section `logger`.
        run: the run; `run.run_dir` exists.
        print_to_terminal: whether the terminal may be used; with False it is silent for every configuration.

    Raises:
        ConfigError: an unknown `logger.name` or `logger.terminal`, or a missing package.
    """
    if config.name not in (*OPTIONAL_LOGGERS, "none") and not is_path(config.name):
        raise ConfigError(_unknown("logger.name", config.name, [*OPTIONAL_LOGGERS, "none"]))
    modes = ["auto", "live", "plain", "none"]
    if config.terminal not in modes:
        raise ConfigError(_unknown("logger.terminal", config.terminal, modes))
    silent = config.terminal == "none" or not print_to_terminal
    optional = [] if config.name == "none" else [config.name]  # first, as it may raise; the terminal's live view last
    always = [name for name in LOGGERS if name not in OPTIONAL_LOGGERS and not (name == "terminal" and silent)]
    notices: deque[str] = deque()
    openers: dict[str, OpenSink] = {name: registered(LOGGERS, name) for name in [*optional, *always]}
    if is_path(config.name):
        openers[config.name] = partial(_open_own, config.name, openers[config.name])
    return Loggers({name: open_sink(config, run, notices.append) for name, open_sink in openers.items()}, notices)


def _open_own(
    path: str, open_sink: OpenSink, config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]
) -> Sink:
    """Open a user's sink.

    Raises:
        ConfigError: it could not be opened, or is none.
    """
    try:
        sink = open_sink(config, run, notify)
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(f"logger.name={path} could not be opened ({type(error).__name__}: {error})") from error
    missing = [name for name in ("write", "event", "close") if not callable(getattr(sink, name, None))]
    if missing:
        raise ConfigError(f"logger.name={path} made {type(sink).__name__}, which has no {' and no '.join(missing)}")
    return sink


def _unknown(key: str, value: str, known: list[str]) -> str:
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.0)
    return f"{key}={value} is unknown: choose one of {', '.join(known)} (nearest: {close[0]})."
