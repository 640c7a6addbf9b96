"""The schedule `shared_gradient`: local agents collect and learn in rounds of their own, by one shared optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.config.algorithms import ALGORITHMS
from trainer.config.fields import ConfigError
from trainer.config.schedules import free, rounds
from trainer.config.schedules.schedule import Schedule, Turns

if TYPE_CHECKING:
    from trainer.config.sections import Config


def turns(run: Turns) -> Iterator[bool]:
    """The local agents do everything; this process looks on, or applies their gradients on the device."""
    yield from free.turns(run)
    run.work()  # what was sent by who did not wait for it


def check(config: Config) -> None:
    """Refuse a device on which nobody would apply gradients, rounds that are none, and algorithms of several parts.

    Raises:
        ConfigError: in one sentence that names the keys.
    """
    if config.schedule.applier == "local" and config.learner.device.startswith("cuda"):
        raise ConfigError(
            f"schedule.applier=local applies gradients on the CPU, not on learner.device={config.learner.device}: set "
            "learner.device=cpu, or schedule.applier=device"
        )
    if ALGORITHMS[config.algorithm.name].several_parts:
        raise ConfigError(
            f"schedule=shared_gradient has one optimiser, and algorithm={config.algorithm.name} one for each of actor "
            "and critics: use schedule=async"
        )
    rounds.check(config)


SCHEDULE = Schedule(
    turns, check, rounds=True, resumes_exactly=True, local_agents=True, opponents=False, round_steps=1
)  # fmt: skip
