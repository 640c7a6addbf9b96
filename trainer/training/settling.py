"""Choose what waits for the rewards of the environment (`trainer.config.rewards`), before the run folder is opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trainer.config.rewards import chosen, settled, unsettled
from trainer.config.sections import Config
from trainer.envs import EnvError, EnvSpec
from trainer.roles.rewards import play_at_random
from trainer.telemetry.metrics import EverySeconds
from trainer.training.tasks import Task, TaskFailed, beside

SAY_EVERY_S = 5.0  # between two lines on how far random play is


def settle(config: Config, world: Sequence[tuple[str, EnvSpec]]) -> tuple[Config, tuple[str, ...]]:
    """The configuration without keys that wait for rewards, and sentences about what was chosen.

    Args:
        config: of the run.
        world: agents of the environment.

    Raises:
        ConfigError: what was chosen does not go with a key that is set.
        EnvError: the environment failed in random play.
    """
    if not unsettled(config, [name for name, _ in world]):
        return config, ()
    said = EverySeconds(SAY_EVERY_S)

    def say(text: str) -> None:
        if config.logger.terminal != "none" and said.crossed():
            print(text, flush=True)

    try:
        seen = beside(config, Task("random play", "describe", partial(play_at_random, config), say))
    except TaskFailed as error:
        if error.kind == "EnvError":
            raise EnvError(error.cause) from error
        raise EnvError(f"{config.env.id}: {error}; set {' and '.join(chosen(config))} to leave it out") from error
    after = settled(config, seen)
    values = ", ".join(f"{key}={value:g}" for key, value in chosen(after, config).items())
    frames = max(rewards.frames for rewards in seen.values())
    return after, (f"{values}: chosen by the rewards of {frames} frames of random play",) if values else ()
