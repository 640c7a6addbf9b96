"""Validate a configuration: ranges, names and texts here, combinations of keys in `consistency`.

It is validated once, before torch is imported and before any process starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from keyword import iskeyword
from typing import Any

from trainer.config.algorithms import ALGORITHMS
from trainer.config.consistency import check_opponents, check_together
from trainer.config.fields import ConfigError, bounds_text, hint, shown
from trainer.config.overrides import agent_config, agent_values
from trainer.config.plausibility import warnings
from trainer.config.resolving import resolve
from trainer.config.sections import Config, config_keys
from trainer.envs.import_paths import is_path

PATHS = (
    "run_dir", "resume", "replay.scratch_dir", "replay.start_from", "opponents.start_from",
    "opponents.checkpoint_paths",
    "agents.start_from",
)  # fmt: skip
MOST_TEXT, MOST_ID, MOST_NAME = 2_000, 200, 255  # bytes of a text (paths have 4,095), an id, a folder's name (Linux)
FREE = (
    "callbacks",
    "env.kwargs",
    "env.wrappers",
    "collector.exploration_kwargs",
    "algorithm.network_kwargs",
)  # arguments of parts: any values
KINDS: dict[str, Any] = {"int": int, "float": int | float, "bool": bool, "str": str, "list": list, "dict": dict}
DEVICE = re.compile(r"cuda:(0|[1-9][0-9]{0,2})")


def validate(config: Config, cores: int) -> list[str]:
    """Refuse a configuration that is not valid.

    Args:
        config: resolved or not.
        cores: that the run may use, see `available_cores`.

    Returns:
        Warnings, one sentence each, see `trainer.config.plausibility`.

    Raises:
        ConfigError: the first wrong value or combination, in one sentence that names the keys.
    """
    check_values(config)
    check_together(resolve(config, cores))
    check_opponents(config)
    found = warnings(config, cores)
    for name in config.agents.overrides:
        found += _of_agent(config, name, cores)
    return list(dict.fromkeys(found))


def _of_agent(config: Config, name: str, cores: int) -> list[str]:
    """Validate the values of one agent; errors and warnings have its keys as the user writes them."""
    of_agent, keys = agent_config(config, name), "|".join(map(re.escape, agent_values(config, name)))

    def named(sentence: str) -> str:
        return re.sub(rf"(?<![\w.])({keys})\b", rf"agents.overrides.{name}.\1", sentence) if keys else sentence

    try:
        check_values(of_agent)
        check_together(resolve(of_agent, cores))
    except ConfigError as error:
        raise ConfigError(named(str(error))) from error
    of_run = set(warnings(config, cores))
    return [named(sentence) for sentence in warnings(of_agent, cores) if sentence not in of_run]


def check_values(config: Config) -> None:
    """Refuse values that their keys do not take, each key by itself.

    Raises:
        ConfigError: the first wrong value, in one sentence that names its key.
    """
    values, known = config_keys(config), config_keys()
    for key, item in ((key, known[key]) for key in values):
        _check_kind(key, str(item.type), values[key])
        if "range" in item.metadata:
            _check_range(key, values[key], *item.metadata["range"])
        if str(item.type).removesuffix(" | None") in ("list[str]", "dict[str, str]"):  # OmegaConf accepts nested ones
            _check_words(key, values[key] or [])
    for key, value in values.items():
        _check_texts(key, value)
    _check_names(values)


def _check_kind(key: str, annotation: str, value: Any) -> None:
    """Check the type, as an interpolation (`agents.overrides=${seed}`) may have any."""
    kind = KINDS[re.split(r"[\[ ]", annotation)[0]]
    if not (isinstance(value, kind) or (value is None and annotation.endswith("| None"))):
        raise ConfigError(f"{key}={shown(value)} does not fit: {key} takes {annotation}")


def _check_range(key: str, value: Any, low: float, high: float) -> None:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, bool) or not isinstance(one, int | float | None):  # as an element of a list
            raise ConfigError(f"{key}={shown(value)} does not fit: {shown(one)} is no number")
        if one is not None and not low <= one <= high:  # also True for NaN
            raise ConfigError(f"{key}={shown(value)} is out of range: it must be {bounds_text(low, high)}")


def _check_words(key: str, value: list[Any] | dict[str, Any]) -> None:
    for word in value.values() if isinstance(value, dict) else value:
        if not isinstance(word, str):
            raise ConfigError(f"{key}={shown(value)} does not fit: {shown(word)} is no word")


def _check_names(values: dict[str, Any]) -> None:
    known = {key: item.metadata for key, item in config_keys().items() if key in values}
    choices = {key: metadata["choices"] for key, metadata in known.items() if "choices" in metadata}
    choices["algorithm.name"] = tuple(sorted(ALGORITHMS))
    choices["learner.device"] = ("auto", "cpu", "cuda", "cuda:N")
    for key, options in choices.items():
        value = values[key]
        if key == "learner.device" and DEVICE.fullmatch(value):
            continue
        if "part" in known.get(key, {}) and is_path(value):
            continue
        if value not in options or value == "cuda:N":
            meant = f"; the nearest is {key}=cuda" if value == "gpu" else hint(value, options, prefix=f"{key}=")
            own = ", nor an import path, package.module:object" if "part" in known.get(key, {}) else ""
            raise ConfigError(f"{key}={shown(value)} is none of {', '.join(options)}{own}{meant}")
    _check_paths(values)
    for name in values["env.import_modules"]:
        if not all(part.isidentifier() and not iskeyword(part) for part in name.split(".")):
            raise ConfigError(
                f"env.import_modules={shown(name)} is no module's name: write it as in an import, without .py"
            )


def _check_paths(values: dict[str, Any]) -> None:
    """Refuse what has not the form of an import path, where nothing else is taken."""
    form = "no import path: write package.module:object"
    for leaf, path in values["algorithm.encoders"].items():
        if not is_path(path):
            raise ConfigError(f"algorithm.encoders.{leaf}={shown(path)} is {form}")
    for key, word in (("env.wrappers", "wrapper"), ("callbacks", "callback")):
        for one in values[key]:
            if not is_path(one.get(word) if isinstance(one, dict) else one):
                raise ConfigError(f"{key}={shown(one)} is {form}; with arguments {{{word}: PATH, NAME: VALUE}}")


def _check_texts(key: str, value: Any) -> None:
    """Refuse texts that do not fit into a file, a terminal or a path; arguments of parts only must be UTF-8."""
    free = key in FREE
    for text in _texts(value):
        try:
            length = len(text.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"{key}={shown(text)} is no text that UTF-8 can hold: type it again") from None
        if free:
            continue
        if not text.strip():
            raise ConfigError(f"{key} is empty: name one, or leave it out")
        if not text.isprintable():
            raise ConfigError(f"{key}={shown(text)} holds a character that cannot be printed: leave that out")
        most = MOST_ID if key == "env.id" else MOST_TEXT
        if length > most:
            raise ConfigError(f"{key}={shown(text)} is too long: it may have {most} bytes")
        if key in PATHS and any(len(part.encode()) > MOST_NAME for part in text.split("/")):
            raise ConfigError(f"{key}={shown(text)} cannot be a path: a name in it has more than {MOST_NAME} bytes")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
