"""The schedule `sequential`: as `sync`, but worker after worker in one process: the reference, and for debugging."""

from __future__ import annotations

from trainer.config.schedules import rounds
from trainer.config.schedules.schedule import Schedule

SCHEDULE = Schedule(
    rounds.turns, rounds.check, rounds=True, repeatable=True, resumes_exactly=True, one_process=True
)  # fmt: skip
