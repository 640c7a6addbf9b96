"""Greedy episodes of a policy that was read, in this process."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import Any

import numpy as np
import torch

from trainer.api.sources import Saved
from trainer.config.fields import ConfigError
from trainer.host import seeds
from trainer.reading import ReadError
from trainer.roles.evaluator import world_of
from trainer.roles.greedy import evaluate, info_means

SEED = 10_000  # of the first environment, unless another one is asked for
NUM_ENVS = 20  # environments stepped together


def check_world(saved: Saved, world: Any) -> None:
    """Refuse a world that shows its agents something else than the policy was trained with.

    Raises:
        ReadError: it does.
    """
    trained, found = ([(spec.leaves, spec.action) for spec in specs] for specs in (saved.specs, world.specs))
    if trained != found:
        raise ReadError(
            f"{saved.path} was trained with other observations or actions than {saved.config.env.id} has now: name a "
            "policy of this environment"
        )


def evaluated(
    saved: Saved, episodes: int, seed: int = SEED, num_envs: int = NUM_ENVS, replaced: Collection[str] = ()
) -> dict[str, Any]:
    """Play greedy episodes; the generators of the process are afterwards as they were.

    Args:
        saved: the policy.
        episodes: to be played, at least 1.
        seed: of the first environment; the same seed gives the same episodes.
        num_envs: environments stepped together.
        replaced: agents in whose place a random player plays.

    Returns:
        Numbers for JSON: `returns` and `lengths` of the episodes, one agent's after the other's; `eval_return_mean`,
        `_std`, `_min` and `_max`, `eval_length_mean_frames`, `episodes`, `cut_episodes`, and with several agents
        `eval_return_mean_by_agent`.

    Raises:
        ConfigError: a number is below 1, or a name is of no agent.
        EnvError: the environment failed.
        ReadError: the policy is of another network.
    """
    if min(episodes, num_envs) < 1:
        raise ConfigError(f"episodes={episodes} and num_envs={num_envs} must be at least 1")
    players, threads = saved.players(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with seeds.apart({}), closing(world_of(saved.config, min(num_envs, episodes))) as world:
            check_world(saved, world)
            for name in set(replaced) - set(world.agents):
                known = ", ".join(world.agents)
                raise ConfigError(f"--random {name} names no agent of {saved.config.env.id}: it has {known}")
            played, names = evaluate(players, world, episodes, seed, replaced), list(world.agents)
    finally:
        torch.set_num_threads(threads)
    returns = [value for own in played for value in own.returns]
    lengths = [value for own in played for value in own.lengths]
    result: dict[str, Any] = {
        "env_id": saved.config.env.id,
        "episodes": len(played[0].returns),
        "cut_episodes": played[0].cut,
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_return_min": min(returns),
        "eval_return_max": max(returns),
        "eval_length_mean_frames": float(np.mean(lengths)),
        **{f"eval_info_{name}": mean for name, mean in info_means(played).items()},
    }
    if len(played) > 1:
        means = (float(np.mean(own.returns)) for own in played)
        result["eval_return_mean_by_agent"] = dict(zip(names, means, strict=True))
    return {**result, "returns": returns, "lengths": lengths}
