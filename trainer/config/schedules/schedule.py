"""What a schedule is: a value that says how collection and learning take turns, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trainer.config.sections import Config


class Turns(Protocol):
    """What a schedule takes its turns with; `trainer.training.system.System` is one."""

    def open_limits(self) -> None:
        """Let the collectors go as far as every agent's limiter allows."""

    def collected(self) -> bool:
        """Whether the budget is collected."""

    def finished(self) -> bool:
        """Whether it is, and every update made that it is owed."""

    def work(self) -> bool:
        """A chunk of the updates that are due; whether there was any."""

    def idle(self) -> None:
        """Wait a moment for something to be due."""

    def begin_round(self) -> None:
        """Fix what a round depends on: exploration, and whom is played against."""

    def collect_round(self) -> None:
        """Let every worker collect one round, and wait for it."""

    def round_updates(self) -> Iterator[None]:
        """Make all updates that a round owes, a chunk between two values."""

    def publish(self) -> None:
        """Hand the collectors the new weights of all agents."""


@dataclass(frozen=True)
class Schedule:
    """One way for collection and learning to take turns. It costs a file, a line in `SCHEDULES`, and its YAML.

    Args:
        turns: a generator that does a slice of work and yields whether a run that stops there can go on as if it had
            not, for which a round must be over. The training loop looks around between two slices.
        check: refuses keys that do not fit it, by raising `ConfigError`; the configuration is resolved.
        rounds: learning follows rounds of collection; else both go on side by side.
        repeatable: the same seed gives the same weights, whoever is how fast; so an evaluation is waited for.
        resumes_exactly: a run that is stopped between two rounds goes on bit for bit.
        collectors: collector processes play.
        one_process: everything runs in the main process.
        local_agents: `schedule.num_agents` copies of one agent act and learn, each in a process of its own.
        opponents: it has a pool of opponents for turn-based games.
        round_steps: steps of all environments in a round by default; None: as many as make about 1,024 frames.
    """

    turns: Callable[[Turns], Iterator[bool]]
    check: Callable[[Config], None]
    rounds: bool = False
    repeatable: bool = False
    resumes_exactly: bool = False
    collectors: bool = False
    one_process: bool = False
    local_agents: bool = False
    opponents: bool = True
    round_steps: int | None = None
