"""RUN/tensorboard: the metrics as TensorBoard scalars over frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.config.fields import ConfigError
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.sink import Event, RunInfo, plain_value
from trainer.telemetry.rows import Row, kind


class TensorboardSink:
    """Writes scalars through `torch.utils.tensorboard`.

    Raises:
        ConfigError: the tensorboard package is not installed.
    """

    def __init__(self, run: RunInfo) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # imported here: it costs a second, and few ask for it
        except ImportError as error:
            raise ConfigError(
                "logger=tensorboard needs the tensorboard package: pip install tensorboard, or choose logger=none."
            ) from error
        self._writer = SummaryWriter(str(run.run_dir / "tensorboard"), flush_secs=10)
        self._frames = 0
        self._writer.add_text("config", "\n".join(f"    {line}" for line in _flat(run.config)))

    def write(self, row: Row) -> None:
        """Add every number of the row at its `frames`, without texts and unknown values."""
        frames = int(row["frames"])
        if kind(row) == "training":
            self._frames = frames
        for key, value in row.items():
            if (number := plain_value(value)) is not None and not isinstance(number, str):
                self._writer.add_scalar(key, number, global_step=frames)

    def event(self, event: Event) -> None:
        """Add the event as text at the frames of the last row of training."""
        if event.passing:
            return
        self._writer.add_text("events", f"{event.time:%H:%M:%S} [{event.who}] {event.text}", self._frames)

    def close(self, summary: dict[str, Any]) -> None:
        """Add the summary as text and close the writer."""
        self._writer.add_text("summary", "\n".join(f"    {line}" for line in _flat(summary)), self._frames)
        self._writer.close()


def _flat(tree: dict[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{prefix}{key}.")
        else:
            lines.append(f"{prefix}{key}: {value}")
    return lines


def open_tensorboard(config: LoggerConfig, run: RunInfo, notify: Callable[[str], None]) -> TensorboardSink:
    """The sink behind LOGGERS["tensorboard"]."""
    return TensorboardSink(run)
