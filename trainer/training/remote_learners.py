"""Agents that learn in a process each; the frozen ones live in the main process."""

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
        here: the frozen ones.
        remote: the others.
    """

    def __init__(self, here: LocalLearners, remote: Sequence[LearnerProcess]) -> None:
        self._here, self.remote = here, list(remote)
        self.plans, self.acting, self.local = here.plans, here.acting, here.local
        self.learns_here = False

    def follow(self, trace: Trace | NoTrace) -> None:
        """Nothing is learned here."""

    def prepare(self) -> None:
        """Nothing is learned here."""

    def start(self) -> None:
        """Start the processes."""
        for learner in self.remote:
            learner.supervised.start()

    def total_frames(self) -> int:
        """Transitions of the agent that has most."""
        return self._here.total_frames()

    def settled(self) -> bool:
        """Whether every update is made that the frames owe."""
        return all(learner.settled() for learner in self.remote)

    def open_limits(self) -> None:
        """Frozen agents hold nobody back; the others' processes open their limits."""
        self._here.open_limits()

    def work(self) -> bool:
        """Nothing is learned here."""
        return False

    def waited(self, seconds: float) -> None:
        """Count a moment in which nothing was due here."""
        self._here.waited(seconds)

    def begin_round(self) -> None:
        """There are no rounds: a configuration that asks for both is refused."""

    def round_updates(self) -> Iterator[None]:
        """There are no rounds."""
        yield from ()

    def publish(self) -> None:
        """Hand the collectors the weights of the frozen ones; the others' processes hand out theirs."""
        self._here.publish()

    def flat(self) -> Tensor:
        """The present weights of all agents; for an agent in another process those on its board."""
        learners = [(plan, self._here.find(plan)) for plan in self.plans]
        return torch.cat([published(plan) if learner is None else learner.flat() for plan, learner in learners])

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """How learning goes, by agent, as each has reported last."""
        return self._here.metrics(failed) | {learner.plan.name: learner.metrics for learner in self.remote}

    def totals(self, rows: Sequence[Row]) -> Row:
        """Nothing: the agents' rows say all."""
        return {}

    def check_losses(self) -> None:
        """Each process has looked at its own."""

    def save(self, frames: int) -> None:
        """Keep the frozen ones' checkpoints, and ask the others for theirs."""
        self._here.save(frames)
        for learner in self.remote:
            learner.save(frames)

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Fill an agent's replay; its own process makes the sampler."""
        if self._here.find(plan) is None:
            load_rows(plan, found)
        else:
            self._here.load_replay(plan, found)

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Let an agent go on from its checkpoint, which its own process reads."""
        if self._here.find(plan) is not None:
            self._here.load_state_dict(plan, found)
        for learner in self.remote:
            learner.expect(plan, found)

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Nothing is shared."""
        return True

    def report(self) -> dict[str, int]:
        """For the summary."""
        return {**self._here.report(), "learner_restarts": sum(learner.restarts for learner in self.remote)}

    def replay_bytes(self) -> int:
        """Of the frozen ones' replay, written by the last checkpoint."""
        return self._here.replay_bytes()

    def stop(self) -> None:
        """They see that the run stops."""

    def release(self) -> None:
        """Each process gives back its own."""


def load_rows(plan: AgentPlan, found: dict[str, Any]) -> None:
    """Fill the replay of an agent that lives in another process, from its checkpoint `found`.

    Raises:
        OSError, ValueError: the rows are gone.
    """
    folder, behind = plan.folder.parent / "replay", plan.spec.stack - 1
    copy = ReplayCopy(folder, plan.storage, plan.streams, plan.board.cursor, behind)
    _, plan.board.oldest[:] = copy.load(found["replay"])
