"""What tests of resumed runs share."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.config.sections import Config
from trainer.run_folder import checkpoint
from trainer.training.train import train

ROOT = Path(__file__).parent.parent
CARTPOLE = {"id": "CartPole-v1", "backend": "gymnasium"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Whole rows of a run until now."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def made_all_due(updates: int, frames: int, warmup: int = 200, frames_per_update: int = 4) -> bool:
    """Whether a run made each update that was due; a last step of the other worker may end after the learner did."""
    return (frames - warmup) // frames_per_update - updates in (0, 1)


def stop_at(folder: Path, frames: int, number: int = signal.SIGUSR1) -> None:
    """Send a signal to this process, as SLURM does, once a run's rows have come so far."""

    def watch() -> None:
        while max((row["frames"] for row in rows_of(folder)), default=0) < frames:
            time.sleep(0.005)
        if not (folder / "summary.json").exists():  # else it has ended, and nobody waits for the signal
            os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()


def go_on(config: Config, **changes: Any) -> dict[str, Any]:
    return train(replace(config, resume=config.run_dir, **changes), ["resume"])


def newest(folder: Path) -> dict[str, Any]:
    state = checkpoint.newest(folder / "checkpoints")
    assert state is not None
    return state


def leaves(tree: Any, name: str = "") -> dict[str, Any]:
    """A nested dict's values by their path."""
    if isinstance(tree, dict):
        found = {}
        for key, value in tree.items():
            found |= leaves(value, f"{name}/{key}")
        return found
    return {name: tree}


def differences(first: Any, second: Any) -> list[str]:
    first, second = leaves(first), leaves(second)
    same = {
        key: torch.equal(value, second[key]) if isinstance(value, torch.Tensor) else value == second[key]
        for key, value in first.items()
    }
    return [key for key, equal in same.items() if not equal]
