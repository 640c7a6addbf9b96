"""Print a benchmark's results as a table, and write them as JSON. A missed bar is a result, not an error."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measurement.

    Args:
        name: what was measured.
        value: NaN if it could not be measured.
        unit: of the value and the bar; `x` for a ratio.
        bar: that the value should meet; None: for information only.
        at_most: True: the value should be at most the bar; False: at least the bar.
        detail: what the value was computed from, in words; not part of the JSON.
    """

    name: str
    value: float
    unit: str = "x"
    bar: float | None = None
    at_most: bool = False
    detail: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the bar is met; None without a bar. A value that is not finite meets no bar."""
        if self.bar is None:
            return None
        if not math.isfinite(self.value):
            return False
        return bool(self.value <= self.bar if self.at_most else self.value >= self.bar)

    def as_json(self) -> dict[str, Any]:
        """`{name, value, bar, unit, holds}`; a value that is not finite becomes null."""
        value = float(self.value) if math.isfinite(self.value) else None
        return {"name": self.name, "value": value, "bar": self.bar, "unit": self.unit, "holds": self.holds}


def parser(title: str, seconds: float = 3.0, repeats: int = 5) -> argparse.ArgumentParser:
    """The arguments that every benchmark has.

    Args:
        title: the first line of its help.
        seconds: how long each measurement takes by default.
        repeats: how often it is repeated by default, in turns with the other side.
    """
    made = argparse.ArgumentParser(description=title)
    made.add_argument("--json", type=Path, help="write the rows to this file as well")
    made.add_argument("--seconds", type=float, default=seconds, help=f"of each measurement ({seconds:g})")
    made.add_argument(
        "--repeats", type=int, default=repeats, help=f"of each measurement, both sides in turns ({repeats})"
    )
    return made


def show(title: str, rows: Sequence[Row], path: Path | None = None, note: str = "") -> None:
    """Print the table and write the JSON.

    Args:
        title: the table's.
        rows: in the order of printing.
        path: where the JSON goes, a list of `Row.as_json`; None: nowhere.
        note: a line below the table.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("", "value", "bar", "holds", "measured", title=title, caption=note or None)
    for row in rows:
        table.add_row(row.name, f"{figure(row.value)} {row.unit}", _bar(row), _holds(row), row.detail)
    console = Console()
    # Without a terminal rich assumes 80 columns and would wrap the names.
    (console if console.is_terminal else Console(width=160)).print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n")


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if not math.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _bar(row: Row) -> str:
    return "" if row.bar is None else f"{'<=' if row.at_most else '>='} {row.bar:g}"


def _holds(row: Row) -> str:
    return {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[row.holds]
