"""A run that is over, as eval and play read it."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from trainer import envs
from trainer.config.overrides import own_config
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config, ConfigError, from_yaml
from trainer.roles.evaluator import Players
from trainer.run_folder.checkpoint import policy_weights

POLICIES = {"best": Path("best/policy.pt"), "last": Path("checkpoints/last_policy.pt")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that eval and play share."""
    parser.add_argument("run", type=from_here, help="the run's folder")
    parser.add_argument(
        "--policy", choices=POLICIES, default="best", help="which of the run's policies (default: best)"
    )
    parser.add_argument("--seed", type=int, default=10_000, help="of the first environment (default: 10000)")


def from_here(text: str) -> Path:
    """A path that stays the same wherever an environment goes."""
    return Path(text).absolute()


def open_run(run_dir: Path, policy: str) -> tuple[Config, Players]:
    """The run's configuration and one of its policies.

    Raises:
        ConfigError, ReadError, EnvError: in one sentence, what is missing.
    """
    torch.set_num_threads(1)
    if not RunFolder(run_dir).config.is_file():
        raise ConfigError(f"{run_dir} is no run's folder: it has no config.yaml")
    config = from_yaml(RunFolder(run_dir).config)
    loaded = Players([(own_config(config, name), spec) for name, spec in envs.describe_world(config.env)])
    loaded.load(policy_weights(run_dir / POLICIES[policy], loaded.flat.numel()))
    return config, loaded
