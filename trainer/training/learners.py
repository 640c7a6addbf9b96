"""The learning side of a run as one protocol: in this process, in other processes, or with a shared optimiser.

Other parts of a run use only this protocol. It has three implementations: `trainer.training.local_learners`,
`trainer.training.remote_learners` and `trainer.training.shared_learners`.
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
        plans: of all agents.
        acting: plans of the agents whose policies an evaluation plays.
        local: learners in this process, with frozen ones.
        remote: processes of the other learners.
    """

    plans: list[AgentPlan]
    acting: list[AgentPlan]
    local: list[Learner]
    remote: list[LearnerProcess]

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace follow the learning in this process."""

    def prepare(self) -> None:
        """Record the updates of this process, so that the first ones need not."""

    def start(self) -> None:
        """Start the processes."""

    def total_frames(self) -> int:
        """Number of transitions that count for the budget."""

    def settled(self) -> bool:
        """Whether all due updates are made."""

    def open_limits(self) -> None:
        """Let the collectors go as far as every agent's limiter allows."""

    def work(self) -> bool:
        """Make a chunk of due updates in this process; returns whether there was any."""

    def waited(self, seconds: float) -> None:
        """Count time in which no update was due."""

    def begin_round(self) -> None:
        """Set the frames that exploration depends on during the round."""

    def round_updates(self) -> Iterator[None]:
        """Make all updates of a round, one chunk for each yield."""

    def publish(self) -> None:
        """Publish a new version of all weights to the collectors, without waiting."""

    def flat(self) -> Tensor:
        """The present weights of all acting agents, one after another, float32 [sum of numel] on the CPU."""

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """Metrics of learning by agent; waits for the device.

        Args:
            failed: whether a loss was not finite; then these metrics are left out.

        Raises:
            NotFinite: the loss of the only agent was NaN or infinite. One of several agents stops learning instead,
                acts on by its last finite weights, and an event names it.
        """

    def totals(self, rows: Sequence[Row]) -> Row:
        """Metrics of the run that replace those of the agents' joined rows."""

    def check_losses(self) -> None:
        """Wait for the device after the training.

        Raises:
            NotFinite: the loss of the only agent was NaN or infinite.
        """

    def save(self, frames: int) -> None:
        """Save a checkpoint of every agent after `frames` frames.

        Raises:
            OSError: one could not be written.
        """

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load an agent's replay as it was when its checkpoint `found` was saved.

        Raises:
            OSError, ValueError: the rows are missing or damaged.
        """

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load an agent's checkpoint `found`."""

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Load what all agents share; returns whether that was saved between two rounds.

        `torn` takes the path of a checkpoint that cannot be read, and why.
        """

    def report(self) -> dict[str, int]:
        """Entries of the summary: rows that were drawn again, and restarts of processes."""

    def replay_bytes(self) -> int:
        """Bytes of the replay that the last checkpoint wrote in this process."""

    def stop(self) -> None:
        """Ask all processes to end, without waiting."""

    def release(self) -> None:
        """Free threads and the device's memory, after everything else.

        Raises:
            RuntimeError: the device has failed.
        """
