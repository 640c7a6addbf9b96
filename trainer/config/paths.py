"""The paths of a configuration."""

from __future__ import annotations

import os
from dataclasses import replace

from trainer.config.sections import Config


def absolute(config: Config) -> Config:
    """Make all paths of a configuration absolute, as an environment may change the working folder."""
    opponents, agents, replay = config.opponents, config.agents, config.replay
    return replace(
        config,
        run_dir=config.run_dir and os.path.abspath(config.run_dir),
        resume=config.resume if config.resume == "auto" else config.resume and os.path.abspath(config.resume),
        replay=replace(
            replay,
            scratch_dir=replay.scratch_dir and os.path.abspath(replay.scratch_dir),
            start_from=os.path.abspath(replay.start_from)
            if replay.start_from and os.path.isdir(replay.start_from)  # else it is a dataset's id
            else replay.start_from,
        ),
        opponents=replace(
            opponents,
            checkpoint_paths=[os.path.abspath(path) for path in opponents.checkpoint_paths],
            start_from=opponents.start_from and os.path.abspath(opponents.start_from),
        ),
        agents=replace(agents, start_from={name: os.path.abspath(path) for name, path in agents.start_from.items()}),
    )
