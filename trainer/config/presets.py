"""Which preset a run begins with, and the files of presets: the trainer's, and those of folders of the user's.

A folder of the user's (`--config-dir FOLDER`) holds files as configs/ does: preset/mine.yaml for `preset=mine`. Hydra
finds them by the key `hydra.searchpath`, into which the flag is turned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from trainer.config.algorithms import ALGORITHMS, PRESETS, DQNConfig
from trainer.config.arguments import folders_of
from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line
from trainer.config.sections import CONFIG_DIR, Config, config_keys, group_options

Folders = tuple[Path, ...]
_SECTIONS = frozenset(key.partition(".")[0] for key in config_keys() if "." in key)

# A preset of an environment is for its family too: pattern of the family's ids -> preset. The first that fits is taken.
FAMILIES = {
    r"ALE/(?!.*-ram).+": "atari",
    r"[A-Z]\w+NoFrameskip-v\d+": "atari",  # older names of the same games
    r"MinAtar/.+": "minatar",
    r"CartPole-v\d+": "cartpole",
    r"Acrobot-v\d+": "acrobot",
    r"MountainCar-v\d+": "mountaincar",
    r"LunarLander-v\d+": "lunarlander",
    r"LunarLanderContinuous-v\d+": "lunarlander_continuous",
    r"MountainCarContinuous-v\d+": "mountaincar_continuous",
    r"Pendulum-v\d+": "pendulum",
    r"BipedalWalker-v\d+": "bipedalwalker",
    r"HalfCheetah-v\d+": "halfcheetah",
    r"Hopper-v\d+": "hopper",
    r"Walker2d-v\d+": "walker2d",
}


def choose_preset(overrides: Sequence[Override]) -> tuple[str, str]:
    """The preset of a run and the reason: the user's choice, else that of the environment, else that of its family."""
    given = given_by(overrides)
    folders = folders_of(overrides)
    if "preset" in given:
        return given["preset"], "asked for"
    env_id = given.get("env.id") or _env_ids(folders).get(given.get("env", ""))
    algorithm = ALGORITHMS.get(given.get("algorithm.name") or given.get("algorithm", ""))
    actions = "" if algorithm is None else algorithm.actions
    if env_id is None:
        default, generic = PRESETS[actions or "numbered"]
        return (default, "the default") if "env" not in given else (generic, f"there is none for {given['env']}")
    return preset_of(env_id, folders, actions, given.get("env", ""))


def preset_of(env_id: str, folders: Folders = (), actions: str = "", env: str = "") -> tuple[str, str]:
    """The preset for an environment, and the reason.

    Args:
        env_id: of the environment.
        folders: of the user's, with presets.
        actions: the kind that the user's algorithm takes, as one environment may have a preset for each; "": any.
        env: the file of the environment that the user chose; "": none.
    """
    found = [preset for preset in group_options("preset", folders) if preset_env_id(preset, folders) == env_id]
    found += [preset for pattern, preset in FAMILIES.items() if re.fullmatch(pattern, env_id)]
    for preset in sorted(found, key=lambda preset: env not in ("", _env_of(preset, folders))):
        if actions in ("", ALGORITHMS[algorithm_of(preset, folders)].actions):
            like = "" if preset_env_id(preset, folders) == env_id else "environments like "
            return preset, f"made for {like}{env_id}"
    return PRESETS[actions or "numbered"][1], f"there is none for {env_id}"


def files_of(preset: str, given: Mapping[str, str], folders: Folders = ()) -> list[str]:
    """Arguments that choose a preset, and the algorithm that it is made for unless `given` has the group algorithm.

    The file of the algorithm comes after the preset (configs/train.yaml), so a preset cannot choose it by itself. With
    that algorithm the preset's values hold over those of the algorithm's file, with any other one they do not.

    Args:
        preset: the preset.
        given: what the user typed: keys and groups, and their values.
        folders: of the user's, with presets.
    """
    made_for = algorithm_of(preset, folders)
    words = [f"preset={preset}", *([] if "algorithm" in given else [f"algorithm={made_for}"])]
    if given.get("algorithm", made_for) != made_for or given.get("algorithm.name", made_for) != made_for:
        return words
    hidden = keys_of_option("algorithm", made_for, folders) - {"algorithm.name", *given}
    tuned = _read("preset", preset, folders).get("algorithm", {}).items()
    return words + [f"algorithm.{key}={json.dumps(value)}" for key, value in tuned if f"algorithm.{key}" in hidden]


