"""The schedule `sync`: the workers collect a round, then come its updates, then new weights."""

from __future__ import annotations

from trainer.config.schedules import rounds
from trainer.config.schedules.schedule import Schedule

SCHEDULE = Schedule(
    rounds.turns, rounds.check, rounds=True, repeatable=True, resumes_exactly=True, collectors=True
)  # fmt: skip
