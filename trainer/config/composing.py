"""Hydra's part of a command line: arguments -> groups and keys -> the `Config` that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.algorithm_keys import check_key
from trainer.config.algorithms import (
    ALGORITHMS,
    AlgorithmConfig,
    any_section,
    keys_of,
    section_of,
)
from trainer.config.arguments import FREE, KEYS, UNREADABLE
from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line, schema, with_own_keys
from trainer.config.sections import CONFIG_DIR, Config

_stored: list[tuple[str, ...]] = []


def store_schema() -> None:
    """Let Hydra know the keys of all algorithms that there are now, as the first entry of configs/train.yaml."""
    if _stored == [tuple(ALGORITHMS)]:
        return
    node = schema()
    node.env.id = "???"  # to be set by a file of the group env, or by the user
    ConfigStore.instance().store("schema", node)
    _stored[:] = [tuple(ALGORITHMS)]


@dataclass(frozen=True)
class Loaded:
    """A valid configuration.

    Args:
        config: resolved and validated.
        preset_reason: why its preset was taken; printed in brackets after the preset's name.
        warnings: one sentence each.
        finished: a sentence if the run to resume has nothing left to do, else "".
    """

    config: Config
    preset_reason: str
    warnings: list[str]
    finished: str = ""


def compose_node(arguments: Sequence[str]) -> Any:
    """OmegaConf's node of what the arguments make, with the keys of all algorithms.

    Args:
        arguments: in Hydra's form.

    Raises:
        ConfigError: they make no configuration, or a value is missing.
    """
    store_schema()
    with _in_one_sentence(), _separate_hydra():
        node = compose("train", list(arguments))
        missing = OmegaConf.missing_keys(node)
    if missing:
        key = min(missing)
        raise ConfigError(f"{key} is not set: name it, as {key}={getattr(KEYS[key], 'default', 'VALUE')}")
    return node


def compose_config(arguments: Sequence[str]) -> Config:
    """What the arguments make, with the keys of all algorithms.

    Raises:
        ConfigError: as in `compose_node`.
    """
    return as_config(compose_node(arguments))


def as_config(node: Any) -> Config:
    """The configuration of OmegaConf's node.

    Raises:
        ConfigError: an interpolation in it leads nowhere.
    """
    with _in_one_sentence():
        return cast(Config, OmegaConf.to_object(node))


def composed(arguments: list[str], overrides: Sequence[Override], resolved: bool) -> str:
    """A configuration as YAML text for `--cfg job`, as Hydra prints it, but without keys of other algorithms.

    Args:
        arguments: of one run, in Hydra's form; a value may still be missing.
        overrides: as typed.
        resolved: whether references to other keys are replaced by their values.

    Raises:
        ConfigError: they make no configuration, or a key was typed that the algorithm does not have.
    """
    store_schema()
    with _in_one_sentence(), _separate_hydra():
        node = compose("train", arguments)
        whole = cast(dict[str, Any], OmegaConf.to_container(node, resolve=True))
        printed = whole if resolved else cast(dict[str, Any], OmegaConf.to_container(node))
    name = whole["algorithm"]["name"]
    if name in ALGORITHMS:
        section = section_of(any_section()(name=name), name)
        _check_typed(section, overrides)
        printed["algorithm"] = {key: printed["algorithm"][key] for key in keys_of(type(section))}
    return OmegaConf.to_yaml(OmegaConf.create(printed))


def hydra_arguments(overrides: Sequence[Override]) -> list[str]:
    """The arguments in Hydra's form: keys of `FREE` are added or set (`++`), Hydra's stay as typed, others are set."""
    arguments = []
    for override in overrides:
        if override.key_or_group.startswith("hydra."):
            arguments.append(override.input_line or "")
            continue
        argument = (override.input_line or "").lstrip("+")
        is_free = f"{override.key_or_group}.".startswith(FREE)
        arguments.append(f"++{argument}" if is_free else argument)
    return arguments


def own_keys(config: Config, overrides: Sequence[Override]) -> Config:
    """The configuration with the keys of its algorithm alone, once it is known which that is.

    A preset may set keys of several algorithms; what was typed is meant.

    Raises:
        ConfigError: a key was typed that the algorithm does not have.
    """
    config = with_own_keys(config)
    if config.algorithm.name in ALGORITHMS:
        _check_typed(config.algorithm, overrides)
    return config


def _check_typed(algorithm: AlgorithmConfig, overrides: Sequence[Override]) -> None:
    for override in overrides:
        section, _, key = override.key_or_group.partition(".")
        if section == "algorithm" and key:
            check_key(key.partition(".")[0], algorithm)


@contextmanager
def _separate_hydra() -> Iterator[None]:
    """Compose within the context without touching Hydra's global state, which a sweep is using."""
    instance = GlobalHydra.instance()
    outer = instance.hydra
    instance.clear()
    try:
        with initialize_config_dir(str(CONFIG_DIR), job_name="train", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        where = f" at {error.full_key}" if isinstance(error, OmegaConfBaseException) and error.full_key else ""
        raise ConfigError(f"the configuration cannot be put together{where}: {first_line(error)}") from error