def choose_files(overrides: Sequence[Override]) -> tuple[list[str], str, str]:
    """The arguments of `files_of` for what the user typed, the preset, and why it was taken."""
    preset, reason = choose_preset(overrides)
    return files_of(preset, given_by(overrides), folders_of(overrides)), preset, reason


def given_by(overrides: Sequence[Override]) -> dict[str, str]:
    """The keys and groups that the user typed, and their values as text."""
    return {override.key_or_group: str(override.value()) for override in overrides}


def algorithm_of(preset: str, folders: Folders = ()) -> str:
    """The algorithm that a preset is made for."""
    section = _read("preset", preset, folders).get("algorithm", {})
    name = str(section.get("name", DQNConfig.name)) if isinstance(section, dict) else DQNConfig.name
    return name if name in ALGORITHMS else DQNConfig.name  # the validation says so later


def assumed(config: Config) -> str:
    """The values that matter most where no preset fits, for the line that says which preset was taken."""
    learner, schedule, algorithm = config.learner, config.schedule, config.algorithm
    sizes = (
        f"algorithm.hidden_sizes={algorithm.hidden_sizes}, " if getattr(algorithm, "network", "auto") == "auto" else ""
    )
    return (
        f"assumed: budget_frames={config.budget_frames}, learner.learning_rate={learner.learning_rate:g}, "
        f"learner.batch_size={learner.batch_size}, algorithm.gamma={algorithm.gamma:g}, "
        f"{sizes}schedule.frames_per_update={schedule.frames_per_update or 0:g}, "
        f"env.preprocessing={config.env.preprocessing}, env.frame_stack={config.env.frame_stack}"
    )


def preset_env_id(preset: str, folders: Folders = ()) -> str | None:
    """Id of the environment that a preset is made for; None for a preset for any environment."""
    named = _read("preset", preset, folders).get("env", {})
    env_id = named.get("id") if isinstance(named, dict) else None
    return env_id or _env_ids(folders).get(_env_of(preset, folders))


def _env_of(preset: str, folders: Folders) -> str:
    """The file of the environment that a preset chooses; "" for none."""
    entries = _read("preset", preset, folders).get("defaults", [])
    chosen = {key: name for entry in entries if isinstance(entry, dict) for key, name in entry.items()}
    return str(chosen.get("override /env", ""))


def _env_ids(folders: Folders) -> dict[str, str]:
    read = {option: _read("env", option, folders).get("id", "???") for option in group_options("env", folders)}
    return {option: env_id for option, env_id in read.items() if env_id != "???"}


def _read(group: str, option: str, folders: Folders) -> dict[str, Any]:
    for folder in (CONFIG_DIR, *folders):  # in Hydra's order
        path = folder / group / f"{option}.yaml"
        if path.is_file():
            return _read_file(path, path.stat().st_mtime_ns)
    return {}


@cache
def _read_file(path: Path, changed_at: int) -> dict[str, Any]:
    """What a file says; the time at which it was changed makes another one of it for the cache.

    Raises:
        ConfigError: it is no YAML file with keys.
    """
    try:
        read = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise ConfigError(f"{path} is no YAML file: {first_line(error)}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{path} holds no mapping of keys to values, as `seed: 5`")
    return cast(dict[str, Any], read)


def keys_of_option(group: str, option: str, folders: Folders = ()) -> set[str]:
    """The dotted keys that the file of a group's option sets, and those of the files that it chooses."""
    read = dict(_read(group, option, folders))
    found: set[str] = set()
    for entry in read.pop("defaults", []):
        for key, name in entry.items() if isinstance(entry, dict) else [(group, entry)]:
            if key.removeprefix("override /") != "_self_" and name != "_self_":
                found |= keys_of_option(key.removeprefix("override /").strip("/"), str(name), folders)
    for key in _flat(read):
        is_whole = group == "preset" or key.partition(".")[0] in _SECTIONS
        found.add(key if is_whole else f"{group}.{key}")
    return found


def _flat(nested: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        leaf
        for key, value in nested.items()
        for leaf in (_flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"])
    ]
