"""Agents that learn in a process each; frozen agents are in the main process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.replay.on_disk import ReplayCopy
from trainer.roles.agents import AgentPlan, published
from trainer.telemetry.rows import Row
from trainer.telemetry.trace import NoTrace, Trace
from trainer.training.learner_process import LearnerProcess
from trainer.training.local_learners import LocalLearners


class RemoteLearners:
    """See `trainer.training.learners.Learners`.

    Args:
        here: the frozen agents.
        remote: the processes of the others.
    """

    def __init__(self, here: LocalLearners, remote: Sequence[LearnerProcess]) -> None:
        self._here, self.remote = here, list(remote)
        self.plans, self.acting, self.local = here.plans, here.acting, here.local
        self.learns_here = False

    def follow(self, trace: Trace | NoTrace) -> None:
        """Do nothing: no updates are made in this process."""

    def prepare(self) -> None:
        """Do nothing: no updates are made in this process."""

    def start(self) -> None:
        """Start the processes."""
        for learner in self.remote:
            learner.supervised.start()

    def total_frames(self) -> int:
        """Number of transitions of the agent that has most."""
        return self._here.total_frames()

    def settled(self) -> bool:
        """See `Learners`."""
        return all(learner.settled() for learner in self.remote)

    def open_limits(self) -> None:
        """Open the limits of frozen agents; the processes open those of the others."""
        self._here.open_limits()

    def work(self) -> bool:
        """Do nothing: no updates are made in this process."""
        return False

    def waited(self, seconds: float) -> None:
        """See `Learners`."""
        self._here.waited(seconds)

    def begin_round(self) -> None:
        """Do nothing: `agents.learner=process` is refused where there are rounds."""

    def round_updates(self) -> Iterator[None]:
        """Do nothing: there are no rounds."""
        yield from ()

    def publish(self) -> None:
        """Publish the weights of frozen agents; the processes publish those of the others."""
        self._here.publish()

    def flat(self) -> Tensor:
        """The weights of all agents; of an agent in another process those that it published last."""
        learners = [(plan, self._here.find(plan)) for plan in self.plans]
        return torch.cat([published(plan) if learner is None else learner.flat() for plan, learner in learners])

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """Metrics of learning by agent, as each process reported them last."""
        return self._here.metrics(failed) | {learner.plan.name: learner.metrics for learner in self.remote}

    def totals(self, rows: Sequence[Row]) -> Row:
        """Nothing: the agents' rows are joined."""
        return {}

    def check_losses(self) -> None:
        """Do nothing: each process checks its losses."""

    def save(self, frames: int) -> None:
        """Save the checkpoints of frozen agents, and ask the processes to save theirs."""
        self._here.save(frames)
        for learner in self.remote:
            learner.save(frames)

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load an agent's replay; its process makes the sampler."""
        if self._here.find(plan) is None:
            load_rows(plan, found)
        else:
            self._here.load_replay(plan, found)

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load a frozen agent's checkpoint; the processes load theirs."""
        if self._here.find(plan) is not None:
            self._here.load_state_dict(plan, found)
        for learner in self.remote:
            learner.expect(plan, found)

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Do nothing: agents share nothing."""
        return True

    def report(self) -> dict[str, int]:
        """See `Learners`."""
        return {**self._here.report(), "learner_restarts": sum(learner.restarts for learner in self.remote)}

    def replay_bytes(self) -> int:
        """Bytes that the last checkpoint wrote of the frozen agents' replays."""
        return self._here.replay_bytes()

    def stop(self) -> None:
        """Do nothing: the processes read the command to stop on the control board."""

    def release(self) -> None:
        """Do nothing: each process frees its memory."""


def load_rows(plan: AgentPlan, found: dict[str, Any]) -> None:
    """Load the replay of an agent in another process, from its checkpoint `found`.

    Raises:
        OSError, ValueError: the rows are missing or damaged.
    """
    folder, behind = plan.folder.parent / "replay", plan.spec.stack - 1
    copy = ReplayCopy(folder, plan.storage, plan.streams, plan.board.cursor, behind)
    _, plan.board.oldest[:] = copy.load(found["replay"])
