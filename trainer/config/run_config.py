"""The configuration as YAML, as in a run's config.yaml, and as an OmegaConf schema."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

from trainer.config.algorithms import any_section, section_of
from trainer.config.fields import ConfigError, hint
from trainer.config.sections import Config, config_keys
from trainer.config.users_algorithms import add_algorithms, paths_of
from trainer.reading import ReadError, read_text


def to_dict(config: Config) -> dict[str, Any]:
    """Nested dict of plain Python values."""
    return asdict(config)


def to_yaml(config: Config) -> str:
    """YAML text, which `from_yaml` turns into an equal `Config`; its end is marked, to detect a torn file."""
    import yaml

    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True, explicit_start=True, explicit_end=True)


def schema() -> Any:
    """The types and defaults of `Config` as an OmegaConf node; values can be set, although the classes are frozen.

    Its section `algorithm` has the keys of all algorithms: see `with_own_keys`.
    """
    from omegaconf import OmegaConf

    node = OmegaConf.structured(Config(algorithm=any_section()()))
    OmegaConf.set_readonly(node, None)
    for item in fields(Config):
        if OmegaConf.is_config(node[item.name]):
            OmegaConf.set_readonly(node[item.name], None)
    return node


def with_own_keys(config: Config) -> Config:
    """The configuration with the keys of its algorithm alone."""
    return replace(config, algorithm=section_of(config.algorithm, config.algorithm.name))


def from_yaml(path: str | Path) -> Config:
    """Read a run's config.yaml; missing keys get their defaults, and keys of other algorithms are left out.

    Raises:
        ConfigError: the file is missing, damaged or no YAML mapping, or has an unknown key or a wrong value.
    """
    from omegaconf import DictConfig, OmegaConf
    from yaml import YAMLError

    try:
        text = read_text(Path(path), "name a run's folder that holds a whole one")
        read = OmegaConf.create(text)
    except ReadError as error:
        raise ConfigError(str(error)) from error
    # YAMLError and others: a number of 5,000 digits, neither a mapping nor a list, an alias of itself.
    except (YAMLError, ValueError, AssertionError, RecursionError) as error:
        raise ConfigError(f"{path} is no YAML file: {first_line(error)}") from error
    if text.startswith("---") and not text.endswith("\n...\n"):
        raise ConfigError(f"{path} is torn (its end is missing): name a run's folder that holds a whole one")
    if not isinstance(read, DictConfig) or not read:
        raise ConfigError(f"{path} holds no mapping of keys to values, so it is no run's config.yaml")
    return from_dict(read, str(path))


def from_dict(values: Any, source: str) -> Config:
    """The configuration of nested values, from `to_dict`; missing keys get their defaults.

    Args:
        values: a mapping, or OmegaConf's of it.
        source: where they were read, for the sentence of an error.

    Raises:
        ConfigError: there is an unknown key or a wrong value.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    add_algorithms(paths_of(OmegaConf.to_container(values) if OmegaConf.is_config(values) else values))
    try:
        return with_own_keys(cast(Config, OmegaConf.to_object(OmegaConf.merge(schema(), values))))
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        meant = "" if key in config_keys() else hint(key, config_keys())
        raise ConfigError(f"{source}, {key}: {first_line(error)}{meant}") from error


def first_line(error: Exception) -> str:
    """First line of an error's text, to be quoted in a sentence."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
