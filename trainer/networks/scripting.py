"""TorchScript, which runs recorded lists of small tensor operations faster than anything else that PyTorch offers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def script(function: Callable, example: Sequence[Tensor]) -> Any:
    """`torch.jit.trace` without the look whether a second call gives the same.

    From 2.14 on PyTorch says that TorchScript will go and recommends `torch.compile` to whoever calls it. That one
    takes 30 s to start here and is slower afterwards (`learner.execution=compile`), so users are spared the warning.

    `networks.dense` chooses by shape how it multiplies. What it chose for the example is recorded, which is right for
    other shapes too: of that PyTorch need not warn.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"trainer\.networks")
        return torch.jit.trace(function, tuple(example), check_trace=False)
