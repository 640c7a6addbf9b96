"""Parts of a user's own: what an import path leads to is called as a part of ours would be.

`trainer.config.fields.part` marks the keys that take an import path, `package.module:object`, beside names of a
registry. What an environment is made of is imported only where environments are made. All else is imported and looked
at here, before any process starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from trainer.config.fields import ConfigError
from trainer.config.overrides import agent_config
from trainer.config.sections import Config, config_keys
from trainer.envs.import_paths import NoPart, function_at, is_path

ENCODER = ("leaf", "section")  # arguments of an encoder of `algorithm.encoders`


def import_from_here() -> None:
    """Let modules of the working folder be imported, as `python -m` does; processes that are started inherit it."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # at the end: no file of the user's takes the place of a library


def check_parts(config: Config) -> None:
    """Import every part of the user's that is no part of the environment, and look at what it takes.

    Raises:
        ConfigError: one cannot be imported, or cannot be called as it would be.
    """
    for of_agent in (config, *(agent_config(config, name) for name in config.agents.overrides)):
        for key, path, arguments, keywords in _used(of_agent):
            try:
                function_at(path, arguments, keywords)
            except NoPart as error:
                raise ConfigError(f"{key}={error}") from error


def has_own_layers(config: Config) -> bool:
    """Whether a part of the user's is in an agent's network."""
    return any(key.startswith("algorithm.") for key, *_ in _used(config))


def _used(config: Config) -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Key, path, and names of the arguments of each part, given by position and by name."""
    values, known = config_keys(config), config_keys()
    for key, value in values.items():
        call, kwargs = known[key].metadata.get("part", (None, ""))
        if call is not None and is_path(value):
            given: dict[str, Any] = values[f"{key.rpartition('.')[0]}.{kwargs}"] if kwargs else {}
            yield key, value, tuple(call.split()), tuple(given)
    for leaf, path in config.algorithm.encoders.items():
        yield f"algorithm.encoders.{leaf}", path, ENCODER, ()
