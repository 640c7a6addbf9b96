"""What all loggers share: the description of the run, events, the protocol `Sink`, and how values are written."""

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
    """What the sinks know about the run; `num_envs` counts the sub-environments of all workers."""

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
    """A text for people: a warning, an evaluation, the death of a process.

    Args:
        time: when it happened.
        role: of the process that the event is about.
        text: one line, or more for a traceback.
        agent: that the event is about, "" for none.
        pid: of the process that the event is about.
        passing: whether it is the progress of something that takes long. The terminal shows such an event until the
            next one; no file has it.
        video: that it is about, an MP4.
        frames: at which the policy was taken that the video shows.
    """

    time: datetime
    role: str
    text: str
    agent: str = ""
    pid: int = field(default_factory=os.getpid)
    passing: bool = False
    video: Path | None = None
    frames: int = 0

    @property
    def who(self) -> str:
        """Role and agent, as "learner agent_1"."""
        return f"{self.role} {self.agent}".strip()


class Sink(Protocol):
    """A place that rows and events are written to. `Loggers` reports an OSError once and tries the sink again."""

    def write(self, row: Row) -> None:
        """Take one row."""

    def event(self, event: Event) -> None:
        """Take one event."""

    def close(self, summary: dict[str, Any]) -> None:
        """Take the run's summary (the content of summary.json) and release everything."""


def plain_value(value: Any) -> float | int | str | None:
    """A value for JSON and CSV: arrays and tensors of one element become numbers, NaN and infinity become None."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def drop_torn_line(file: BinaryIO) -> None:
    """Cut off an unfinished last line, as a killed process may leave one, and go to the end of the file."""
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
