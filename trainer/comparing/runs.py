"""Read the runs that are compared: configuration, rows and summary of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer.config.run_files import RunFolder
from trainer.config.sections import config_keys
from trainer.reading import ReadError, read_json, read_text
from trainer.telemetry.plot import read_runs
from trainer.telemetry.rows import Row, of_kind, value_of


@dataclass(frozen=True)
class Run:
    """What is on disk of one run.

    Args:
        folder: of the run.
        config: its configuration, dotted key -> value; the keys that an older run lacks have their defaults.
        rows: oldest first.
        summary: the content of summary.json; empty until the run has ended.
    """

    folder: Path
    config: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]

    @property
    def env_id(self) -> str:
        """The environment that it plays."""
        return str(self.config["env.id"])

    @property
    def status(self) -> str:
        """finished, stopped, failed, or running while there is no summary."""
        return str(self.summary.get("status", "running"))

    @property
    def score(self) -> float | None:
        """Mean return of the best policy in the final evaluation; before that, of the newest evaluation; else None."""
        final = value_of(self.summary, "eval_return_mean")
        if final == final:
            return final
        evaluations = [value_of(row, "eval_return_mean") for row in of_kind(self.rows, "evaluation")]
        return next((value for value in reversed(evaluations) if value == value), None)


def found_below(paths: Sequence[Path]) -> list[Path]:
    """The run folders that the paths name: a run itself, or all runs below a folder that is none. Each one once."""
    found: dict[Path, None] = {}
    for path in paths:
        is_run = RunFolder(path).config.exists() or RunFolder(path).metrics.exists()
        below = [] if is_run else sorted(file.parent for file in path.rglob(RunFolder(path).metrics.name))
        found |= dict.fromkeys(below or [path])
    return list(found)


def read(paths: Sequence[Path]) -> list[Run]:
    """Read all runs; one that cannot be read is left out with a warning on stderr, as long as another one can.

    Args:
        paths: folders of runs, and folders that hold folders of runs.

    Raises:
        ReadError: no run can be read; the text is about the first one.
    """
    runs, problems = [], []
    for folder in found_below(paths):
        try:
            rows = read_runs([folder])[folder]
            summary = RunFolder(folder).summary
            runs.append(Run(folder, _config(folder), rows, read_json(summary) if summary.exists() else {}))
        except ReadError as error:
            problems.append(error)
    if not runs:
        raise problems[0]
    for problem in problems:
        print(f"warning: left out: {problem}", file=sys.stderr)
    return runs


def _config(folder: Path) -> dict[str, Any]:
    """The configuration as it is written, not checked, so that runs of other versions can be compared.

    Raises:
        ReadError: config.yaml could not be read, or is no configuration.
    """
    path = RunFolder(folder).config
    try:
        found = _flat(yaml.safe_load(read_text(path)))
        found["env.id"], found["algorithm.name"]  # noqa: B018
    except (yaml.YAMLError, AttributeError, LookupError, ValueError, RecursionError) as error:
        raise ReadError(f"{path} is no run's configuration: restore it, or leave this run out") from error
    defaults = {key: _default(item) for key, item in config_keys().items() if not key.startswith("algorithm.")}
    return {**defaults, **found}


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default
