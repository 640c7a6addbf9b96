"""The search space: keys of the configuration, each with the values that may be tried, in Hydra's grammar of sweeps.

    learner.learning_rate: tag(log, interval(1e-4, 1e-2))
    algorithm.n_step: range(1, 6)
    algorithm.hidden_sizes: choice([64,64], [120,84])

It stands in a YAML file beside the preset, and on the command line, where it has precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, QuotedString, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from trainer.config.arguments import KEYS, check, single_values
from trainer.config.beginning import FROM, split_source
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.sections import CONFIG_DIR, Config, config_keys
from trainer.reading import ReadError, read_text

Space = dict[str, BaseDistribution]
FOLDER = CONFIG_DIR / "preset" / "search"  # a file for each preset that has a search space


def read_space(arguments: Sequence[str], file: Path | None = None) -> tuple[Space, list[str]]:
    """The search space, and the arguments that all trials share.

    Args:
        arguments: `KEY=VALUE` as typed; those with several values belong to the space, any other fixes its key.
        file: with the rest of the space; None: that of the preset, if it has one.

    Raises:
        ConfigError: an argument or the file is not valid, or nothing is left to be searched.
    """
    source, arguments = split_source(arguments)
    overrides = check(arguments)
    fixed = [f"{FROM}{source}"] if source else []
    fixed += [text for text, override in zip(arguments, overrides, strict=True) if not override.is_sweep_override()]
    typed = {override.key_or_group: override for override in overrides}
    preset = load(fixed).config.preset
    path = file or FOLDER / f"{preset}.yaml"
    if file is None and not path.exists():
        if not any(override.is_sweep_override() for override in overrides):
            raise ConfigError(
                f"preset={preset} has no search space: name values on the command line, as "
                "'learner.learning_rate=tag(log,interval(1e-4,1e-2))', or a file by --space"
            )
        in_file: list[Override] = []
    else:
        in_file = _read(path)
    chosen = {override.key_or_group: override for override in in_file if override.key_or_group not in typed}
    chosen |= {key: override for key, override in typed.items() if override.is_sweep_override()}
    if not chosen:
        raise ConfigError(f"the command line fixes all keys of {path}: leave one of them out")
    space = {key: _distribution(override) for key, override in chosen.items()}
    _check_ends(space, fixed)
    return space, fixed


def arguments_of(params: Mapping[str, Any]) -> list[str]:
    """The values of a trial as arguments `KEY=VALUE`."""
    return [f"{key}={value}" for key, value in params.items()]


def defaults(space: Space, config: Config) -> dict[str, Any]:
    """The values that a configuration has, as far as they are in the search space."""
    found: dict[str, Any] = {}
    values = config_keys(config)
    for key, distribution in space.items():
        value = values.get(key, values.get(f"{key}.name"))
        if isinstance(distribution, CategoricalDistribution):
            same = [choice for choice in distribution.choices if _parsed(key, str(choice)) == value]
            found |= {key: same[0]} if same else {}
        elif isinstance(distribution, FloatDistribution | IntDistribution) and isinstance(value, int | float):
            found |= {key: value} if distribution.low <= value <= distribution.high else {}
    return found


def text_of(distribution: BaseDistribution) -> str:
    """A distribution in words."""
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(str, distribution.choices))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return f"{distribution.low:g} to {distribution.high:g}{' (log)' if distribution.log else ''}"


def _read(path: Path) -> list[Override]:
    try:
        content = yaml.safe_load(read_text(path, "name another file by --space"))
    except ReadError as error:
        raise ConfigError(str(error)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML file: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise ConfigError(f"{path} is no search space: write KEY: SWEEP on each line, as algorithm.n_step: range(1, 6)")
    overrides = check([f"{key}={value}" for key, value in content.items()])
    for override in overrides:
        if not override.is_sweep_override():
            raise ConfigError(f"{path}, {override.key_or_group}: one value is no search; name several, as choice(1, 2)")
    return overrides


def _distribution(override: Override) -> BaseDistribution:
    """The values of a key as Optuna knows them.

    Raises:
        ConfigError: there are none, or not of a kind that can be searched.
    """
    key, sweep = override.key_or_group, override.value()
    try:
        if isinstance(sweep, IntervalSweep) and sweep.start is not None and sweep.end is not None:
            log = "log" in sweep.tags
            if key in KEYS and str(KEYS[key].type).startswith("int"):
                return IntDistribution(int(sweep.start), int(sweep.end), log=log)
            return FloatDistribution(float(sweep.start), float(sweep.end), log=log)
        if isinstance(sweep, RangeSweep) and isinstance(found := sweep.range(), range) and found.step > 0 and found:
            return IntDistribution(found[0], found[-1], step=found.step)
        if isinstance(sweep, RangeSweep | ChoiceSweep):
            return CategoricalDistribution([value.strip("'\"") for value in single_values(override)])
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {error}") from error
    raise ConfigError(f"{override.input_line} cannot be searched: use interval(...), range(...) or choice(...)")


def _check_ends(space: Space, fixed: Sequence[str]) -> None:
    """Check each end and each choice with the defaults of all others, so that a wrong one is told before the first run.

    Raises:
        ConfigError: a value is not valid.
    """
    for key, distribution in space.items():
        ends: Sequence[Any] = ()
        if isinstance(distribution, CategoricalDistribution):
            ends = distribution.choices
        elif isinstance(distribution, FloatDistribution | IntDistribution):
            ends = (distribution.low, distribution.high)
        for value in ends:
            load([*fixed, f"{key}={value}"])


def _parsed(key: str, text: str) -> Any:
    value = OverridesParser.create().parse_override(f"{key}={text}").value()
    return value.text if isinstance(value, QuotedString) else value
