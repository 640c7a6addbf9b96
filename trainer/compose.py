"""How a command line becomes a `Config`: Hydra's groups and grammar, with errors of our own in one sentence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config import (
    CONFIG_DIR,
    Config,
    ConfigError,
    available_cores,
    config_keys,
    first_line,
    from_yaml,
    group_options,
    nearest,
    resolve,
    schema,
)
from trainer.reading import ReadError, read_json
from trainer.validation import validate

FREE = ("env.kwargs.", "agents.overrides.", "agents.start_from.")  # keys that a user may add to

# What may be changed when a run goes on: keys, and sections. All else would make another run of it.
MAY_CHANGE = (
    "budget_frames", "collector.num_workers", "collector.envs_per_worker", "replay.capacity_frames",
    "replay.scratch_dir", "learner.device", "learner.learning_rate", "learner.learning_rate_end",
    "learner.execution", "learner.deterministic", "learner.num_threads", "learner.prefetch_batches",
    "learner.publish_every_updates",
    "schedule.tolerance_frames", "schedule.applier", "agents.hang_seconds", "evaluator.", "checkpoint.", "faults.",
    "logger.", "telemetry.",
)  # fmt: skip
DERIVED = (  # by `resolve`
    "collector.num_workers", "schedule.tolerance_frames", "schedule.frames_per_round", "schedule.episodes_per_round",
    "schedule.updates_per_round",
)  # fmt: skip
GROUPS = tuple(sorted(path.name for path in CONFIG_DIR.iterdir() if any(path.glob("*.yaml"))))
KEYS = config_keys()

_SCHEMA = schema()
_SCHEMA.env.id = "???"  # a file of the group env says it, or the user must
ConfigStore.instance().store("schema", _SCHEMA)  # the first entry of configs/train.yaml


@dataclass(frozen=True)
class Loaded:
    """A configuration that can be run.

    Args:
        config: resolved and validated.
        preset_reason: why its preset was taken, to be put in brackets behind the preset's name.
        warnings: one sentence each.
        finished: a sentence where there is nothing left to do for a run that was to go on.
    """

    config: Config
    preset_reason: str
    warnings: list[str]
    finished: str = ""


def load(arguments: Sequence[str], cores: int | None = None) -> Loaded:
    """Compose, resolve and validate the configuration of one run.

    Args:
        arguments: ``KEY=VALUE`` as they were typed, without flags.
        cores: cores that the run may use; None asks `available_cores`.

    Raises:
        ConfigError: the first argument, or the first combination of values, that cannot be run.
    """
    overrides = check(arguments)
    for override in overrides:
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line} names several values: add -m to run them one after another")
    preset, reason = choose_preset(overrides)
    config = _compose([*hydra_arguments(overrides), f"preset={preset}"])
    cores = available_cores() if cores is None else cores
    folder = _folder_to_resume(config)
    if folder is not None:
        return _resumed(folder, overrides, config, cores)
    config = replace(config, resume=None)
    return Loaded(resolve(config, cores), reason, validate(config, cores))


def _folder_to_resume(config: Config) -> Path | None:
    """The folder of the run that is to go on, if there is one; ``resume=auto`` starts one where there is none."""
    if config.resume is None:
        return None
    if config.resume == "auto":
        if config.run_dir is None:
            raise ConfigError("resume=auto goes on in run_dir where that holds a run: name the folder, as run_dir=PATH")
        folder = Path(config.run_dir)
        return folder if (folder / "config.yaml").exists() else None
    folder = Path(config.resume)
    if config.run_dir is not None and Path(config.run_dir) != folder:
        raise ConfigError(f"resume={folder} goes on in that folder: leave run_dir={config.run_dir} out")
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"resume={folder} is no run's folder: it holds no config.yaml")
    return folder


def _resumed(folder: Path, overrides: Sequence[Override], asked: Config, cores: int) -> Loaded:
    """The configuration of the run in ``folder`` with what was asked for anew, as far as that may change.

    Args:
        folder: of the run.
        overrides: what was typed: keys, and groups, which stand for all keys of their section (a preset: for all).
        asked: what it makes of a run that begins, not resolved: what the machine decides is kept.
        cores: that the run may use.
    """
    kept = from_yaml(folder / "config.yaml")
    typed = {override.key_or_group for override in overrides} - {"resume", "run_dir"}
    old, new = config_keys(kept), config_keys(asked)
    changed = {}
    for key in old:
        named = "preset" in typed or key in typed or key.partition(".")[0] in typed & set(GROUPS)
        free = any(name.startswith(f"{key}.") for name in typed)
        decided = new[key] is None and key in DERIVED and key not in typed
        if key not in ("resume", "run_dir") and (named or free) and not decided and new[key] != old[key]:
            changed[key] = new[key]
    for key, value in changed.items():
        if not key.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{key}={value} cannot be when a run goes on, in {folder} it is {old[key]}: leave it out, or start "
                f"another run; what may change is {', '.join(key + '*' * key.endswith('.') for key in MAY_CHANGE)}"
            )
    if changed.keys() & {"collector.num_workers", "collector.envs_per_worker"}:
        derived = config_keys(resolve(_with_keys(kept, dict.fromkeys(DERIVED[1:])), cores))
        changed = {**{key: None for key in DERIVED[1:] if old[key] == derived[key]}, **changed}
    config = replace(_with_keys(kept, changed), run_dir=str(folder), resume=str(folder))
    warnings, config = validate(config, cores), resolve(config, cores)
    summary = folder / "summary.json"
    status = None
    if summary.exists():
        try:
            status = read_json(summary).get("status")
        except ReadError as error:
            warnings.append(f"{error}, the run goes on without it")
    done = status == "finished" and config.budget_frames <= kept.budget_frames
    finished = (
        f"the run in {folder} is finished: raise budget_frames above {kept.budget_frames} to go on" if done else ""
    )
    return Loaded(config, f"goes on in {folder}", warnings, finished)


def _with_keys(config: Config, values: dict[str, Any]) -> Config:
    for key, value in values.items():
        section, _, leaf = key.rpartition(".")
        config = replace(
            config, **{section or leaf: replace(getattr(config, section), **{leaf: value}) if section else value}
        )
    return config


def jobs(arguments: Sequence[str]) -> list[list[str]]:
    """The runs of a sweep, as lists of arguments: every combination of the values, in the order that Hydra takes.

    Raises:
        ConfigError: an argument that cannot be run, or a sweep that has no end.
    """
    values: list[list[str]] = []
    for override in check(arguments):
        if not override.is_sweep_override():
            values.append([override.input_line or ""])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            raise ConfigError(f"{override.input_line} has no end: list the values, as KEY=1,2,3 or KEY=range(1,4)")
    return [list(arguments) for arguments in itertools.product(*values)]


def check(arguments: Sequence[str]) -> list[Override]:
    """Parse the arguments; every key is known, every group's option exists, every value has its key's type.

    Raises:
        ConfigError: the first argument of which that is not so.
    """
    overrides = [_parse(argument) for argument in arguments]
    for override in overrides:
        key = override.key_or_group
        if key.startswith(("hydra.", "hydra/")):
            continue
        if override.is_delete():
            raise ConfigError(f"{override.input_line} cannot be: no key can be left out, so set {key} to another value")
        if override.package is not None:
            raise ConfigError(f"{override.input_line} cannot be: groups stay in their place, so write {key}=VALUE")
        if key not in GROUPS and key not in KEYS and not key.startswith(FREE):
            raise ConfigError(_unknown_key(key))
        for value in _single_values(override):
            if key in GROUPS:
                _check_option(key, value.strip("'\""))
            else:
                _check_type(key, value)
    return overrides


def choose_preset(overrides: Sequence[Override]) -> tuple[str, str]:
    """The preset of a run, and why: as it was asked for, else as it fits the environment that was asked for."""
    given = {override.key_or_group: str(override.value()) for override in overrides}
    if "preset" in given:
        return given["preset"], "asked for"
    env_id = given.get("env.id") or _env_ids().get(given.get("env", ""))
    if env_id is None and "env" not in given:
        return Config.preset, "the default"
    for preset in group_options("preset"):
        if env_id is not None and preset_env_id(preset) == env_id:
            return preset, f"made for {env_id}"
    return "generic", f"there is none for {env_id or given['env']}"


def preset_env_id(preset: str) -> str | None:
    """The environment that a preset is made for; None for a preset that leaves it open."""
    chosen = {key: name for entry in _read("preset", preset).get("defaults", []) for key, name in entry.items()}
    return _env_ids().get(chosen.get("override /env", ""))


def hydra_arguments(overrides: Sequence[Override]) -> list[str]:
    """The arguments as Hydra takes them: keys of `FREE` are added, whatever the user wrote; all others are set."""
    arguments = []
    for override in overrides:
        argument = (override.input_line or "").lstrip("+")
        is_free = f"{override.key_or_group}.".startswith(FREE)
        arguments.append(f"++{argument}" if is_free else argument)
    return arguments


@cache
def _env_ids() -> dict[str, str]:
    read = {option: _read("env", option)["id"] for option in group_options("env")}
    return {option: env_id for option, env_id in read.items() if env_id != "???"}


@cache
def _read(group: str, option: str) -> dict[str, Any]:
    text = OmegaConf.load(CONFIG_DIR / group / f"{option}.yaml")
    return cast(dict[str, Any], OmegaConf.to_container(text))


def _parse(argument: str) -> Override:
    key, equals, _ = argument.partition("=")
    if not equals:
        groups = [group for group in ("preset", *GROUPS) if key in group_options(group)]
        meant = f"{groups[0]}={key}" if groups else f"{nearest(key, (*KEYS, *GROUPS))}=VALUE"
        raise ConfigError(f"{argument} is not KEY=VALUE: did you mean {meant}?")
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise ConfigError(
            f"{argument} cannot be read ({first_line(error)}): put quotes around the value, as '{key}=\"VALUE\"'"
        ) from error


def _single_values(override: Override) -> Iterator[str]:
    """The values of an override as text: one, or those of a sweep."""
    if not override.is_sweep_override():
        yield (override.input_line or "").partition("=")[2]
    elif override.is_discrete_sweep():
        yield from override.sweep_string_iterator()


def _unknown_key(key: str) -> str:
    sections = {known.partition(".")[0] for known in KEYS if "." in known}
    if key in sections:
        return f"{key} is a section, not a key: set one of its keys, as {next(k for k in KEYS if k.startswith(key))}"
    return f"there is no key {key}; the nearest is {nearest(key, (*KEYS, *GROUPS))} (--cfg job lists all)"


def _check_option(group: str, option: str) -> None:
    options = group_options(group)
    if option in options:
        return
    if group == "env" and ("/" in option or "-v" in option):
        raise ConfigError(f"env={option} names an id, not one of {', '.join(options)}: write env.id={option}")
    closest = nearest(option, options)
    raise ConfigError(f"{group}={option} is none of {', '.join(options)}; the nearest is {group}={closest}")


def _check_type(key: str, text: str) -> None:
    value = OverridesParser.create().parse_override(f"{key}={text}").value()
    try:
        OmegaConf.update(schema(), key, value, merge=True, force_add=key.startswith(FREE))
    except OmegaConfBaseException as error:
        words = _type_words(key)
        if words.startswith("a whole") and isinstance(value, float) and value.is_integer():
            words = f"a whole number: write {key}={int(value)}"
        raise ConfigError(f"{key}={text} does not fit: {key} takes {words}") from error


def _type_words(key: str) -> str:
    """What a key takes, in words, from its annotation."""
    section, _, name = key.rpartition(".")
    owner: Any = get_type_hints(Config)[section] if section else Config
    kind = str(get_type_hints(owner)[name]).removeprefix("<class '").removesuffix("'>")
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "text",
        "list[int]": "whole numbers in brackets, as [120,84]",
        "list[str]": "words in brackets, as [first,second]",
    }
    plain = kind.removesuffix(" | None")
    return words.get(plain, "a mapping, as {key: value}") + (" or null" if plain != kind else "")


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Hydra keeps one global state; inside a sweep its own is in use, and is put back."""
    instance = GlobalHydra.instance()
    outer = instance.hydra
    instance.clear()
    try:
        with initialize_config_dir(str(CONFIG_DIR), job_name="train", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _compose(arguments: list[str]) -> Config:
    try:
        with _own_hydra():
            node = compose("train", arguments)
        missing = OmegaConf.missing_keys(node)
        if missing:
            key = min(missing)
            raise ConfigError(f"{key} is not set: name it, as {key}={getattr(KEYS[key], 'default', 'VALUE')}")
        return cast(Config, OmegaConf.to_object(node))
    except (HydraException, OmegaConfBaseException) as error:
        where = f" at {error.full_key}" if isinstance(error, OmegaConfBaseException) and error.full_key else ""
        raise ConfigError(f"the configuration cannot be put together{where}: {first_line(error)}") from error
