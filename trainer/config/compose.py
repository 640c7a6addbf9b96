"""How a command line becomes a `Config`: Hydra's groups and grammar, with errors of our own in one sentence."""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.arguments import FREE, GROUPS, KEYS, MOST_RUNS, UNREADABLE, check, is_text, quoted, single_values
from trainer.config.fields import shown
from trainer.config.machine import available_cores, check_machine
from trainer.config.run_files import RunFolder
from trainer.config.sections import (
    CONFIG_DIR,
    Config,
    ConfigError,
    config_keys,
    first_line,
    from_yaml,
    group_options,
    resolve,
    schema,
)
from trainer.config.validation import check_values, validate
from trainer.reading import ReadError, read_json

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
        arguments: `KEY=VALUE` as they were typed, without flags.
        cores: cores that the run may use; None asks `available_cores`.

    Raises:
        ConfigError: the first argument, or the first combination of values, that cannot be run.
    """
    overrides = check(arguments)
    for argument, override in zip(arguments, overrides, strict=True):
        if override.is_sweep_override():
            key, _, text = argument.partition("=")
            one = f", or write {shlex.quote(f'{key}={quoted(text)}')}" if is_text(key) else ""
            raise ConfigError(f"{shown(argument)} names several values: add -m to run them one after another{one}")
    preset, reason = choose_preset(overrides)
    config = _compose([*hydra_arguments(overrides), f"preset={preset}"])
    check_machine()
    cores = available_cores() if cores is None else cores
    check_values(config)  # a folder to go on in must be one that can be looked at
    folder = _folder_to_resume(config)
    config = absolute(config)
    if folder is not None:
        return _resumed(folder.absolute(), overrides, config, cores)
    config = replace(config, resume=None)
    return Loaded(resolve(config, cores), reason, validate(config, cores))


def absolute(config: Config) -> Config:
    """A configuration whose paths are absolute: what an environment does to the working folder moves none of them."""
    opponents, agents, replay = config.opponents, config.agents, config.replay
    return replace(
        config,
        run_dir=config.run_dir and os.path.abspath(config.run_dir),
        resume=config.resume if config.resume == "auto" else config.resume and os.path.abspath(config.resume),
        replay=replace(replay, scratch_dir=replay.scratch_dir and os.path.abspath(replay.scratch_dir)),
        opponents=replace(
            opponents,
            checkpoint_paths=[os.path.abspath(path) for path in opponents.checkpoint_paths],
            start_from=opponents.start_from and os.path.abspath(opponents.start_from),
        ),
        agents=replace(agents, start_from={name: os.path.abspath(path) for name, path in agents.start_from.items()}),
    )


def _folder_to_resume(config: Config) -> Path | None:
    """The folder of the run that is to go on, if there is one; `resume=auto` starts one where there is none."""
    if config.resume is None:
        return None
    if config.resume == "auto":
        if config.run_dir is None:
            raise ConfigError("resume=auto goes on in run_dir where that holds a run: name the folder, as run_dir=PATH")
        folder = Path(config.run_dir)
        return folder if RunFolder(folder).config.exists() else None
    folder = Path(config.resume)
    if config.run_dir is not None and Path(config.run_dir).absolute() != folder.absolute():
        raise ConfigError(f"resume={folder} goes on in that folder: leave run_dir={config.run_dir} out")
    if not RunFolder(folder).config.exists():
        raise ConfigError(f"resume={folder} is no run's folder: it holds no config.yaml")
    return folder


def _resumed(folder: Path, overrides: Sequence[Override], asked: Config, cores: int) -> Loaded:
    """The configuration of the run in `folder` with what was asked for anew, as far as that may change.

    Args:
        folder: of the run.
        overrides: what was typed: keys, and groups, which stand for all keys of their section (a preset: for all).
        asked: what it makes of a run that begins, not resolved: what the machine decides is kept.
        cores: that the run may use.
    """
    kept = absolute(from_yaml(RunFolder(folder).config))
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
    try:
        finished = _nothing_to_do(folder, kept, config)
    except ReadError as error:
        warnings, finished = [*warnings, f"{error}, the run goes on without it"], ""
    return Loaded(config, f"goes on in {folder}", warnings, finished)


def _nothing_to_do(folder: Path, kept: Config, config: Config) -> str:
    """A sentence where the run in `folder` is finished and `config` asks for no more; else nothing."""
    if not RunFolder(folder).summary.exists():
        return ""
    summary = read_json(RunFolder(folder).summary)
    if summary.get("status") != "finished" or config.budget_frames > kept.budget_frames:
        return ""
    if summary.get("solved_frames") is None:
        return f"the run in {folder} is finished: raise budget_frames above {kept.budget_frames} to go on"
    before, now = kept.evaluator.stop_at_return, config.evaluator.stop_at_return
    if before is not None and (now is None or now > before):
        return ""  # it stopped before its budget was used up
    return (
        f"the run in {folder} is finished, as evaluator.stop_at_return={before} was reached after "
        f"{summary['solved_frames']} frames: set evaluator.stop_at_return=null to go on to "
        f"budget_frames={kept.budget_frames}"
    )


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
        line = override.input_line or ""
        if not override.is_sweep_override():
            values.append([line])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            values.append([f"{key}={value}" for value in single_values(override)])
        else:
            raise ConfigError(f"{shown(line)} has no end: list the values, as KEY=1,2,3 or 'KEY=range(1,4)'")
    if (runs := math.prod(map(len, values))) > MOST_RUNS:
        raise ConfigError(f"this sweep has {shown(runs)} runs, more than {MOST_RUNS}: name fewer values")
    return [list(arguments) for arguments in itertools.product(*values)]


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


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        where = f" at {error.full_key}" if isinstance(error, OmegaConfBaseException) and error.full_key else ""
        raise ConfigError(f"the configuration cannot be put together{where}: {first_line(error)}") from error


def check_composition(arguments: list[str]) -> None:
    """Refuse what Hydra, which is asked to print a configuration, would end with a traceback on.

    Args:
        arguments: as Hydra takes them, of one run; a value may still be missing.

    Raises:
        ConfigError: they make no configuration.
    """
    with _in_one_sentence(), _own_hydra():
        OmegaConf.to_container(compose("train", arguments), resolve=True)


def _compose(arguments: list[str]) -> Config:
    with _in_one_sentence(), _own_hydra():
        node = compose("train", arguments)
        missing = OmegaConf.missing_keys(node)
    if missing:
        key = min(missing)
        raise ConfigError(f"{key} is not set: name it, as {key}={getattr(KEYS[key], 'default', 'VALUE')}")
    with _in_one_sentence():
        return cast(Config, OmegaConf.to_object(node))
