"""A task: one piece of work with the user's environment, of which nothing runs in the main process.

Describing the environment, the final evaluation, the league, and whether workers that a run takes over can go on.

Runs in: a process of its own, which ends with it; in the main process for `sequential`.
Receives: the work, a function and its arguments, at the start.
Sends: what the work tells on its way, and its result, through a pipe; signs of life through shared memory.
Waits for: nobody.
Stops when: the work is done, or has raised; the parent's death.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from trainer import envs
from trainer.config.sections import Config
from trainer.envs import EnvSpec, life
from trainer.envs.selfplay import scripted
from trainer.host.errors import error_text
from trainer.memory.pulse import signs_of
from trainer.roles import child

Tell = Callable[[str, Any], None]  # (what it is, value); "" is a sign of life
Work = Callable[[Tell], Any]  # what it returns crosses the process border


def run(config: Config, role: str, work: Work, pulse: Tensor, pipe: Connection) -> None:
    """Body of the process.

    The pipe carries `("told", (what, value))`, and last `("done", result)` or `("error", (kind, text))`: the name
    of the exception's class and its `error_text`.

    Args:
        config: the run.
        role: one of `trainer.host.seeds.ROLES`.
        work: called with what tells the main process.
        pulse: of this process (`trainer.memory.pulse`).
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
    """Agents, and what each of them sees and does.

    Raises:
        EnvError: the environment cannot be made or trained on; a game's scripted player is asked for, and it has none.
    """
    world, section = envs.describe_world(config.env), config.opponents
    asked = section.scripted or section.scripted_end or section.evaluate_against == "scripted"
    if world[0][1].against_opponents and asked:
        scripted(config.env)
    return world
