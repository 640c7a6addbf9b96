"""Algorithms of the user's by import path: `algorithm=package.module:ENTRY`, an `AlgorithmEntry`.

While they are in use they stand in `ALGORITHMS` under their paths, so their keys are typed, bounded and refused like
those of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.config.algorithms import ALGORITHMS, AlgorithmConfig, AlgorithmEntry
from trainer.config.fields import ConfigError
from trainer.config.run_files import RunFolder
from trainer.envs.import_paths import NoPart, function_at, is_path, part_at

_OURS = frozenset(ALGORITHMS)
_KEY = re.compile(r"(?:^|\.)algorithm(?:\.name)?$")
_SOURCES = ("from=", "resume=", "run_dir=")


def use_algorithms(paths: Iterable[str]) -> None:
    """Let `ALGORITHMS` have ours and these, and no others.

    Raises:
        ConfigError: a path leads to no `AlgorithmEntry`.
    """
    wanted = list(paths)
    for name in [name for name in ALGORITHMS if name not in _OURS and name not in wanted]:
        del ALGORITHMS[name]
    add_algorithms(wanted)


def add_algorithms(paths: Iterable[str]) -> None:
    """Let `ALGORITHMS` have these too.

    Raises:
        ConfigError: a path leads to no `AlgorithmEntry`.
    """
    for path in paths:
        if path not in ALGORITHMS:
            ALGORITHMS[path] = _entry_at(path)


def paths_in(arguments: Sequence[str]) -> list[str]:
    """The paths of algorithms in arguments, and in the runs and files that they begin with or go on in."""
    found: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if _KEY.search(key):
            found += [word for word in value.split(",") if is_path(word)]
        if argument.startswith(_SOURCES):
            found += _paths_at(Path(value.strip("'\"")))
    return list(dict.fromkeys(found))


def paths_of(config: Any) -> list[str]:
    """The paths of algorithms in nested values of a configuration; none in what is no mapping."""
    if not isinstance(config, Mapping):
        return []
    sections = [config.get("algorithm")]
    agents = config.get("agents")
    overrides = agents.get("overrides") if isinstance(agents, Mapping) else None
    for agent in overrides.values() if isinstance(overrides, Mapping) else ():
        sections.append(agent.get("algorithm") if isinstance(agent, Mapping) else None)
    names = [section.get("name") if isinstance(section, Mapping) else section for section in sections]
    return [str(name) for name in names if is_path(name)]


def _paths_at(source: Path) -> list[str]:
    """Those of a run's folder or a YAML file; none where it cannot be read, which is said elsewhere."""
    import yaml

    try:
        file = RunFolder(source).config if source.is_dir() else source
        read = yaml.safe_load(file.read_text()) if file.is_file() else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return []
    return paths_of(read)


def _entry_at(path: str) -> AlgorithmEntry:
    try:
        entry = part_at(path)
        if not isinstance(entry, AlgorithmEntry):
            raise NoPart(f"{path} is {type(entry).__name__}, and must be a trainer.config.algorithms.AlgorithmEntry")
        function_at(entry.build, ("section", "learner", "spec"))
    except NoPart as error:
        raise ConfigError(f"algorithm={error}") from error
    section = entry.section
    if not (is_dataclass(section) and isinstance(section, type) and issubclass(section, AlgorithmConfig)):
        raise ConfigError(
            f"algorithm={path} has the section {getattr(section, '__name__', section)}, which must be a dataclass "
            "derived from trainer.config.algorithms.AlgorithmConfig or one of its sections"
        )
    for item in fields(section):
        if any(word in str(item.type) for word in ("int", "float")) and "range" not in item.metadata:
            raise ConfigError(
                f"algorithm={path} has a key {item.name} without bounds: declare it by trainer.config.fields.number"
            )
    return entry
