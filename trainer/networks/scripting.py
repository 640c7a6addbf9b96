"""TorchScript: PyTorch's fastest way to run a recorded list of small tensor operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def script(function: Callable, example: Sequence[Tensor]) -> Any:
    """As `torch.jit.trace`, without its check of a second call and without two of its warnings.

    From 2.14 on PyTorch warns that TorchScript will be removed, and recommends `torch.compile`. Here that takes 30 s to
    start and is slower afterwards (`learner.execution=compile`).

    `trainer.networks.layers.dense` multiplies in one of two ways, by the shapes. The way for the example is recorded;
    it is right for other shapes too, so PyTorch's warning about it is of no use.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"trainer\.networks")
        return torch.jit.trace(function, tuple(example), check_trace=False)
