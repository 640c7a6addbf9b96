"""Agents that learn in the main process, one by one or in stacks; and the frozen ones, which only act."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.learning.update import NotFinite
from trainer.roles.agents import AgentPlan, update_key
from trainer.roles.learner import Learner, LearnerStack
from trainer.telemetry.rows import Row
from trainer.telemetry.trace import NoTrace, Trace
from trainer.training.learner_process import LearnerProcess


def one_by_one(learners: Sequence[Learner]) -> list[Learner | LearnerStack]:
    """Each by itself."""
    return list(learners)


def stacked(learners: Sequence[Learner]) -> list[Learner | LearnerStack]:
    """Those that are alike in one stack, the others by themselves."""
    groups: dict[tuple, list[Learner]] = {}
    for learner in learners:
        groups.setdefault(update_key(learner.plan), []).append(learner)
    return [LearnerStack(group) if len(group) > 1 else group[0] for group in groups.values()]


def round_updates(one: Learner | LearnerStack) -> Iterator[None]:
    """All updates that a round owes, or `schedule.updates_per_round`, a chunk between two values."""
    owed = []
    for learner in one.learners:
        frames, fixed = learner.board.total_frames(), learner.config.schedule.updates_per_round
        learner.anneal(frames)
        due = learner.limiter.due(frames, learner.board.total_episodes())
        if fixed is not None:
            due = fixed if frames >= learner.limiter.warmup_frames else 0
        owed.append(0 if learner.frozen else int(due))
    while any(owed):
        most = [learner.config.learner.prefetch_batches for learner in one.learners]
        chunk = [min(due, at_once) for due, at_once in zip(owed, most, strict=True)]
        one.learn(chunk)
        owed = [due - done for due, done in zip(owed, chunk, strict=True)]
        yield


class LocalLearners:
    """See `trainer.training.learners.Learners`.

    Args:
        plans: of all agents.
        learners: of those that live here.
        updating: what makes the updates of those that learn.
        event: is told of an agent that learns no more, as `Loggers.event` is.
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
        """Whether anything is learned in this process."""
        return bool(self.updating)

    def follow(self, trace: Trace | NoTrace) -> None:
        """Let a trace show what is done."""
        for one in self.updating:
            one.follow(trace)

    def prepare(self) -> None:
        """Record the updates."""
        for one in self.updating:
            one.prepare()

    def start(self) -> None:
        """There is no process."""

    def total_frames(self) -> int:
        """Transitions of the agent that has most."""
        return max(plan.board.total_frames() for plan in self.plans)

    def settled(self) -> bool:
        """Whether every update is made that the frames owe."""
        return all(
            learner.frozen or learner.limiter.settled(learner.board.total_frames(), learner.board.total_episodes())
            for learner in self.local
        )

    def open_limits(self) -> None:
        """Let the collectors go as far as every limiter allows."""
        for learner in self.local:
            learner.open_limit()

    def work(self) -> bool:
        """A chunk of updates of whoever is due; whether there was any."""
        worked = False
        for one in self.updating:
            worked = one.work() or worked
        return worked

    def waited(self, seconds: float) -> None:
        """Count a moment in which nothing was due."""
        for learner in self.local:
            learner.board.learner_waited_s[0] += seconds

    def begin_round(self) -> None:
        """Let exploration depend on nobody's speed."""
        for learner in self.local:
            learner.board.schedule_frames[0] = learner.board.total_frames()

    def round_updates(self) -> Iterator[None]:
        """All updates that a round owes; what an agent is owed depends on nobody else."""
        for one in self.updating:
            yield from round_updates(one)

    def publish(self) -> None:
        """Hand the collectors a new version of all weights."""
        for learner in self.local:
            learner.publish()

    def flat(self) -> Tensor:
        """The present weights of all agents."""
        return torch.cat([learner.flat() for learner in self.local])

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """How learning goes, by agent.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite.
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
            learner.open_limit()
            self._event(f"{learner.name} learns no more: {error}", role="learner", agent=learner.name)
            return rate

    def totals(self, rows: Sequence[Row]) -> Row:
        """Nothing: the agents' rows say all."""
        return {}

    def check_losses(self) -> None:
        """Wait for the device.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite.
        """
        if self._alone:
            self.local[0].updater.check()

    def save(self, frames: int) -> None:
        """Keep every agent's checkpoint."""
        for learner in self.local:
            learner.save(frames)

    def find(self, plan: AgentPlan) -> Learner | None:
        """The learner of a plan, if it lives here."""
        return next((learner for learner in self.local if learner.plan is plan), None)

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Fill an agent's replay, and its sampler."""
        learner = self.find(plan)
        assert learner is not None
        learner.load_replay(found["replay"], found["sampler"])

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Let an agent go on from its checkpoint; its sampler's part came with the replay."""
        learner = self.find(plan)
        assert learner is not None
        learner.load_state_dict(found, with_sampler=False)

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Nothing is shared."""
        return True

    def report(self) -> dict[str, int]:
        """For the summary."""
        return {"redrawn_rows": sum(learner.replay.redrawn for learner in self.local), "learner_restarts": 0}

    def replay_bytes(self) -> int:
        """Of the replay, written by the last checkpoint."""
        return sum(learner.copy.bytes_written for learner in self.local)

    def stop(self) -> None:
        """There is no process that could end."""

    def release(self) -> None:
        """End the threads that gather batches; torch gives back what lies on a device."""
        for learner in self.local:
            learner.feed.close()
