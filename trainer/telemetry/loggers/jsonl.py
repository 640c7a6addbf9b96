"""RUN/metrics.jsonl: one JSON object for each row, with null for NaN and infinity, flushed after each row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from trainer.config.run_files import RunFolder
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.sink import Event, RunInfo, drop_torn_line, plain_value
from trainer.telemetry.rows import Row


class JsonlSink:
    """Appends rows to RUN/metrics.jsonl, also those of a resumed run."""

    def __init__(self, run: RunInfo) -> None:
        self._file = open(RunFolder(run.run_dir).metrics, "a+b")
        drop_torn_line(self._file)

    def write(self, row: Row) -> None:
        """Append one line.

        Raises:
            OSError: it could not be written.
        """
        line = json.dumps({key: plain_value(value) for key, value in row.items()}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def event(self, event: Event) -> None:
        """Do nothing: events are in log.txt."""

    def close(self, summary: dict[str, Any]) -> None:
        """Close the file."""
        self._file.close()


def open_jsonl(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> JsonlSink:
    """The sink behind LOGGERS["jsonl"]."""
    return JsonlSink(run)
