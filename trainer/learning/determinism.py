"""What makes calculations repeat themselves: deterministic operations, and the state of torch's generators."""

from __future__ import annotations

import os
from typing import Any

import torch

from trainer.config.sections import LearnerConfig

WORKSPACE = ":4096:8"  # the larger of the two that cuBLAS' manual calls reproducible


def be_deterministic(config: LearnerConfig) -> None:
    """Let this process calculate with deterministic operations alone if `learner.deterministic` asks for it.

    Call it before the process uses a GPU: cuBLAS reads its variable once. An operation that has no deterministic
    version raises a RuntimeError then, for which `trainer.host.errors.device_failure` has a sentence.
    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    if not config.deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)


def generator_states() -> dict[str, Any]:
    """Of torch's own generators, for a checkpoint: uint8 tensors `torch_rng` and, for each GPU, `cuda_rng`."""
    states: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda_rng"] = torch.cuda.get_rng_state_all()
    return states


def set_generator_states(kept: dict[str, Any]) -> None:
    """Go on from there, as far as `kept` holds them and this machine has such devices."""
    if "torch_rng" in kept:
        torch.set_rng_state(kept["torch_rng"])
    if torch.cuda.is_available():
        for device, state in enumerate(kept.get("cuda_rng", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
