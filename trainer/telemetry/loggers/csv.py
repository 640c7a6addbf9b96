"""RUN/metrics.csv: the rows as a table, whose header grows with new keys."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from trainer.config.run_files import RunFolder
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.sink import Event, RunInfo, drop_torn_line, plain_value
from trainer.telemetry.rows import Row


class CsvSink:
    """Appends rows to RUN/metrics.csv; missing values, NaN and infinity are empty cells.

    When a row has a new key (rare: the first evaluation), the table is written again with a wider header into another
    file, which then takes its place: a reader never sees half a table. A damaged table is renamed to
    metrics.csv.damaged, and a new one is begun.

    Args:
        run: the run.
        notify: takes the text about a damaged table.
    """

    def __init__(self, run: RunInfo, notify: Callable[[str], None]) -> None:
        self._path, self._notify = RunFolder(run.run_dir).table, notify
        self._wider = run.run_dir / "metrics.csv.new"
        self._wider.unlink(missing_ok=True)  # left by a process that was killed in `_widen`
        self._file = open(self._path, "a+b")
        drop_torn_line(self._file)
        try:
            self._columns = _header(self._path)
        except ValueError as error:
            self._begin_new(error)

    def write(self, row: Row) -> None:
        """Append one line.

        Raises:
            OSError: it could not be written.
        """
        new_columns = [key for key in row if key not in self._columns]
        if new_columns:
            try:
                self._widen(self._columns + new_columns)
            except ValueError as error:
                self._begin_new(error)
                self._widen(list(row))
        self._file.write(_line([_cell(row.get(column)) for column in self._columns]))
        self._file.flush()

    def event(self, event: Event) -> None:
        """Do nothing: events are in log.txt."""

    def close(self, summary: dict[str, Any]) -> None:
        """Close the file."""
        self._file.close()

    def _widen(self, columns: list[str]) -> None:
        padding = [""] * (len(columns) - len(self._columns))
        try:
            with open(self._path, newline="", encoding="utf-8") as old, open(self._wider, "wb") as new:
                new.write(_line(columns))
                lines = _cells(old)
                next(lines, None)  # the old header
                for cells in lines:
                    new.write(_line(cells + padding))
            os.replace(self._wider, self._path)
        finally:
            self._wider.unlink(missing_ok=True)  # where the disk is full
        self._file.close()
        self._file = open(self._path, "a+b")
        self._columns = columns

    def _begin_new(self, error: ValueError) -> None:
        aside = self._path.with_name("metrics.csv.damaged")
        self._file.close()
        os.replace(self._path, aside)
        self._file, self._columns = open(self._path, "a+b"), []
        self._notify(f"warning: metrics.csv is damaged ({error}): it is kept as {aside}, and a new one is begun")


def _header(path: Path) -> list[str]:
    with open(path, newline="", encoding="utf-8") as file:
        columns = next(_cells(file), [])
    if columns and "frames" not in columns:  # every row has this key
        raise ValueError("its first line is no header")
    return columns


def _cells(file: TextIO) -> Iterator[list[str]]:
    """The cells of each line.

    Raises:
        ValueError: the file is no text or no table.
    """
    try:
        yield from csv.reader(file, strict=True)
    except csv.Error as error:  # not a ValueError
        raise ValueError(str(error)) from error


def _cell(value: Any) -> str:
    value = plain_value(value)
    return "" if value is None else str(value)


def _line(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def open_csv(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> CsvSink:
    """The sink behind LOGGERS["csv"]."""
    return CsvSink(run, notify)
