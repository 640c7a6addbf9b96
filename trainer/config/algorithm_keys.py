"""Which algorithm has a key."""

from __future__ import annotations

from trainer.config.algorithms import ALGORITHMS, AlgorithmConfig, keys_of
from trainer.config.fields import ConfigError

# Keys of some algorithms -> what the others have in their place.
INSTEAD = {
    "network": "the parts of its networks that can be yours are algorithm.encoders, algorithm.cnn and "
    "algorithm.activation",
}


def check_key(key: str, section: AlgorithmConfig, prefix: str = "") -> None:
    """Refuse a key that only other algorithms have.

    Args:
        key: of any algorithm, as `v_min`.
        section: of the chosen algorithm.
        prefix: of the key, as `agents.overrides.agent_0.`.

    Raises:
        ConfigError: the algorithm has no such key; the sentence says which algorithms do.
    """
    if key in keys_of(type(section)):
        return
    owners = [name for name, entry in ALGORITHMS.items() if key in keys_of(entry.section)]
    whose = " and ".join([", ".join(owners[:-1]), owners[-1]] if len(owners) > 1 else owners)
    chosen = f"{prefix}algorithm.name=" if prefix else "algorithm="
    instead = f"; {INSTEAD[key]}" if key in INSTEAD else ""
    raise ConfigError(
        f"{prefix}algorithm.{key} is a key of {whose}, and algorithm={section.name} has no such key: leave it out, or "
        f"set {chosen}{owners[0]}{instead}"
    )
