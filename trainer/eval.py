"""Greedy episodes of a finished run: ``python -m trainer.eval RUN``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np

import envs
from trainer.checkpoint import CheckpointError
from trainer.config import ConfigError
from trainer.finished import add_arguments, open_run
from trainer.processes.evaluator import evaluate


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON line: mean, standard deviation, smallest and largest return, mean length.

    Returns 2 for what cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m trainer.eval", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--num-envs", type=int, default=20, help="environments stepped together")
    options = parser.parse_args(arguments)
    try:
        config, spec, policy = open_run(options.run, options.policy)
        vector = envs.make(config.env, min(options.num_envs, options.episodes))
        played = evaluate(policy, vector, options.episodes, options.seed)
        vector.close()
    except (ConfigError, CheckpointError, envs.EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result = {
        "env_id": spec.id,
        "policy": options.policy,
        "episodes": len(played.returns),
        "eval_return_mean": float(np.mean(played.returns)),
        "eval_return_std": float(np.std(played.returns)),
        "eval_return_min": min(played.returns),
        "eval_return_max": max(played.returns),
        "eval_length_mean": float(np.mean(played.lengths)),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
