"""RUN/metrics.csv: the same rows as a table whose header grows with new keys."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.config import LoggerConfig
from trainer.loggers.sink import Event, Row, RunInfo, drop_torn_line, plain_value


class CsvSink:
    """Appends rows to RUN/metrics.csv; missing values, NaN and infinity are empty cells.

    A key that the header does not have yet (rare: the first evaluation, say) rewrites the table with the wider header
    into a file beside it and renames that, so a reader never meets a half-written table.
    """

    def __init__(self, run: RunInfo) -> None:
        self._path = run.run_dir / "metrics.csv"
        self._file = open(self._path, "a+b")
        drop_torn_line(self._file)
        self._columns = _header(self._path)

    def write(self, row: Row) -> None:
        """Append one line; raises OSError when the disk refuses."""
        new_columns = [key for key in row if key not in self._columns]
        if new_columns:
            self._widen(self._columns + new_columns)
        self._file.write(_line([_cell(row.get(column)) for column in self._columns]))
        self._file.flush()

    def event(self, event: Event) -> None:
        """Events are no rows; log.txt keeps them."""

    def close(self, summary: dict[str, Any]) -> None:
        """Close the file."""
        self._file.close()

    def _widen(self, columns: list[str]) -> None:
        padding = [""] * (len(columns) - len(self._columns))
        wider = self._path.with_name("metrics.csv.new")
        with open(self._path, newline="", encoding="utf-8") as old, open(wider, "wb") as new:
            new.write(_line(columns))
            lines = csv.reader(old)
            next(lines, None)  # the old header
            for cells in lines:
                new.write(_line(cells + padding))
        os.replace(wider, self._path)
        self._file.close()
        self._file = open(self._path, "a+b")
        self._columns = columns


def _header(path: Path) -> list[str]:
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _cell(value: Any) -> str:
    value = plain_value(value)
    return "" if value is None else str(value)


def _line(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def open_csv(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> CsvSink:
    """The sink behind LOGGERS["csv"]."""
    return CsvSink(run)
