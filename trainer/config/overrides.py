"""Values of one agent: `agents.overrides.<name>.<section>.<key>` replaces the value of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainer.config.algorithm_keys import check_key
from trainer.config.algorithms import section_of
from trainer.config.fields import ConfigError, hint, shown
from trainer.config.run_config import first_line, schema
from trainer.config.sections import Config, config_keys

AGENT_SECTIONS = ("algorithm", "learner", "replay", "collector", "schedule")  # an agent may override their keys
SHARED_KEYS = (  # but not these, as all agents play in the same processes
    "collector.num_workers", "collector.envs_per_worker", "replay.scratch_dir", "learner.device", "schedule.name",
    "schedule.frames_per_round", "schedule.episodes_per_round", "schedule.updates_per_round", "schedule.num_agents",
    "schedule.application", "schedule.applier",
)  # fmt: skip


def agent_config(config: Config, name: str) -> Config:
    """The configuration of one agent: that of the run with the values of `agents.overrides.<name>`.

    Raises:
        ConfigError: a key that an agent must not override or that its algorithm does not have, or a value of another
            type.
    """
    changed: dict[str, dict[str, Any]] = {}
    keys = [key for key in config_keys() if key.partition(".")[0] in AGENT_SECTIONS]
    values = agent_values(config, name)
    algorithm = section_of(config.algorithm, str(values.get("algorithm.name", config.algorithm.name)))
    for key, value in values.items():
        if key not in keys:
            raise ConfigError(
                f"agents.overrides.{name}.{shown(key)} is no key of an agent"
                + hint(key, keys, prefix=f"agents.overrides.{name}.")
            )
        if key in SHARED_KEYS:
            raise ConfigError(
                f"agents.overrides.{name}.{key} is not possible: all agents of a run share it, so set {key} for the run"
            )
        section, _, leaf = key.partition(".")
        if section == "algorithm":
            check_key(leaf, algorithm, f"agents.overrides.{name}.")
        changed.setdefault(section, {})[leaf] = check_type(f"agents.overrides.{name}.", key, value)
    config = replace(config, algorithm=algorithm)
    sections = {section: replace(getattr(config, section), **values) for section, values in changed.items()}
    return replace(config, **sections)


def agent_values(config: Config, name: str) -> dict[str, Any]:
    """The values that an agent overrides, by dotted key; empty if it overrides none.

    Raises:
        ConfigError: `agents.overrides.<name>` is no mapping.
    """
    nested = config.agents.overrides.get(name, {})
    if not isinstance(nested, dict):
        raise ConfigError(
            f"agents.overrides.{name}={shown(nested)} does not fit: name a key of the agent's, as "
            f"agents.overrides.{name}.learner.learning_rate=1e-4"
        )
    return flat_keys(nested, whole=[key for key, item in config_keys().items() if str(item.type).startswith("dict")])


def flat_keys(nested: dict[str, Any], prefix: str = "", whole: Sequence[str] = ()) -> dict[str, Any]:
    """Flatten nested mappings: `{"learner": {"batch_size": 32}}` becomes `{"learner.batch_size": 32}`.

    Args:
        nested: the mapping.
        prefix: of its keys.
        whole: dotted keys whose values are mappings.
    """
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict) and f"{prefix}{key}" not in whole:
            found |= flat_keys(value, f"{prefix}{key}.", whole)
        else:
            found[f"{prefix}{key}"] = value
    return found


def check_type(prefix: str, key: str, value: Any) -> Any:
    """Convert a value to the type of its key.

    Raises:
        ConfigError: the value has another type; the sentence names `prefix` and `key`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    node = schema()
    section, _, leaf = key.partition(".")
    try:
        OmegaConf.update(node, key, value, merge=True)
        return getattr(OmegaConf.to_object(node[section]), leaf)
    except (OmegaConfBaseException, ValueError, OverflowError) as error:
        raise ConfigError(f"{prefix}{key}={shown(value)} does not fit: {first_line(error)}") from error
