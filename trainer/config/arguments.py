"""Check the arguments `KEY=VALUE` as typed: known keys, existing options, values of the keys' types."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.algorithms import ALGORITHMS
from trainer.config.fields import ConfigError, hint, nearest, shown
from trainer.config.run_config import first_line, schema
from trainer.config.sections import CONFIG_DIR, config_keys, group_options
from trainer.envs.import_paths import is_path

GROUPS = tuple(sorted(path.name for path in CONFIG_DIR.iterdir() if any(path.glob("*.yaml"))))
KEYS = config_keys()
# Below these a user may add any key, as env.kwargs.size=5.
FREE = tuple(f"{key}." for key, item in KEYS.items() if str(item.type).startswith("dict"))
INSTEAD = {  # a key that one may look for, without its section -> what to set
    "replay_ratio": "set its inverse, schedule.frames_per_update, as 10 for a replay ratio of 0.1",
    "updates_per_frame": "set its inverse, schedule.frames_per_update, as 10 for a replay ratio of 0.1",
    "samples_per_insert": "set learner.batch_size / samples per insert as schedule.frames_per_update",
}
MOST_REPEATED = 200  # longest value that an error repeats in what to type instead
MOST_RUNS = 1_000  # of a sweep, as each is checked before the first begins
# All that Hydra, OmegaConf and Python raise on strange values, as 5,000 digits or a thousand brackets.
UNREADABLE = (HydraException, OmegaConfBaseException, ValueError, OverflowError, RecursionError)


def check(arguments: Sequence[str]) -> list[Override]:
    """Parse the arguments, and check that keys are known, options exist, and values have the types of their keys.

    Raises:
        ConfigError: about the first argument that is not valid.
    """
    if tuple(ALGORITHMS) != _known:
        _know_algorithms()
    overrides = [_parse(_of_part(argument)) for argument in arguments]
    folders = folders_of(overrides)
    for override in overrides:
        key = override.key_or_group
        if key.startswith(("hydra.", "hydra/")):
            continue
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: a key cannot be removed, set {key} to another value instead")
        if override.package is not None:
            raise ConfigError(f"{override.input_line}: a group cannot be moved, write {key}=VALUE instead")
        if key not in GROUPS and key not in KEYS and not key.startswith(FREE):
            raise ConfigError(_unknown_key(key))
        for value in single_values(override):
            if key in GROUPS:
                _check_option(key, value.strip("'\""), folders)
            else:
                _check_type(key, value)
    return overrides


_known = tuple(ALGORITHMS)


def _know_algorithms() -> None:
    """Let `KEYS` have the keys of the algorithms that there are now, as a user's may have come or gone."""
    global _known
    KEYS.clear()
    KEYS.update(config_keys())
    _types.cache_clear()
    _known = tuple(ALGORITHMS)


def search_path(folders: Sequence[str]) -> str:
    """The folders of `--config-dir` as Hydra's key for them.

    Raises:
        ConfigError: the flag names no folder.
    """
    if "" in folders:
        raise ConfigError("--config-dir takes a folder, which holds preset/NAME.yaml or the like")
    named = ",".join(quoted(f"file://{Path(folder).absolute()}") for folder in folders)
    return f"hydra.searchpath=[{named}]"


def folders_of(overrides: Sequence[Override]) -> tuple[Path, ...]:
    """The folders of the user's that groups are looked for in, besides the trainer's.

    Raises:
        ConfigError: one is not there.
    """
    found: list[Path] = []
    for override in overrides:
        if override.key_or_group == "hydra.searchpath":
            value = override.value()
            names = [str(name) for name in (value if isinstance(value, list) else [value])]
            found += [Path(name.removeprefix("file://")).absolute() for name in names if not name.startswith("pkg://")]
    for folder in found:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={folder} is no folder: name one that holds preset/NAME.yaml or the like")
    return tuple(found)


def _of_part(argument: str) -> str:
    """The argument; `GROUP=package.module:object` becomes `GROUP.name=package.module:object`."""
    group, _, value = argument.partition("=")
    takes_part = group in GROUPS and "part" in getattr(KEYS.get(f"{group}.name"), "metadata", {})
    takes_part |= group == "algorithm"
    return f"{group}.name={value}" if takes_part and is_path(value) else argument


def _parse(argument: str) -> Override:
    key, equals, text = argument.partition("=")
    if not equals:
        groups = [group for group in ("preset", *GROUPS) if key in group_options(group)]
        found = nearest(key, (*KEYS, *GROUPS))
        meant = f"{groups[0]}={key}" if groups else f"{found}=VALUE" if found else ""
        raise ConfigError(
            f"{shown(argument)} is not KEY=VALUE" + (f": did you mean {meant}?" if meant else ", and names no preset")
        )
    if not (name := key.lstrip("+~")):
        raise ConfigError(f"{shown(argument)} names no key: write KEY=VALUE")
    parse = OverridesParser.create().parse_override
    # Where possible, text is taken as typed, although Hydra's grammar needs quotes around = ( ) and others.
    may_be_bare = text and (is_text(name) or name.startswith(FREE)) and text[:1] not in tuple("[{'\"")
    try:
        override = parse(argument)
        if is_text(name) and may_be_bare and isinstance(override.value(), int | float):
            return parse(f"{key}={quoted(text)}")  # run_dir=1e5
        return override
    except UNREADABLE as error:
        if may_be_bare:
            with suppress(*UNREADABLE):
                return parse(f"{key}={','.join(map(quoted, text.split(',')))}")
        raise ConfigError(
            f"{shown(argument)} cannot be read ({shown(first_line(error))}): {_remedy(name, text)}"
        ) from error


