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
from trainer.run_folder.checkpoint import numbered, policy_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that eval and play share."""
    parser.add_argument("run", type=from_here, help="the run's folder")
    parser.add_argument(
        "--policy",
        default="best",
        help="best, last, or the frames of a policy in RUN/checkpoints/policies (default: best)",
    )
    parser.add_argument("--seed", type=int, default=10_000, help="of the first environment (default: 10000)")


def from_here(text: str) -> Path:
    """The absolute path, as an environment may change the working folder."""
    return Path(text).absolute()


def open_run(run_dir: Path, policy: str) -> tuple[Config, Players]:
    """Load the configuration of a run and one of its policies.

    Args:
        run_dir: the run folder.
        policy: as `policy_file` takes it.

    Raises:
        ConfigError: there is no run in the folder, or its configuration is not valid.
        ReadError: the policy could not be read.
        EnvError: the environment could not be made.
    """
    torch.set_num_threads(1)
    import_from_here()
    if not RunFolder(run_dir).config.is_file():
        raise ConfigError(f"{run_dir} is no run's folder: it has no config.yaml")
    path = policy_file(run_dir, policy)
    config = from_yaml(RunFolder(run_dir).config)
    loaded = Players([(agent_config(config, name), spec) for name, spec in envs.describe_world(env_of_others(config))])
    loaded.load(policy_weights(path, loaded.flat.numel()))
    return config, loaded


def policy_file(run_dir: Path, policy: str) -> Path:
    """The file of one of a run's policies.

    Args:
        run_dir: the run folder.
        policy: best, last, or the frames after which it was kept (`checkpoint.policy_every_frames`).

    Raises:
        ConfigError: there is no such policy.
    """
    folder = RunFolder(run_dir)
    if policy in ("best", "last"):
        return folder.best_policy if policy == "best" else folder.last_policy
    if policy.isdecimal() and folder.policy_after(int(policy)).is_file():
        return folder.policy_after(int(policy))
    frames = [str(int(path.stem.removeprefix("frames_"))) for path in numbered(folder.policies)]
    raise ConfigError(f"--policy {policy} is no policy of {run_dir}: it has {', '.join(['best', 'last', *frames])}")
