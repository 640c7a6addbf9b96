"""Read policies: of a run, a policy file, or the Hugging Face Hub."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer import envs
from trainer.config.fields import ConfigError
from trainer.config.instances import env_of_others
from trainer.config.overrides import agent_config
from trainer.config.run_config import from_yaml
from trainer.config.run_files import RunFolder, run_of
from trainer.config.sections import Config, config_keys
from trainer.envs import EnvSpec
from trainer.envs.import_paths import is_path
from trainer.reading import ReadError
from trainer.roles.greedy import Players
from trainer.run_folder import checkpoint, policy_file
from trainer.sharing import hub

HUB = "hub:"
FILE_IN_HUB = "policy.safetensors"


@dataclass(frozen=True)
class Saved:
    """A policy as it was read.

    Args:
        path: of its file.
        config: of the run that trained it.
        agents: name and spec of each agent.
        flat: weights of all agents, float32 [sum of numel].
        header: of its file, see `trainer.run_folder.policy_file`; empty in files of older versions.
    """

    path: Path
    config: Config
    agents: list[tuple[str, EnvSpec]]
    flat: Tensor = field(repr=False)
    header: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def specs(self) -> list[EnvSpec]:
        """What each agent sees and does."""
        return [spec for _, spec in self.agents]

    def players(self) -> Players:
        """The agents' networks with these weights.

        Raises:
            ReadError: the networks have another number of weights.
        """
        players = Players([(agent_config(self.config, name), spec) for name, spec in self.agents])
        if players.flat.numel() != self.flat.numel():
            raise ReadError(
                f"{self.path} has {self.flat.numel()} weights where the agent's network has {players.flat.numel()}: "
                "name a policy of the same environment and algorithm, with the same layers"
            )
        players.load(self.flat)
        return players


def read(source: str | os.PathLike[str], which: str = "best", trust: bool = False) -> Saved:
    """Read a policy.

    Args:
        source: a run's folder, a policy file, or `hub:owner/name`.
        which: of a run's policies: `best`, `last`, or the frames after which one was kept
            (`checkpoint.policy_every_frames`).
        trust: whether parts of the author's own, which the file names by import path, may be imported.

    Raises:
        ConfigError: there is no run or file; there is no such policy; or it is made of parts of the author's own, and
            these are not to be trusted.
        ReadError: the file is damaged, or does not hold a policy that can be used by itself.
        EnvError: the environment of a policy of an older version could not be made.
    """
    if str(source).startswith(HUB):
        return _file(hub.fetch(str(source).removeprefix(HUB), FILE_IN_HUB), trust)
    path = Path(source).absolute()
    if path.is_dir() and not RunFolder(path).config.is_file() and (path / FILE_IN_HUB).is_file():
        path = path / FILE_IN_HUB  # what was pushed to the hub, or fetched from there
    if path.is_dir():
        return of_run(path, which)
    if not path.exists():
        raise ConfigError(f"{path} is neither a run's folder nor a policy file: there is nothing of that name")
    return _file(path, trust)


def of_run(run_dir: Path, which: str) -> Saved:
    """A policy of a run; see `read`."""
    folder = RunFolder(run_dir)
    if not folder.config.is_file():
        raise ConfigError(f"{run_dir} is no run's folder: it has no config.yaml")
    path = path_of(folder, which)
    state, config = checkpoint.load(path), from_yaml(folder.config)
    header = policy_file.header_in(state) or {}
    if not header and (last := checkpoint.last_policy(folder)).exists():  # an older best policy, of a resumed run
        header = policy_file.header_in(checkpoint.load(last)) or {}
    named = [(one.name, one.spec) for one in policy_file.agents_of(header, path)] if header else []
    return Saved(path, config, named or _described(config), _weights(path, state), header)


def path_of(folder: RunFolder, which: str) -> Path:
    """The file of one of a run's policies.

    Raises:
        ConfigError: there is no such policy.
    """
    if which in ("best", "last"):
        return checkpoint.best_policy(folder) if which == "best" else checkpoint.last_policy(folder)
    kept = checkpoint.series(folder)
    if which.isdecimal() and int(which) in kept:
        return kept[int(which)]
    known = ", ".join(["best", "last", *map(str, kept)])
    raise ConfigError(f"--policy {which} is no policy of {folder.path}: it has {known}")


def _described(config: Config) -> list[tuple[str, EnvSpec]]:
    """Name and spec of each agent, found by making the environment."""
    return envs.describe_world(env_of_others(config))


def _file(path: Path, trust: bool) -> Saved:
    state = checkpoint.load(path)
    header = policy_file.header_in(state)
    if header is not None:
        config = policy_file.config_of(header, path)
        if not trust and not run_of(path).config.is_file():
            _refuse_parts(path, config)
        agents = [(one.name, one.spec) for one in policy_file.agents_of(header, path)]
        return Saved(path, config, agents, _weights(path, state), header)
    folder = run_of(path)
    if not folder.config.is_file():
        raise ReadError(
            f"{path} holds weights alone, as older versions of the trainer wrote them: name its run's folder, which "
            "says what they are of"
        )
    config = from_yaml(folder.config)
    return Saved(path, config, _described(config), _weights(path, state))


def _refuse_parts(path: Path, config: Config) -> None:
    """Refuse a file of somebody's whose network is made by code that it names by import path.

    Raises:
        ConfigError: it is.
    """
    section = config_keys(config)
    named = [value for key, value in section.items() if key.startswith("algorithm.") and is_path(value)]
    named += list(config.algorithm.encoders.values())
    if named:
        raise ConfigError(
            f"{path} is made of {', '.join(map(str, named))}, which are not parts of the trainer: if you trust their "
            "author, allow them by trust=True (on the command line --trust)"
        )


def _weights(path: Path, state: dict[str, Any]) -> Tensor:
    flat = state.get("weights")
    if not isinstance(flat, Tensor):
        raise ReadError(f"{path} holds no policy: name a policy.safetensors or a snapshot_*.pt")
    return flat.float().flatten()
