"""What every sink of telemetry shares: the run's description, a row, an event, and the three calls."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from trainer.telemetry.rows import Row


@dataclass(frozen=True)
class RunInfo:
    """What the sinks know about the run; `num_envs` counts the sub-environments of all workers together."""

    run_dir: Path
    env_id: str
    algorithm: str
    seed: int
    budget_frames: int
    config: dict[str, Any]  # resolved
    num_workers: int
    num_envs: int
    device: str


@dataclass(frozen=True)
class Event:
    """One line for people: a warning, an evaluation, a death.

    `role` and `pid` are those of the process it is about, `agent` the one whose it is, if it is one's. A passing one
    says how far something is that takes long: the terminal shows it until the next one, and nobody keeps it.
    """

    time: datetime
    role: str
    text: str
    agent: str = ""
    pid: int = field(default_factory=os.getpid)
    passing: bool = False

    @property
    def who(self) -> str:
        """Role and agent, as "learner agent_1"."""
        return f"{self.role} {self.agent}".strip()


class Sink(Protocol):
    """A place where telemetry goes. An OSError from any call is reported once and the sink is tried again."""

    def write(self, row: Row) -> None:
        """Take one row."""

    def event(self, event: Event) -> None:
        """Take one event."""

    def close(self, summary: dict[str, Any]) -> None:
        """Take the run's summary (what summary.json holds) and let go of everything."""


def plain_value(value: Any) -> float | int | str | None:
    """`value` as JSON and CSV can hold it: arrays and tensors of one element become numbers, NaN and infinity None."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def drop_torn_line(file: BinaryIO) -> None:
    """Cut off an unfinished last line, which a killed process may have left, and go to the end of the file."""
    end = file.seek(0, 2)
    position, block = end, b""
    while position > 0 and b"\n" not in block:
        position = max(0, position - 4096)
        file.seek(position)
        block = file.read(min(4096, end - position))
        if b"\n" in block:
            position += block.rindex(b"\n") + 1
    file.truncate(position)
    file.seek(0, 2)
