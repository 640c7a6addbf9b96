"""Make a `Config` of a command line: by Hydra's groups and grammar, but with errors of one sentence."""

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

from trainer.config.algorithms import ALGORITHMS, check_key
from trainer.config.arguments import FREE, GROUPS, KEYS, MOST_RUNS, UNREADABLE, check, is_text, quoted, single_values
from trainer.config.fields import ConfigError, shown
from trainer.config.machine import available_cores, check_machine
from trainer.config.run_config import first_line, from_yaml, schema, with_own_keys
from trainer.config.run_files import RunFolder
from trainer.config.sections import CONFIG_DIR, Config, config_keys, group_options, resolve
from trainer.config.validation import check_values, validate
from trainer.reading import ReadError, read_json

# Keys, and sections (with a dot), that may change when a run is resumed. Any other change would make it another run.
MAY_CHANGE = (
    "budget_frames", "collector.num_workers", "collector.envs_per_worker", "replay.capacity_frames",
    "replay.scratch_dir", "learner.device", "learner.learning_rate", "learner.learning_rate_end",
    "learner.execution", "learner.deterministic", "learner.num_threads", "learner.prefetch_batches", "learner.prefetch",
    "learner.publish_every_updates",
    "schedule.tolerance_frames", "schedule.applier", "agents.hang_seconds", "evaluator.", "checkpoint.", "faults.",
    "logger.", "telemetry.",
)  # fmt: skip
DERIVED = (  # keys that `resolve` computes where they are null
    "collector.num_workers", "schedule.tolerance_frames", "schedule.frames_per_round", "schedule.episodes_per_round",
    "schedule.updates_per_round",
)  # fmt: skip

_SCHEMA = schema()
_SCHEMA.env.id = "???"  # to be set by a file of the group env, or by the user
ConfigStore.instance().store("schema", _SCHEMA)  # the first entry of configs/train.yaml


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


def load(arguments: Sequence[str], cores: int | None = None) -> Loaded:
    """Compose, resolve and validate the configuration of one run.

    Args:
        arguments: `KEY=VALUE` as typed, without flags.
        cores: that the run may use; None: `available_cores()`.

    Raises:
        ConfigError: an argument or a combination of values is not valid; the first one found.
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
    check_values(config)  # before the folder to resume is opened
    folder = _folder_to_resume(config)
    config = absolute(config)
    if folder is not None:
        return _resumed(folder.absolute(), overrides, config, cores)
    config = _own_keys(replace(config, resume=None), overrides)
    return Loaded(resolve(config, cores), reason, validate(config, cores))


def _own_keys(config: Config, overrides: Sequence[Override]) -> Config:
    """The configuration with the keys of its algorithm alone, once it is known which that is.

    A preset may set keys of several algorithms; what was typed is meant.

    Raises:
        ConfigError: a key was typed that the algorithm does not have.
    """
    config = with_own_keys(config)
    for override in overrides:
        section, _, key = override.key_or_group.partition(".")
        if section == "algorithm" and key and config.algorithm.name in ALGORITHMS:
            check_key(key, config.algorithm)
    return config


def absolute(config: Config) -> Config:
    """Make all paths of a configuration absolute, as an environment may change the working folder."""
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
    """The folder of the run to resume; None for a new run, also for `resume=auto` without a run in the folder.

    Raises:
        ConfigError: `resume` names no run, or does not fit `run_dir`.
    """
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
    """The configuration of the run to resume in `folder`, with the values that the user typed.

    Args:
        folder: of the run.
        overrides: as typed: keys; and groups, which set all keys of their section (a preset: all keys).
        asked: the configuration of a new run with these arguments, with the keys of all algorithms; not resolved, as
            values that `resolve` would compute stay as they are in the run.
        cores: that the run may use.

    Raises:
        ConfigError: a value differs from the run's and may not change, or the result is not valid.
    """
    kept = _own_keys(absolute(from_yaml(RunFolder(folder).config)), overrides)
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
                f"{key}={value} is not possible when a run is resumed, in {folder} it is {old[key]}: leave it out, or "
                f"start another run; what may change: {', '.join(key + '*' * key.endswith('.') for key in MAY_CHANGE)}"
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
    """A sentence if the run in `folder` is finished and `config` asks for nothing more; else ""."""
    if not RunFolder(folder).summary.exists():
        return ""
    summary = read_json(RunFolder(folder).summary)
    if summary.get("status") != "finished" or config.budget_frames > kept.budget_frames:
        return ""
    if summary.get("solved_frames") is None:
        if summary.get("frames", 0) < kept.budget_frames:
            return ""  # a callback has stopped it
        return f"the run in {folder} is finished: raise budget_frames above {kept.budget_frames} to go on"
    before, now = kept.evaluator.stop_at_return, config.evaluator.stop_at_return
    if before is not None and (now is None or now > before):
        return ""  # the target was raised or removed, and the budget is not used up
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
    """The arguments of each run of a sweep: all combinations of the values, in Hydra's order.

    Raises:
        ConfigError: an argument is not valid, or the sweep has no end or too many runs.
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
    """The preset of a run and the reason: the one that the user named, else the one made for the environment."""
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
    """Id of the environment that a preset is made for; None for a preset for any environment."""
    chosen = {key: name for entry in _read("preset", preset).get("defaults", []) for key, name in entry.items()}
    return _env_ids().get(chosen.get("override /env", ""))


def hydra_arguments(overrides: Sequence[Override]) -> list[str]:
    """The arguments in Hydra's form: keys of `FREE` are added or set (`++`), all others are set."""
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


def check_composition(arguments: list[str]) -> None:
    """Compose a configuration that Hydra will print, as Hydra itself would end with a traceback on an error.

    Args:
        arguments: of one run, in Hydra's form; a value may still be missing.

    Raises:
        ConfigError: they make no configuration.
    """
    with _in_one_sentence(), _separate_hydra():
        OmegaConf.to_container(compose("train", arguments), resolve=True)


def _compose(arguments: list[str]) -> Config:
    """What the arguments make, with the keys of all algorithms."""
    with _in_one_sentence(), _separate_hydra():
        node = compose("train", arguments)
        missing = OmegaConf.missing_keys(node)
    if missing:
        key = min(missing)
        raise ConfigError(f"{key} is not set: name it, as {key}={getattr(KEYS[key], 'default', 'VALUE')}")
    with _in_one_sentence():
        return cast(Config, OmegaConf.to_object(node))
