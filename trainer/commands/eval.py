"""Greedy episodes of a policy: `python -m trainer.eval RUN`, or a policy file, or hub:owner/name."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from trainer.api import sources
from trainer.api.evaluation import NUM_ENVS, evaluated
from trainer.commands.finished import add_arguments
from trainer.commands.names import program
from trainer.config.fields import ConfigError
from trainer.config.parts import import_from_here
from trainer.envs import EnvError
from trainer.reading import ReadError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON line: mean, standard deviation, minimum and maximum of the returns, mean length.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the run could not be read or played; stderr says why.
    """
    parser = argparse.ArgumentParser(prog=program("eval"), description=__doc__)
    add_arguments(parser)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--random", nargs="+", default=[], metavar="AGENT", help="agents replaced by a random player")
    parser.add_argument("--num-envs", type=int, default=NUM_ENVS, help="environments stepped together")
    options = parser.parse_args(arguments)
    try:
        import_from_here()
        saved = sources.read(options.run, options.policy, options.trust)
        result = evaluated(saved, options.episodes, options.seed, options.num_envs, options.random)
    except (ConfigError, ReadError, EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shown = {key: value for key, value in result.items() if key not in ("returns", "lengths")}
    print(json.dumps({"env_id": shown["env_id"], "policy": options.policy, **shown}))
    return 0
