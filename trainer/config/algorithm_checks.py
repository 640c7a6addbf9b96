"""Checks of the algorithms' sections: `check(section) -> warnings`; they raise ConfigError if keys do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.config.fields import ConfigError

if TYPE_CHECKING:
    from trainer.config.algorithms import C51Config, GaussianConfig, NetworkConfig, TQCConfig

LEAST_SUPPORT = 1e-6  # of v_max - v_min, and of a bound that is not 0


def check_c51(section: C51Config) -> list[str]:
    """Refuse a user's network with noisy layers, and a support that is none; warnings about both."""
    return [*check_network(section), *check_support(section)]


def check_support(section: C51Config) -> list[str]:
    """Refuse a support of C51 that is none; warnings about one that leaves out 0."""
    low, high = section.v_min, section.v_max
    if low is None or high is None:
        return []  # to be chosen by rewards
    if low >= high:
        raise ConfigError(
            f"algorithm.v_min={low:g} is not below algorithm.v_max={high:g}: set them to the "
            "smallest and the largest discounted return that an episode can have"
        )
    for key, bound in (("v_min", low), ("v_max", high)):
        if 0 < abs(bound) < LEAST_SUPPORT:
            other = {"v_min": high > LEAST_SUPPORT, "v_max": low < -LEAST_SUPPORT}[key]
            remedy = f"set algorithm.{key}=0" if other else "name the returns that an episode can have"
            raise ConfigError(f"algorithm.{key}={bound:g} is too small to be told from 0: {remedy}")
    # Atoms that float32 cannot tell apart.
    if high - low < max(LEAST_SUPPORT, section.num_atoms * 1e-6 * max(abs(low), abs(high))):
        raise ConfigError(
            f"algorithm.num_atoms={section.num_atoms} from algorithm.v_min={low:g} to algorithm.v_max={high:g} lie "
            "too close together to be told apart: set both to the smallest and the largest discounted return"
        )
    if low <= 0 <= high:
        return []
    return [f"algorithm.v_min={low:g} to algorithm.v_max={high:g} leaves out 0, which is the value of an episode's end"]


def check_network(section: NetworkConfig) -> list[str]:
    """Refuse a user's network with noisy layers; warnings about options that it does not heed."""
    if section.network == "auto":
        return []
    if section.noisy:
        raise ConfigError(
            f"algorithm.noisy=true makes noisy layers of ours, and algorithm.network={section.network} has its own "
            "layers: set algorithm.noisy=false, and epsilon explores"
        )
    if section.dueling:
        return [f"algorithm.dueling=true does nothing: algorithm.network={section.network} has its own layers"]
    return []


def check_ensemble(section: GaussianConfig) -> list[str]:
    """Refuse to draw more critics for a target than there are."""
    drawn = section.critics_in_target
    if drawn is not None and drawn > section.num_critics:
        raise ConfigError(
            f"algorithm.critics_in_target={drawn} is more than algorithm.num_critics={section.num_critics}: set it to "
            f"{section.num_critics} or less"
        )
    return []


def check_quantiles(section: TQCConfig) -> list[str]:
    """Refuse to drop all quantiles of TQC."""
    if section.dropped_quantiles >= section.critic_quantiles:
        raise ConfigError(
            f"algorithm.dropped_quantiles={section.dropped_quantiles} leaves none of "
            f"algorithm.critic_quantiles={section.critic_quantiles}: set a smaller one"
        )
    return check_ensemble(section)
