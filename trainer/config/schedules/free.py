"""The schedule `async`: collectors run free; the limiters are the only brake, on either side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.config.fields import ConfigError
from trainer.config.schedules.rounds import frames_of_step, step_in_words
from trainer.config.schedules.schedule import Schedule, Turns

if TYPE_CHECKING:
    from trainer.config.sections import Config


def turns(run: Turns) -> Iterator[bool]:
    """Learn whatever is due, while the collectors collect."""
    run.open_limits()
    while not run.finished():
        if not run.work():
            run.idle()
        yield True


def check(config: Config) -> None:
    """Refuse a band that is narrower than one step of all workers, which would never fit into it.

    Raises:
        ConfigError: in one sentence that names the keys.
    """
    schedule, step = config.schedule, frames_of_step(config)
    assert schedule.tolerance_frames is not None  # `config` is resolved
    by_frames = schedule.frames_per_update is not None and schedule.episodes_per_update is None
    if by_frames and schedule.tolerance_frames < step:
        raise ConfigError(
            f"schedule.tolerance_frames={schedule.tolerance_frames} is less than one step of all workers "
            f"({step_in_words(config)}): set schedule.tolerance_frames={step} or more"
        )


SCHEDULE = Schedule(turns, check, collectors=True)
