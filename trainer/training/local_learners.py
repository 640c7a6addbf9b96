"""Agents that learn in the main process, one by one or in stacks, and frozen agents, which only act."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.learning.stacking import can_be_stacked
from trainer.learning.update import NotFinite
from trainer.roles import pace
from trainer.roles.agents import AgentPlan, update_key
from trainer.roles.learner import Learner, LearnerStack
from trainer.telemetry.rows import Row
from trainer.telemetry.trace import NoTrace, Trace
from trainer.training.learner_process import LearnerProcess


def one_by_one(learners: Sequence[Learner]) -> list[Learner | LearnerStack]:
    """No stacks: the updates of each agent are made by themselves."""
    return list(learners)


def stacked(learners: Sequence[Learner]) -> list[Learner | LearnerStack]:
    """Agents with the same `update_key` in one stack, those that cannot be stacked by themselves."""
    groups: dict[tuple, list[Learner]] = {}
    for learner in learners:
        alone = None if can_be_stacked(learner.updater) else learner.plan.number
        groups.setdefault((*update_key(learner.plan), alone), []).append(learner)
    return [LearnerStack(group) if len(group) > 1 else group[0] for group in groups.values()]


class LocalLearners:
    """See `trainer.training.learners.Learners`.

    Args:
        plans: of all agents.
        learners: of the agents in this process.
        updating: learners, or stacks of them, that make updates.
        event: takes a sentence about an agent that stops learning, as `Loggers.event`.
    """

    def __init__(
        self, plans: Sequence[AgentPlan], learners: Sequence[Learner], updating: Sequence[Learner | LearnerStack],
        event: Callable[..., None],
    ) -> None:  # fmt: skip
        self.plans, self.acting = list(plans), list(plans)
        self.local, self.updating = list(learners), list(updating)
        self.remote: list[LearnerProcess] = []
        self._event, self._alone = event, len(plans) == 1

    @property
    def learns_here(self) -> bool:
        """Whether updates are made in this process."""
        return bool(self.updating)

    def follow(self, trace: Trace | NoTrace) -> None:
        """See `Learners`."""
        for one in self.updating:
            one.follow(trace)

    def prepare(self) -> None:
        """See `Learners`."""
        for one in self.updating:
            one.prepare()

    def start(self) -> None:
        """Do nothing: there is no process."""

    def total_frames(self) -> int:
        """Number of transitions of the agent that has most."""
        return max(plan.board.total_frames() for plan in self.plans)

    def settled(self) -> bool:
        """See `Learners`."""
        return all(pace.settled(learner) for learner in self.local)

    def open_limits(self) -> None:
        """See `Learners`."""
        for learner in self.local:
            pace.open_limit(learner)

    def work(self) -> bool:
        """Make a chunk of updates of each agent that has some due; returns whether there was any."""
        worked = False
        for one in self.updating:
            worked = pace.work(one) or worked
        return worked

    def waited(self, seconds: float) -> None:
        """See `Learners`."""
        for learner in self.local:
            learner.board.learner_waited_s[0] += seconds

    def begin_round(self) -> None:
        """Set the frames of the round, so that exploration does not depend on the workers' speed."""
        for learner in self.local:
            learner.board.schedule_frames[0] = learner.board.total_frames()

    def round_updates(self) -> Iterator[None]:
        """Make all updates of a round, of one agent after another."""
        for one in self.updating:
            yield from pace.round_updates(one)

    def publish(self) -> None:
        """See `Learners`."""
        for learner in self.local:
            learner.publish()

    def flat(self) -> Tensor:
        """See `Learners`."""
        return torch.cat([learner.flat() for learner in self.local])

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """Metrics of learning by agent; waits for the device.

        Raises:
            NotFinite: the loss of the only agent was NaN or infinite.
        """
        return {learner.name: self._metrics(learner, failed) for learner in self.local}

    def _metrics(self, learner: Learner, failed: bool) -> dict[str, float]:
        rate = {"learning_rate": learner.updater.learning_rate}
        if failed or learner.frozen:
            return rate
        try:
            return learner.metrics()
        except NotFinite as error:
            if self._alone:
                raise
            learner.frozen = True
            pace.open_limit(learner)
            self._event(f"{learner.name} learns no more: {error}", role="learner", agent=learner.name)
            return rate

    def totals(self, rows: Sequence[Row]) -> Row:
        """Nothing: the agents' rows are joined."""
        return {}

    def check_losses(self) -> None:
        """Wait for the device.

        Raises:
            NotFinite: the loss of the only agent was NaN or infinite.
        """
        if self._alone:
            self.local[0].updater.check()

    def save(self, frames: int) -> None:
        """Save every agent's checkpoint."""
        for learner in self.local:
            learner.save(frames)

    def find(self, plan: AgentPlan) -> Learner | None:
        """The learner of a plan, if it is in this process."""
        return next((learner for learner in self.local if learner.plan is plan), None)

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load an agent's replay and its sampler's state."""
        learner = self.find(plan)
        assert learner is not None
        learner.load_replay(found["replay"], found["sampler"])

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load an agent's checkpoint, without the sampler's state, which `load_replay` has loaded."""
        learner = self.find(plan)
        assert learner is not None
        learner.load_state_dict(found, with_sampler=False)

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Do nothing: agents share nothing."""
        return True

    def report(self) -> dict[str, int]:
        """See `Learners`."""
        return {"redrawn_rows": sum(learner.replay.redrawn for learner in self.local), "learner_restarts": 0}

    def replay_bytes(self) -> int:
        """See `Learners`."""
        return sum(learner.copy.bytes_written for learner in self.local)

    def stop(self) -> None:
        """Do nothing: there is no process."""

    def release(self) -> None:
        """End the threads that gather batches; torch frees the device's memory by itself."""
        for learner in self.local:
            learner.feed.close()
