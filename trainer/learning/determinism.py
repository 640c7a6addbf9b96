"""Reproducible computation: deterministic operations, and the state of torch's generators."""

from __future__ import annotations

import os
from typing import Any

import torch

from trainer.config.sections import LearnerConfig

WORKSPACE = ":4096:8"  # the larger of the two reproducible settings in the manual of cuBLAS


def be_deterministic(config: LearnerConfig) -> None:
    """Let this process use only deterministic operations if `learner.deterministic` is set.

    Call it before the process uses a GPU, as cuBLAS reads its variable only once. An operation without a deterministic
    version then raises a RuntimeError, which `trainer.host.errors.device_failure` explains.
    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    if not config.deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)


def generator_states() -> dict[str, Any]:
    """States of torch's generators for a checkpoint: `torch_rng`, and `cuda_rng` for each GPU, uint8 tensors."""
    states: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda_rng"] = torch.cuda.get_rng_state_all()
    return states


def set_generator_states(kept: dict[str, Any]) -> None:
    """Restore states of `generator_states`, for the devices that this machine has."""
    if "torch_rng" in kept:
        torch.set_rng_state(kept["torch_rng"])
    if torch.cuda.is_available():
        for device, state in enumerate(kept.get("cuda_rng", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
