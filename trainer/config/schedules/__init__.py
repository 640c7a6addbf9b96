"""How collection and learning take turns: `SCHEDULES` lists the values of the key `schedule.name`.

A new schedule is one file with a `SCHEDULE`, one line here and one YAML file in configs/schedule/. Nothing here
imports torch: what the configuration's checks need to know of a schedule stands in its value.
"""

from __future__ import annotations

from trainer.config.schedules import free, sequential, shared_gradient, sync
from trainer.config.schedules.schedule import Schedule, Turns

__all__ = ["SCHEDULES", "Schedule", "Turns"]

# The first one is the default.
SCHEDULES: dict[str, Schedule] = {
    "async": free.SCHEDULE,
    "sync": sync.SCHEDULE,
    "sequential": sequential.SCHEDULE,
    "shared_gradient": shared_gradient.SCHEDULE,
}
