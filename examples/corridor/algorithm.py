"""An algorithm's keys: hysteretic Q-learning. `algorithm=corridor.algorithm:ENTRY algorithm.patience=0.5`.

It imports nothing slow, as its keys are checked before torch is imported; the loss is in corridor/loss.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.algorithms import AlgorithmEntry, OneValueConfig
from trainer.config.fields import number


@dataclass(frozen=True)
class HystereticConfig(OneValueConfig):
    """The keys of all algorithms of values (gamma, hidden_sizes, ...), and one more."""

    # Weight of errors that lower a value. `number` gives default, smallest and largest value, and the usual range.
    patience: float = number(0.3, 0.0, 1.0, (0.05, 1.0))


ENTRY = AlgorithmEntry(
    section=HystereticConfig,
    build="corridor.loss:build",
    no_first_priority="depends on the error's sign",  # so replay.initial_priority=collector is refused
)
