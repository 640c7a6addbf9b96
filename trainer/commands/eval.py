"""Greedy episodes of a finished run: `python -m trainer.eval RUN`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.commands.finished import add_arguments, open_run
from trainer.config.fields import ConfigError
from trainer.envs import EnvError
from trainer.reading import ReadError
from trainer.roles.evaluator import world_of
from trainer.roles.greedy import evaluate, info_means


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON line: mean, standard deviation, minimum and maximum of the returns, mean length.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the run could not be read or played; stderr says why.
    """
    parser = argparse.ArgumentParser(prog="python -m trainer.eval", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--random", nargs="+", default=[], metavar="AGENT", help="agents replaced by a random player")
    parser.add_argument("--num-envs", type=int, default=20, help="environments stepped together")
    options = parser.parse_args(arguments)
    try:
        config, players = open_run(options.run, options.policy)
        world = world_of(config, min(options.num_envs, options.episodes))
        for name in set(options.random) - set(world.agents):
            raise ConfigError(f"--random {name} names no agent of {config.env.id}: it has {', '.join(world.agents)}")
        played = evaluate(players, world, options.episodes, options.seed, options.random)
        world.close()
    except (ConfigError, ReadError, EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    returns = [value for episodes in played for value in episodes.returns]
    lengths = [value for episodes in played for value in episodes.lengths]
    result: dict[str, Any] = {
        "env_id": config.env.id,
        "policy": options.policy,
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
        means = (float(np.mean(episodes.returns)) for episodes in played)
        result["eval_return_mean_by_agent"] = dict(zip(world.agents, means, strict=True))
    print(json.dumps(result))
    return 0
