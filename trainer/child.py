"""What every child process of a run does before anything else."""

from __future__ import annotations

import torch

from trainer.resources import prepare_process
from trainer.signals import obey_parent


def begin(num_threads: int = 1) -> None:
    """Leave signals to the main process, die with it, and calculate as every process of a run does.

    Args:
        num_threads: that torch may use.
    """
    obey_parent()
    prepare_process()
    torch.set_num_threads(num_threads)
