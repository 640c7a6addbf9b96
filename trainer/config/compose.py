"""Make a `Config` of a command line: by Hydra's groups and grammar, but with errors of one sentence."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from trainer.config.arguments import MOST_RUNS, check, is_text, quoted, single_values
from trainer.config.beginning import FROM, begun, split_source
from trainer.config.composing import Loaded, compose_config, hydra_arguments, own_keys
from trainer.config.fields import ConfigError, shown
from trainer.config.machine import available_cores, check_machine
from trainer.config.paths import absolute
from trainer.config.presets import assumed, choose_files, choose_preset
from trainer.config.resolving import resolve
from trainer.config.resuming import folder_to_resume, resumed
from trainer.config.users_algorithms import paths_in, use_algorithms
from trainer.config.validation import check_values, validate

__all__ = ["Loaded", "absolute", "check", "choose_files", "choose_preset", "hydra_arguments", "jobs", "load"]


def load(arguments: Sequence[str], cores: int | None = None) -> Loaded:
    """Compose, resolve and validate the configuration of one run.

    Args:
        arguments: `KEY=VALUE` as typed, without flags; `from=RUN` too.
        cores: that the run may use; None: `available_cores()`.

    Raises:
        ConfigError: an argument or a combination of values is not valid; the first one found.
    """
    use_algorithms(paths_in(arguments))
    source, arguments = split_source(arguments)
    overrides = check(arguments)
    for argument, override in zip(arguments, overrides, strict=True):
        if override.is_sweep_override():
            key, _, text = argument.partition("=")
            one = f", or write {shlex.quote(f'{key}={quoted(text)}')}" if is_text(key) else ""
            raise ConfigError(f"{shown(argument)} names several values: add -m to run them one after another{one}")
    check_machine()
    cores = available_cores() if cores is None else cores
    if source:
        return begun(source, overrides, cores)
    files, preset, reason = choose_files(overrides)
    config = replace(compose_config([*hydra_arguments(overrides), *files]), preset=preset)
    check_values(config)  # before the folder to resume is opened
    folder = folder_to_resume(config)
    config = absolute(config)
    if folder is not None:
        return resumed(folder.absolute(), overrides, config, cores)
    config = own_keys(replace(config, resume=None), overrides)
    if reason.startswith("there is none"):
        reason = f"{reason}; {assumed(config)}"
    return Loaded(resolve(config, cores), reason, validate(config, cores))


def jobs(arguments: Sequence[str]) -> list[list[str]]:
    """The arguments of each run of a sweep: all combinations of the values, in Hydra's order.

    Raises:
        ConfigError: an argument is not valid, or the sweep has no end or too many runs.
    """
    use_algorithms(paths_in(arguments))
    source, arguments = split_source(arguments)
    values: list[list[str]] = [[f"{FROM}{source}"]] if source else []
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
