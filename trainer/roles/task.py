"""A task: one piece of work with the user's environment, which must not run in the main process.

Tasks are: describing the environment, the final evaluation, the league, and the check whether a resumed run's workers
can go on from their states.

Runs in: a process of its own, which ends with the task; in the main process for `sequential`.
Receives: the work, a function with its arguments, at the start.
Sends: progress and the result through a pipe; signs of life through shared memory.
Waits for: nothing.
Stops when: the work is done, or raises; its parent dies.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from trainer import envs
from trainer.config.instances import env_of_others
from trainer.config.sections import Config
from trainer.envs import EnvSpec, life
from trainer.host.errors import error_text
from trainer.memory.pulse import signs_of
from trainer.roles import child
from trainer.selfplay.opponents import player_named

Tell = Callable[[str, Any], None]  # (kind of progress, value); "" is a sign of life
Work = Callable[[Tell], Any]  # its result is pickled


def run(config: Config, role: str, work: Work, pulse: Tensor, pipe: Connection) -> None:
    """Body of the process.

    It sends `("told", (what, value))` through the pipe, and at the end `("done", result)` or `("error", (kind, text))`,
    the name of the exception's class and its `error_text`.

    Args:
        config: of the run.
        role: one of `trainer.host.seeds.ROLES`.
        work: called with a function that reports progress.
        pulse: of this process, see `trainer.memory.pulse`.
        pipe: to the main process.
    """
    child.begin(config, role)
    beat, _ = signs_of(pulse)
    life.tell(beat)

    def tell(what: str, value: Any) -> None:
        beat()
        if what:
            pipe.send(("told", (what, value)))

    try:
        pipe.send(("done", work(tell)))
    except (BrokenPipeError, ConnectionResetError):
        return  # the main process closed its end
    except BaseException as error:  # what a user's environment raises, SystemExit too
        child.tell(pipe, ("error", (type(error).__name__, error_text(error))))


def describe(config: Config, tell: Tell) -> list[tuple[str, EnvSpec]]:
    """Name and spec of each agent.

    Raises:
        EnvError: the environment could not be made, or training on it is not possible; or it is a game without the
            scripted player that the configuration asks for.
    """
    world, section = envs.describe_world(env_of_others(config)), config.opponents
    if world[0][1].against_opponents:
        player_named(section.evaluate_against, config)
        if section.scripted or section.scripted_end:
            player_named("scripted", config)
    return world
