"""What learns in a run, as one protocol: in this process, in processes of their own, or by a shared optimiser.

The run's other parts ask these questions and know none of the three: `trainer.training.local_learners`,
`trainer.training.remote_learners`, `trainer.training.shared_learners`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainer.roles.agents import AgentPlan
from trainer.roles.learner import Learner
from trainer.telemetry.rows import Row
from trainer.telemetry.trace import NoTrace, Trace
from trainer.training.learner_process import LearnerProcess


class Learners(Protocol):
    """The learning side of a run.

    Attributes:
        plans: of all agents, in their order.
        acting: of those that an evaluation plays by, in their order.
        local: learners in this process, frozen ones too.
        remote: processes of the others.
    """

    plans: list[AgentPlan]
    acting: list[AgentPlan]
    local: list[Learner]
    remote: list[LearnerProcess]

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace show what is done in this process."""

    def prepare(self) -> None:
        """Record the updates that are made in this process."""

    def start(self) -> None:
        """Start the processes."""

    def total_frames(self) -> int:
        """Transitions that count against the budget."""

    def settled(self) -> bool:
        """Whether every update is made that the frames owe."""

    def open_limits(self) -> None:
        """Let the collectors go as far as every agent's limiter allows."""

    def work(self) -> bool:
        """A chunk of the updates that are due in this process; whether there was any."""

    def waited(self, seconds: float) -> None:
        """Count a moment in which nothing was due."""

    def begin_round(self) -> None:
        """Let exploration follow from the frames of now, until the round is over."""

    def round_updates(self) -> Iterator[None]:
        """Make all updates that a round owes, a chunk between two values."""

    def publish(self) -> None:
        """Hand the collectors a new version of all weights; waits for none of them."""

    def flat(self) -> Tensor:
        """The weights of now of who acts, float32 [sum of numel] on the CPU, one agent behind the other."""

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """How learning goes, by agent; waits for the device.

        Args:
            failed: leave out what says whether a loss was finite.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite. One of several acts on by its last good
                weights instead, learns no more, and is named.
        """

    def totals(self, rows: Sequence[Row]) -> Row:
        """What the run's row says otherwise than the joined `rows` of the agents."""

    def check_losses(self) -> None:
        """Wait for the device, once training is over.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite.
        """

    def save(self, frames: int) -> None:
        """Keep every agent's checkpoint after `frames` frames.

        Raises:
            OSError: the disk refuses.
        """

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Fill an agent's replay as it was when its checkpoint `found` was saved.

        Raises:
            OSError, ValueError: the rows are gone.
        """

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Let an agent go on from its checkpoint `found`."""

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Go on from what all agents share; whether it is as it was between two rounds.

        `torn` is told of a checkpoint that cannot be read, and why.
        """

    def report(self) -> dict[str, int]:
        """For the summary: rows drawn anew, and processes that took another's place."""

    def replay_bytes(self) -> int:
        """Of the replay, written by the last checkpoint."""

    def stop(self) -> None:
        """Ask all processes to end; waits for none."""

    def release(self) -> None:
        """Give back what lies on a device, after everything else.

        Raises:
            RuntimeError: the device has failed.
        """
