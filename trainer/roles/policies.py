"""Policies as files, see `trainer.run_folder.policy_file`: written by whoever has the weights of those who act."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainer.algorithms import make_policy
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.memory.weights import ordered_tensors
from trainer.run_folder import policy_file
from trainer.run_folder.folder import package_versions
from trainer.run_folder.policy_file import Shapes

WRAPPED = "module.0.module."  # what TorchRL's actor puts before the names of its network's tensors


def shapes_of(actor: nn.Module) -> Shapes:
    """Names in the network and shapes of an actor's tensors, in the boards' order."""
    named = [(name, list(tensor.shape)) for name, tensor in ordered_tensors(actor)]
    wrapped = all(name.startswith(WRAPPED) for name, _ in named)
    return [(name.removeprefix(WRAPPED) if wrapped else name, shape) for name, shape in named]


def header_of(
    config: Config, names: Sequence[str], agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path
) -> dict[str, Any]:
    """The header of a run's policy files, without `frames` and `returns`.

    Args:
        config: of the run.
        names: of the agents that act.
        agents: configuration and spec of each.
        run_dir: the run folder, which has the command lines.
    """
    described = [
        policy_file.Agent(name, spec, shapes_of(make_policy(own, spec)))
        for name, (own, spec) in zip(names, agents, strict=True)
    ]
    commands = policy_file.commands_of(RunFolder(run_dir).command)
    return policy_file.header(config, described, commands, package_versions())


def save_policy(path: Path, header: dict[str, Any], flat: Tensor, frames: int, returns: dict[str, Any]) -> None:
    """Write a policy file.

    Args:
        path: of the file.
        header: from `header_of`.
        flat: the weights of all agents, float32 [sum of numel].
        frames: at which they were taken.
        returns: of greedy episodes, as `eval_return_mean`; one that is not finite is left out.

    Raises:
        OSError: it could not be written.
    """
    known = {key: value for key, value in returns.items() if math.isfinite(value)}
    policy_file.write(path, {**header, "frames": frames, "returns": known}, flat)
