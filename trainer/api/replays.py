"""The copy of a replay in a run's folder, to sample from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.api.sources import of_run
from trainer.config.fields import ConfigError
from trainer.config.overrides import agent_config
from trainer.config.run_config import first_line
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host import seeds
from trainer.reading import ReadError
from trainer.replay import on_disk
from trainer.replay.buffer import StreamReplay, replay_of
from trainer.replay.streams import row_spec
from trainer.roles.agents import wants_values
from trainer.run_folder import checkpoint


def open_copy(run_dir: Path, config: Config, agent: str | None, batch_size: int | None) -> StreamReplay:
    """See `trainer.api.run.Run.replay`."""
    number, name, spec, folder = _agent(run_dir, config, agent)
    own = agent_config(config, name)
    found = checkpoint.newest(RunFolder(folder).checkpoints, lambda path, why: None, "replay", "sampler")
    if found is None:
        raise ReadError(f"{folder} has no checkpoint yet: ask again after the first one")
    if found["replay"] is None:
        raise ConfigError(f"the replay of {run_dir} was not kept: train with checkpoint.replay=true")
    try:
        streams, columns, first, upto = on_disk.open_copy(
            folder / "replay", found["replay"], row_spec(spec, wants_values(own))
        )
    except (OSError, ValueError) as error:
        raise ReadError(f"the replay of {run_dir} cannot be read ({first_line(error)})") from error
    cursor, oldest = (np.repeat(times, streams.envs_per_worker) for times in (upto, first))
    section = replace(own.replay, initial_priority="max")  # no new rows come
    replay = replay_of(
        spec, columns, streams, cursor, oldest, own.algorithm, section, batch_size or own.learner.batch_size,
        seeds.of_agent(config.seed, number),
    )  # fmt: skip
    replay.sampler.load_state_dict(found["sampler"])
    return replay


def _agent(run_dir: Path, config: Config, agent: str | None) -> tuple[int, str, EnvSpec, Path]:
    """Number and name of an agent, what it sees and does, and the folder with its checkpoints and its replay."""
    agents = of_run(run_dir, "last").agents
    if config.schedule.kind.local_agents:
        names = [f"local_{number}" for number in range(config.schedule.num_agents)]
        specs = [agents[0][1]] * len(names)
    else:
        names, specs = [name for name, _ in agents], [spec for _, spec in agents]
    if agent is None and len(names) > 1:
        raise ConfigError(f"{run_dir} has a replay for each of {len(names)} agents: name one, as agent={names[0]!r}")
    name = names[0] if agent is None else agent
    if name not in names:
        raise ConfigError(f"{run_dir} has no agent {name}: it has {', '.join(names)}")
    number = names.index(name)
    return number, name, specs[number], RunFolder(run_dir).agents / name if len(names) > 1 else run_dir
