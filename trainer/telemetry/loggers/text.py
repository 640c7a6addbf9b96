"""RUN/log.txt: every event with its time, role, agent and process id."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from trainer.config.run_files import RunFolder
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.sink import Event, RunInfo
from trainer.telemetry.loggers.view import closing_lines
from trainer.telemetry.rows import Row


class TextSink:
    """Appends events to RUN/log.txt, flushed after each."""

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._file = open(RunFolder(run.run_dir).log, "a", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Do nothing: rows are in metrics.jsonl."""

    def event(self, event: Event) -> None:
        """Append the event, as one line or, for a traceback, several.

        Raises:
            OSError: it could not be written.
        """
        if event.passing:
            return
        self._file.write(f"{_head(event)} {event.text}\n")
        self._file.flush()

    def close(self, summary: dict[str, Any]) -> None:
        """Append how the run ended and close the file."""
        try:
            head = _head(Event(datetime.now(), "main", ""))
            self._file.writelines(f"{head} {line}\n" for line in closing_lines(self._run, summary))
        finally:
            self._file.close()


def _head(event: Event) -> str:
    return f"{event.time.isoformat(' ', timespec='seconds')} [{event.who} pid {event.pid}]"


def open_text(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> TextSink:
    """The sink behind LOGGERS["text"]."""
    return TextSink(run)
