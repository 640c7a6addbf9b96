"""`from=RUN` and `from=FILE`: a new run like another one, or as a YAML file says, but for the values that are typed.

A file has keys as RUN/config.yaml has them, as many as it wants: `seed: 5`, `learner: {batch_size: 64}`. It names an
option of a group as the command line does: `algorithm: c51`. All other keys come from the preset that it names, or that
its environment has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from trainer.config.algorithms import keys_of, section_of
from trainer.config.arguments import GROUPS, check, folders_of, quoted
from trainer.config.composing import Loaded, as_config, compose_config, compose_node, hydra_arguments, own_keys
from trainer.config.fields import ConfigError, hint, shown
from trainer.config.paths import absolute
from trainer.config.presets import choose_preset, files_of, given_by, keys_of_option, preset_of
from trainer.config.resolving import resolve
from trainer.config.resuming import DERIVED, with_keys, with_workers
from trainer.config.run_config import first_line, from_yaml
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config, config_keys, group_options
from trainer.config.validation import check_values, validate
from trainer.reading import ReadError, read_text

FROM = "from="


def split_source(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """What the argument `from=` names, "" without one; and the other arguments.

    Raises:
        ConfigError: it is given twice, names nothing, or stands beside `resume`.
    """
    named = [argument[len(FROM) :].strip("'\"") for argument in arguments if argument.startswith(FROM)]
    rest = [argument for argument in arguments if not argument.startswith(FROM)]
    if not named:
        return "", rest
    if len(named) > 1 or not named[0]:
        raise ConfigError("from= names one run's folder or one YAML file: from=runs/mine")
    if any(argument.startswith("resume=") for argument in rest):
        raise ConfigError(
            f"from={named[0]} begins a run like that one and resume goes on with a run: leave out one of them"
        )
    return named[0], rest


def begun(source: str, overrides: Sequence[Override], cores: int) -> Loaded:
    """The configuration of a new run like `source`, with the values that the user typed.

    Args:
        source: a run's folder, or a YAML file.
        overrides: as typed. A group's option, or a preset, sets the keys that its file names.
        cores: that the run may use.

    Raises:
        ConfigError: there is no such run or file, it cannot be read, or the result is not valid.
    """
    path, folders = Path(source), folders_of(overrides)
    if os.path.isdir(path):  # unlike Path's, False for a name that is too long
        base = _of_run(path)
    elif os.path.isfile(path):
        base = _of_file(path, overrides)
    else:
        raise ConfigError(f"from={shown(source)} is neither a run's folder nor a YAML file: name one that is there")
    presets = group_options("preset", folders)
    given = given_by(overrides)
    typed = next((str(override.value()) for override in overrides if override.key_or_group == "preset"), "")
    preset = files_of(typed or (base.preset if base.preset in presets else "generic"), given, folders)
    env_id = [] if {"env.id", "env"} & given.keys() else [f'env.id="{base.env.id}"']
    asked = compose_config([*hydra_arguments(overrides), *preset, *env_id])
    changed = with_workers(_changed(base, asked, overrides))
    if changed.keys() & {"collector.num_workers", "collector.envs_per_worker", "schedule.name"}:
        old, derived = config_keys(base), config_keys(resolve(with_keys(base, dict.fromkeys(DERIVED[1:])), cores))
        changed = {**{key: None for key in DERIVED[1:] if old[key] == derived[key]}, **changed}
    name = str(changed.pop("algorithm.name", base.algorithm.name))
    section = section_of(asked.algorithm, name)  # with the preset's values of keys that only this algorithm has
    both = {key: getattr(base.algorithm, key) for key in keys_of(type(section)) if hasattr(base.algorithm, key)}
    base = replace(base, algorithm=replace(section, **{**both, "name": name}))
    own = {key: value for key, value in changed.items() if key in config_keys(base)}
    config = own_keys(absolute(with_keys(base, own)), overrides)
    check_values(config)
    return Loaded(resolve(config, cores), f"as {source} has it", validate(config, cores))


def _of_run(folder: Path) -> Config:
    file = RunFolder(folder).config
    if not file.is_file():
        raise ConfigError(f"from={folder} is no run's folder: it holds no config.yaml")
    return replace(from_yaml(file), run_dir=None, resume=None)


def _of_file(path: Path, overrides: Sequence[Override]) -> Config:
    """What a file makes with the preset that it names, or the one of its environment."""
    values = _mapping(path)
    words = [f"{group}={values.pop(group)}" for group in GROUPS if isinstance(values.get(group), str)]
    named = dict(word.split("=", 1) for word in words)
    env = values.get("env", {})
    env_id = env.get("id") if isinstance(env, dict) else None
    typed = [override for override in overrides if override.key_or_group.startswith("hydra.")]
    try:
        chosen = check(words)
        if "preset" not in named:
            preset = choose_preset(chosen)[0] if env_id is None else preset_of(str(env_id), folders_of(typed))[0]
            words += files_of(preset, named, folders_of(typed))
        if env_id is not None:
            words.append(f"env.id={quoted(str(env_id))}")
        node = compose_node([*words, *hydra_arguments(typed)])
        _merge(node, values)
        return as_config(node)
    except ConfigError as error:
        raise ConfigError(f"from={path}: {error}") from error


def _mapping(path: Path) -> dict[str, Any]:
    try:
        read = OmegaConf.to_container(OmegaConf.create(read_text(path, "name another file")))
    except ReadError as error:
        raise ConfigError(f"from={error}") from error
    except (YAMLError, OmegaConfBaseException, ValueError, AssertionError, RecursionError) as error:
        raise ConfigError(f"from={path} is no YAML file: {first_line(error)}") from error
    if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
        raise ConfigError(f"from={path} holds no mapping of keys to values, as `seed: 5`")
    return {str(key): value for key, value in read.items()}


def _merge(node: Any, values: dict[str, Any]) -> None:
    """Put values into OmegaConf's node of a configuration."""
    OmegaConf.set_struct(node, False)  # for env.kwargs and the like; sections refuse unknown keys by their types
    try:
        node.merge_with(values)
    except (OmegaConfBaseException, ValueError) as error:
        key = getattr(error, "full_key", "") or ""
        raise ConfigError(
            f"{key}: {first_line(error)}{'' if key in config_keys() else hint(key, config_keys())}"
        ) from error


def _changed(base: Config, asked: Config, overrides: Sequence[Override]) -> dict[str, Any]:
    """The keys that were typed, or that a typed group's or preset's file names, with their values in `asked`."""
    old, new = config_keys(base), config_keys(asked)
    named: set[str] = set()
    for override in overrides:
        key = override.key_or_group
        if key in GROUPS:
            named |= keys_of_option(key, str(override.value()), folders_of(overrides))
        else:
            named.add(key)
    found = {}
    for key, value in new.items():
        free = any(name.startswith(f"{key}.") for name in named)
        if free and isinstance(old.get(key), dict):
            value = {**old[key], **value}
        if key in named or free:
            found[key] = value
    return found
