"""What every child process of a run does before anything else."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch

from trainer.config import Config
from trainer.resources import prepare_process
from trainer.seeds import seed_globals
from trainer.signals import obey_parent


def tell(pipe: Connection, message: Any) -> None:
    """Send the main process a last message, if it still listens."""
    try:
        pipe.send(message)
    except OSError:
        return


def begin(config: Config, role: str, number: int = 0, start: int = 0, num_threads: int = 1) -> None:
    """Leave signals to the main process, die with it, draw other numbers than others, and calculate as all do.

    Args:
        config: the run.
        role: one of `trainer.seeds.ROLES`.
        number: of those that have the role.
        start: how many processes had the number before.
        num_threads: that torch may use.
    """
    obey_parent()
    prepare_process()
    torch.set_num_threads(num_threads)
    seed_globals(config.seed, role, number, start)
