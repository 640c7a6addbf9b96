"""Keys that are null until the rewards of an environment are known, as the support of C51."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainer.config.algorithms import ALGORITHMS, AlgorithmConfig
from trainer.config.overrides import agent_config
from trainer.config.sections import Config


@dataclass(frozen=True)
class RewardsSeen:
    """Rewards of an agent in random play.

    Args:
        frames: that were played.
        mean: mean size |r| of a frame's reward.
        usual: 95 % of the rewards that are not 0 are at most this large.
        largest: size of the largest one.
        only_at_ends: whether every reward that is not 0 came with an episode's end.
        most_steps: limit of an episode's steps; None: unknown.
    """

    frames: int
    mean: float
    usual: float
    largest: float
    only_at_ends: bool
    most_steps: int | None = None


def unsettled(config: Config, names: list[str] | None = None) -> bool:
    """Whether a key of a run's algorithm, or of that of one of the named agents, waits for rewards."""
    named = list(config.agents.overrides) if names is None else names
    sections = [config.algorithm, *(agent_config(config, name).algorithm for name in named)]
    return any(_waits(section) for section in sections)


def _waits(section: AlgorithmConfig) -> bool:
    return any(getattr(section, key) is None for key in ALGORITHMS[section.name].by_rewards)


def chosen(config: Config, before: Config | None = None) -> dict[str, float]:
    """The keys of a run's algorithm that rewards choose, with their values.

    Args:
        config: of the run.
        before: only keys that are null in this one; None: all that are null in `config`.
    """
    first = config if before is None else before
    keys = [key for key in ALGORITHMS[first.algorithm.name].by_rewards if getattr(first.algorithm, key) is None]
    return {f"algorithm.{key}": getattr(config.algorithm, key) for key in keys}


def settled(config: Config, seen: Mapping[str, RewardsSeen]) -> Config:
    """The configuration with all keys that waited for rewards.

    Args:
        config: of the run.
        seen: the rewards of each agent.

    Raises:
        ConfigError: a key that is set does not go with what the rewards say.
    """
    widest = max(seen.values(), key=lambda rewards: returns_of(rewards, config.algorithm.gamma))
    if _waits(config.algorithm):
        config = replace(config, algorithm=_settle(config.algorithm, widest))
    overrides = dict(config.agents.overrides)
    for name in overrides:
        section = agent_config(config, name).algorithm
        if name in seen and _waits(section):
            found = {key: getattr(_settle(section, seen[name]), key) for key in ALGORITHMS[section.name].by_rewards}
            overrides[name] = {**overrides[name], "algorithm": {**overrides[name].get("algorithm", {}), **found}}
    return replace(config, agents=replace(config.agents, overrides=overrides))


def _settle(section: AlgorithmConfig, seen: RewardsSeen) -> AlgorithmConfig:
    """The section of c51 and rainbow with v_min and v_max on both sides of 0, unless they are set."""
    entry, bound = ALGORITHMS[section.name], returns_of(seen, section.gamma)
    chosen = {key: sign * bound for key, sign in entry.by_rewards.items() if getattr(section, key) is None}
    section = replace(section, **chosen)  # type: ignore[arg-type]
    entry.check(section)
    return section


def returns_of(seen: RewardsSeen, gamma: float) -> float:
    """Size of the discounted returns that are to be expected, rounded up to two digits.

    Rewards of random play say how large a reward is, but not how often a trained agent gets one: with `h` the sum of
    the discounts of an episode, its return lies between `mean h`, that of rewards as rare as they were seen, and
    `usual h`, that of one in each frame. The geometric mean of both is taken. Where rewards come with an episode's end
    alone, a return is one of them. Without any reward it is 10 (Bellemare et al. 2017).
    """
    if seen.largest == 0:
        return 10.0
    steps = seen.most_steps or 10**9
    horizon = steps if gamma == 1 else (1 - gamma**steps) / (1 - gamma)
    usual = max(seen.usual, seen.mean)
    size = seen.largest if seen.only_at_ends else math.sqrt(seen.mean * usual) * horizon
    digits = 10.0 ** (math.floor(math.log10(size)) - 1)
    return float(f"{math.ceil(size / digits - 1e-9) * digits:.12g}")
