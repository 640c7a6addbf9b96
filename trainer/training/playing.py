"""Who plays, as one protocol: collector processes, virtual workers in this process, or the local agents themselves.

`trainer.training.collectors` is the first of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainer.config.run_files import RunFolder
from trainer.memory.boards import ControlBoard
from trainer.roles.agents import end_episodes
from trainer.roles.collector import virtual_worker
from trainer.roles.rollout import CollectorPlan, Rollout
from trainer.roles.shared_memory import SharedMemoryLink
from trainer.training.supervisor import Event


class Collectors(Protocol):
    """Who plays.

    Attributes:
        plans: of each, in their order, for the process that it is now.
    """

    plans: list[CollectorPlan]

    @property
    def restarts(self) -> int:
        """How often another worker took one's place."""

    def start(self) -> None:
        """Start them, and wait until they are up.

        Raises:
            RunFailed: one of them died or hung on its way.
        """

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """Know how often each was started before; and whether they go on where those stood."""

    def starts(self) -> list[int]:
        """How often each was started until now, in this run and in those that it resumes."""

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Let each collect a round; `wait` is called while they do."""

    def save_snapshots(self, number: int) -> None:
        """Keep each one's state between two rounds, for the checkpoint of that number."""

    def close(self) -> None:
        """Let them end; they were told to. Safe to call twice."""


def snapshot_path(run_dir: Path, worker: int) -> Path:
    """Where a worker's state is kept for an exact resume."""
    return RunFolder(run_dir).checkpoints / f"collector_{worker}.pt"


def resumed(plans: Sequence[CollectorPlan], starts: Sequence[int], exact: bool) -> list[CollectorPlan]:
    """The plans of collectors that go on; of more than there were, the new ones count as started most often."""
    known = [*starts, *[max(starts, default=0)] * len(plans)]
    return [dataclasses.replace(plan, start=known[i], exact=exact) for i, plan in enumerate(plans)]


class LocalCollectors:
    """Virtual workers in this process, one after another; see `Collectors`.

    Args:
        plans: of each.
        board: control board.
        event: is told what went wrong as environments were closed, as `Loggers.event` is.
    """

    restarts = 0

    def __init__(self, plans: Sequence[CollectorPlan], board: ControlBoard, event: Event) -> None:
        self.plans, self._board, self._event = list(plans), board, event
        self.processes: list[Any] = []
        self.rollouts: list[Rollout] = []  # once they are started

    def start(self) -> None:
        """Make their environments."""
        for plan in self.plans:
            self.rollouts.append(virtual_worker(plan, SharedMemoryLink(self._board, plan.agents, plan.worker)))

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """Go on with the numbers of those before, and where they stood."""
        self.plans = resumed(self.plans, starts, exact)

    def starts(self) -> list[int]:
        """How often each was started."""
        return [plan.start + 1 for plan in self.plans]

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Let each collect a round."""
        self._board.round[0] += 1
        for rollout in self.rollouts:
            rollout.collect_round()

    def save_snapshots(self, number: int) -> None:
        """Keep where each stands."""
        for rollout in self.rollouts:
            rollout.save_snapshot(number)

    def close(self) -> None:
        """Close their environments."""
        for rollout in self.rollouts:
            if problem := rollout.close():
                self._event(f"warning: {problem}")
        self.rollouts = []


class LocalAgents:
    """Nobody but the local agents plays, each for itself; see `Collectors`.

    Args:
        plans: of each one's rollout.
    """

    restarts = 0  # are counted as learners'

    def __init__(self, plans: Sequence[CollectorPlan]) -> None:
        self.plans = list(plans)
        self.processes: list[Any] = []

    def start(self) -> None:
        """They are started as learners."""

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """Go on with the numbers of those before, and where they stood."""
        known = [*starts, *[0] * len(self.plans)]
        self.plans = resumed(self.plans, known[: len(self.plans)], exact)

    def starts(self) -> list[int]:
        """How often each was started."""
        return [plan.start + 1 for plan in self.plans]

    def start_again(self, number: int) -> None:
        """Let another process take a local agent's place, which begins new episodes."""
        plan = self.plans[number]
        end_episodes(plan.agents, 0)
        self.plans[number] = dataclasses.replace(plan, start=plan.start + 1, exact=False)

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Each collects its own."""

    def save_snapshots(self, number: int) -> None:
        """Each keeps its own with its checkpoint."""

    def close(self) -> None:
        """They end as learners."""
