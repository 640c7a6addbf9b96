"""What the schedules `sync` and `sequential` are: a round of collection, its updates, new weights, the next round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.config.fields import ConfigError
from trainer.config.schedules.schedule import Turns

if TYPE_CHECKING:
    from trainer.config.sections import Config


def turns(run: Turns) -> Iterator[bool]:
    """Collect and learn one after the other."""
    while not run.collected():
        run.begin_round()
        yield False  # from here on a stop is one within a round
        run.collect_round()
        yield False
        for _ in run.round_updates():
            yield False
        run.publish()
        yield True


def frames_of_step(config: Config) -> int:
    """Frames of one step of all workers; `config` is resolved."""
    assert config.collector.num_workers is not None
    return config.collector.num_workers * config.collector.envs_per_worker


def step_in_words(config: Config) -> str:
    """The same for a sentence, with the keys that it follows from."""
    return (
        f"collector.num_workers={config.collector.num_workers} x "
        f"collector.envs_per_worker={config.collector.envs_per_worker} = {frames_of_step(config)} frames"
    )


def check(config: Config) -> None:
    """Refuse rounds that do not say how much to learn, do not end, or are no whole number of steps.

    Raises:
        ConfigError: in one sentence that names the keys.
    """
    schedule, step = config.schedule, frames_of_step(config)
    if schedule.frames_per_update is schedule.updates_per_round is schedule.episodes_per_update is None:
        raise ConfigError(
            f"schedule={schedule.name} does not know how much to learn: set schedule.frames_per_update, "
            "schedule.episodes_per_update or schedule.updates_per_round"
        )
    if schedule.episodes_per_round is not None:
        most = config.budget_frames // (config.collector.num_workers or 1)
        if schedule.episodes_per_round > max(1, most):
            raise ConfigError(
                f"schedule.episodes_per_round={schedule.episodes_per_round} of each of {config.collector.num_workers} "
                f"workers are more than budget_frames={config.budget_frames} have room for, even if each has one "
                f"frame: set schedule.episodes_per_round={max(1, most // 100)}"
            )
        return
    if schedule.frames_per_round is None:
        return
    if schedule.frames_per_round % step:
        fitting = max(1, round(schedule.frames_per_round / step)) * step
        raise ConfigError(
            f"schedule.frames_per_round={schedule.frames_per_round} is no multiple of one step of all workers "
            f"({step_in_words(config)}): set schedule.frames_per_round={fitting}"
        )
    if schedule.frames_per_round > max(config.budget_frames, 2_048, step):  # a round by default may be as long
        fitting = max(1, config.budget_frames // 10 // step) * step
        raise ConfigError(
            f"schedule.frames_per_round={schedule.frames_per_round} is more than budget_frames={config.budget_frames}: "
            f"the first round would not end; set schedule.frames_per_round={fitting}, or leave it out"
        )
