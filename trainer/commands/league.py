"""Play a league, every player against every other: `python -m trainer.league RUN`.

The players are the run's snapshots and policies, and fixed players. RUN/league.json gets the share of games won of each
pair and Elo ratings, RUN/league.png a picture of both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from trainer.commands.finished import from_here
from trainer.commands.names import program
from trainer.config.fields import ConfigError
from trainer.config.parts import import_from_here
from trainer.config.run_config import from_yaml
from trainer.config.run_files import RunFolder
from trainer.envs import EnvError
from trainer.reading import ReadError
from trainer.selfplay.league import league, rating_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratings, the strongest first, and the path of the picture.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the run could not be read or played; stderr says why.
    """
    parser = argparse.ArgumentParser(prog=program("league"), description=__doc__)
    parser.add_argument("run", type=from_here, help="the run's folder")
    parser.add_argument("--games", type=int, default=200, help="of each pair, seats balanced (default: 200)")
    parser.add_argument("--seed", type=int, help="of the games (default: the run's)")
    options = parser.parse_args(arguments)
    if options.games < 1:
        parser.error(f"--games {options.games} must be at least 1")
    torch.set_num_threads(1)
    import_from_here()
    try:
        if not RunFolder(options.run).config.is_file():
            raise ConfigError(f"{options.run} is no run's folder: it has no config.yaml")
        config = from_yaml(RunFolder(options.run).config)
        warn = lambda text: print(text, file=sys.stderr)  # noqa: E731
        result = league(config, options.run, options.games, warn, seed=options.seed)
    except (ConfigError, ReadError, EnvError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"Elo above random play, {result['games_per_pair']} games a pair, {result['seconds']:.1f} s")
    for player in sorted(result["players"], key=lambda player: -player["elo"]):
        print(f"{rating_text(player):32} {player['score']:7.1%} of {player['games']} games")
    print(RunFolder(options.run).league_picture)
    return 0
