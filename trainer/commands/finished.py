"""Read a finished run, for eval and play."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from trainer import envs
from trainer.config.fields import ConfigError
from trainer.config.instances import env_of_others
from trainer.config.overrides import agent_config
from trainer.config.parts import import_from_here
from trainer.config.run_config import from_yaml
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.roles.greedy import Players
from trainer.run_folder.checkpoint import policy_weights

POLICIES = {"best": Path("best/policy.pt"), "last": Path("checkpoints/last_policy.pt")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that eval and play share."""
    parser.add_argument("run", type=from_here, help="the run's folder")
    parser.add_argument(
        "--policy", choices=POLICIES, default="best", help="which of the run's policies (default: best)"
    )
    parser.add_argument("--seed", type=int, default=10_000, help="of the first environment (default: 10000)")


def from_here(text: str) -> Path:
    """The absolute path, as an environment may change the working folder."""
    return Path(text).absolute()


def open_run(run_dir: Path, policy: str) -> tuple[Config, Players]:
    """Load the configuration of a run and one of its policies.

    Args:
        run_dir: the run folder.
        policy: a key of `POLICIES`.

    Raises:
        ConfigError: there is no run in the folder, or its configuration is not valid.
        ReadError: the policy could not be read.
        EnvError: the environment could not be made.
    """
    torch.set_num_threads(1)
    import_from_here()
    if not RunFolder(run_dir).config.is_file():
        raise ConfigError(f"{run_dir} is no run's folder: it has no config.yaml")
    config = from_yaml(RunFolder(run_dir).config)
    loaded = Players([(agent_config(config, name), spec) for name, spec in envs.describe_world(env_of_others(config))])
    loaded.load(policy_weights(run_dir / POLICIES[policy], loaded.flat.numel()))
    return config, loaded
