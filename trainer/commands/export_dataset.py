"""Write a run's replay as a Minari dataset: `python -m trainer.export_dataset RUN ID`.

The replay is that of the run's newest checkpoint. ID is Minari's, as lander/replay-v0.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from trainer import envs
from trainer.commands.finished import from_here
from trainer.commands.names import program
from trainer.config.fields import ConfigError
from trainer.config.overrides import agent_config
from trainer.config.parts import import_from_here
from trainer.config.run_config import first_line, from_yaml
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.datasets.minari import write_dataset
from trainer.datasets.rows import episodes_of
from trainer.reading import ReadError
from trainer.replay.on_disk import open_copy
from trainer.replay.streams import row_spec
from trainer.roles.agents import wants_values
from trainer.run_folder import checkpoint


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the dataset, and print its size.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0, or 2 if the replay could not be read or the dataset not be written; stderr says why.
    """
    parser = argparse.ArgumentParser(
        prog=program("export_dataset"), description="Write a run's replay as a Minari dataset."
    )
    parser.add_argument("run", type=from_here, help="the run's folder")
    parser.add_argument("id", help="of the dataset, as lander/replay-v0")
    parser.add_argument("--episodes", type=int, help="at most (default: all)")
    parser.add_argument("--agent", help="whose replay, in a world of several agents")
    options = parser.parse_args(arguments)
    import_from_here()
    try:
        episodes, steps = _export(options.run, options.id, options.episodes, options.agent)
    except (ConfigError, ReadError, envs.EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.id}: {episodes} episodes of {steps} steps")
    return 0


def _export(run_dir: Path, name: str, most: int | None, agent: str | None) -> tuple[int, int]:
    folder = RunFolder(run_dir)
    if not folder.config.is_file():
        raise ConfigError(f"{run_dir} is no run's folder: it has no config.yaml")
    config = from_yaml(folder.config)
    world = dict(envs.describe_world(config.env))
    if len(world) > 1 and agent not in world:
        raise ConfigError(f"{config.env.id} has several agents: name one by --agent, of {', '.join(world)}")
    chosen = agent if len(world) > 1 and agent is not None else next(iter(world))
    spec, config = world[chosen], agent_config(config, chosen)
    home = folder.agents / chosen if len(world) > 1 else run_dir
    kept = (checkpoint.newest(RunFolder(home).checkpoints) or {}).get("replay")
    if kept is None:
        raise ConfigError(f"{home} has no checkpoint with a replay: train with checkpoint.replay=true")
    try:
        streams, columns, first, upto = open_copy(home / "replay", kept, row_spec(spec, wants_values(config)))
    except (OSError, ValueError) as error:
        raise ReadError(f"the replay in {home} cannot be read: {first_line(error)}") from error
    if config.env.clip_rewards:
        print("warning: the replay holds the signs of the rewards, as env.clip_rewards=true", file=sys.stderr)
    episodes = itertools.islice(episodes_of(columns, streams, first, upto, spec), most)
    return write_dataset(name, episodes, spec, algorithm_name=config.algorithm.name, **_about(config))


def _about(config: Config) -> dict[str, Any]:
    """What the dataset says of its environment; with it Minari can make it again."""
    about: dict[str, Any] = {"description": f"Replay of a training run on {config.env.id}."}
    if config.env.backend == "gymnasium" and config.env.id in gymnasium.registry:
        spec = gymnasium.spec(config.env.id)
        spec.kwargs |= config.env.kwargs
        about["env"] = spec
    return about
