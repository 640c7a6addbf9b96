"""The first steps of every child process of a run."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from trainer.config.run_config import to_dict
from trainer.config.sections import Config
from trainer.config.users_algorithms import add_algorithms, paths_of
from trainer.host import programs
from trainer.host.errors import error_text
from trainer.host.resources import prepare_process
from trainer.host.seeds import seed_globals
from trainer.host.signals import obey_parent
from trainer.telemetry.output import capture

ALONE = ("evaluator", "league", "gateway")  # roles with only one process at a time


def tell(pipe: Connection, message: Any) -> None:
    """Send the main process a last message, if it still listens."""
    try:
        pipe.send(message)
    except OSError:
        return


@contextmanager
def reporting(pipe: Connection) -> Iterator[None]:
    """End the process if its body fails: as `("error", text)` in the pipe, silently if the main process is gone."""
    try:
        yield
    except (BrokenPipeError, ConnectionResetError, EOFError):
        os._exit(1)  # the main process is gone
    except BaseException as error:  # an environment may raise anything, SystemExit too
        pipe.send(("error", error_text(error)))
        raise SystemExit(1) from error


def begin(config: Config, role: str, number: int = 0, start: int = 0, num_threads: int = 1) -> None:
    """Set up a child process: output, signals, random generators, memory and threads.

    Args:
        config: of the run.
        role: one of `trainer.host.seeds.ROLES`.
        number: of the process among those of the role.
        start: how often the process was restarted.
        num_threads: that torch may use.
    """
    add_algorithms(paths_of(to_dict(config)))
    if config.run_dir is not None and role != "describe":  # the run folder is not opened yet
        capture(Path(config.run_dir), role if role in ALONE else f"{role}_{number}")
    obey_parent()
    programs.mark_child()
    multiprocessing.current_process().daemon = False  # else an environment could not start processes
    prepare_process()
    torch.set_num_threads(num_threads)
    seed_globals(config.seed, role, number, start)
