"""What is done once the environment is known and before the run folder is opened.

Networks of the user's are tried, and what waits for the environment's rewards is chosen (`trainer.config.rewards`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trainer.algorithms import make_policy
from trainer.config.overrides import agent_config
from trainer.config.parts import has_own_layers
from trainer.config.rewards import chosen, settled, unsettled
from trainer.config.sections import Config
from trainer.envs import EnvError, EnvSpec
from trainer.roles.rewards import play_at_random
from trainer.training.tasks import TaskFailed, before_the_run


def settle(config: Config, world: Sequence[tuple[str, EnvSpec]]) -> tuple[Config, tuple[str, ...]]:
    """The configuration without keys that wait for rewards, and sentences about what was chosen.

    Args:
        config: of the run.
        world: agents of the environment.

    Raises:
        ConfigError: what was chosen does not go with a key that is set, or a network or encoder of the user's does not
            fit the environment.
        EnvError: the environment failed in random play.
    """
    for name, spec in world:
        of_agent = agent_config(config, name)
        if has_own_layers(of_agent):
            make_policy(of_agent, spec)
    if not unsettled(config, [name for name, _ in world]):
        return config, ()
    try:
        seen = before_the_run(config, "random play", partial(play_at_random, config))
    except TaskFailed as error:
        raise EnvError(f"{config.env.id}: {error}; set {' and '.join(chosen(config))} to leave it out") from error
    after = settled(config, seen)
    values = ", ".join(f"{key}={value:g}" for key, value in chosen(after, config).items())
    frames = max(rewards.frames for rewards in seen.values())
    return after, (f"{values}: chosen by the rewards of {frames} frames of random play",) if values else ()