def _remedy(key: str, text: str) -> str:
    """What to type instead of a value that could not be parsed."""
    if key in KEYS and not is_text(key):
        return f"{key} takes {_type_words(key)}"
    with suppress(*UNREADABLE):
        OverridesParser.create().parse_override(f"{key}={quoted(text)}")
        return "put quotes around the value" + (
            f", as {shlex.quote(f'{key}={quoted(text)}')}" if len(text) < MOST_REPEATED else ""
        )
    return "write KEY=VALUE, with a key of letters, digits and dots"


def quoted(text: str) -> str:
    """The text in double quotes, escaped for Hydra's grammar."""
    return str(QuotedString(text, Quote.double).with_quotes())


def is_text(key: str) -> bool:
    """Whether a key takes text, or text or null."""
    return key in KEYS and KEYS[key].type in ("str", "str | None")


def single_values(override: Override) -> Iterator[str]:
    """The values of an override as text: one, or several for a sweep."""
    if not override.is_sweep_override():
        yield (override.input_line or "").partition("=")[2]
    elif override.is_discrete_sweep():
        line = shown(override.input_line)
        try:
            values = list(itertools.islice(override.sweep_string_iterator(), MOST_RUNS + 1))
        except (*UNREADABLE, AssertionError, TypeError) as error:
            raise ConfigError(f"{line} cannot be read ({shown(first_line(error))}): list the values") from error
        if not 0 < len(values) <= MOST_RUNS:
            raise ConfigError(f"{line} names {'no' if not values else f'more than {MOST_RUNS}'} values: list them")
        yield from values


def _unknown_key(key: str) -> str:
    sections = {known.partition(".")[0] for known in KEYS if "." in known}
    if key in sections:
        return f"{key} is a section, not a key: set one of its keys, as {next(k for k in KEYS if k.startswith(key))}"
    if (leaf := key.rpartition(".")[2]) in INSTEAD:
        return f"there is no key {shown(key)}: {INSTEAD[leaf]}"
    return f"there is no key {shown(key)}{hint(key, (*KEYS, *GROUPS))} (--cfg job lists all)"


def _check_option(group: str, option: str, folders: tuple[Path, ...]) -> None:
    options = group_options(group, folders)
    for folder in folders:
        if option in group_options(group) and (folder / group / f"{option}.yaml").is_file():
            raise ConfigError(
                f"{group}={option} is a file of {folder} and one of the trainer's: give {folder}/{group}/{option}.yaml "
                "another name"
            )
    if option in options:
        return
    if group == "env" and ("/" in option or "-v" in option):
        raise ConfigError(f"env={option} names an id, not one of {', '.join(options)}: write env.id={option}")
    meant = hint(option, options, prefix=f"{group}=")
    raise ConfigError(f"{group}={shown(option)} is none of {', '.join(options)}{meant}")


def _check_type(key: str, text: str) -> None:
    value: Any = None
    try:
        value = OverridesParser.create().parse_override(f"{key}={text}").value()
        if key in KEYS and KEYS[key].type == "bool" and isinstance(value, int | float) and value not in (0, 1):
            raise ValueError  # OmegaConf would take any number as true
        # A schema remembers the values of keys that take anything: these get a new schema each time.
        types = schema() if key.startswith(FREE) or f"{key}." in FREE else _types()
        OmegaConf.update(types, key, value, merge=True, force_add=key.startswith(FREE))
    except UNREADABLE as error:
        words = _type_words(key) if key in KEYS else "another value"
        if words.startswith("a whole") and isinstance(value, float) and value.is_integer():
            words = f"a whole number: write {key}={shown(int(value))}"
        if is_text(key) and isinstance(KEYS[key].default, str):
            words += f" (its default is {KEYS[key].default})"
        raise ConfigError(f"{key}={shown(text)} does not fit: {key} takes {words}") from error


@lru_cache(maxsize=1)
def _types() -> Any:
    """The schema for the types of all other keys, made once as it takes 20 ms."""
    return schema()


def _type_words(key: str) -> str:
    """The type of a key in words, from its annotation."""
    kind = str(KEYS[key].type)
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "text",
        "list[int]": "whole numbers in brackets, as [120,84]",
        "list[str]": "words in brackets, as [first,second]",
        "list[Any]": "import paths in brackets, as [package.module:object]",
    }
    plain = kind.removesuffix(" | None")
    return words.get(plain, "a mapping, as {key: value}") + (" or null" if plain != kind else "")
