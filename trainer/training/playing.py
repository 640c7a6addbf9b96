"""The playing side of a run as one protocol: collector processes, virtual workers in this process, or local agents.

Collector processes are in `trainer.training.collectors`.
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
from trainer.telemetry.rows import Row
from trainer.training.supervisor import Event


class Collectors(Protocol):
    """The playing side of a run.

    Attributes:
        plans: of the present workers, in their order.
    """

    plans: list[CollectorPlan]

    @property
    def restarts(self) -> int:
        """Number of workers that replaced another one."""

    def start(self) -> None:
        """Start all workers and wait until they are up.

        Raises:
            RunFailed: one of them died or hung.
        """

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """Take the numbers of starts of the run that is resumed, and whether workers restore their saved state."""

    def starts(self) -> list[int]:
        """Number of starts of each worker, in this run and in those that it resumes."""

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Let each worker collect a round; `wait` is called meanwhile, again and again."""

    def save_snapshots(self, number: int) -> None:
        """Save the state of each worker between two rounds, for the checkpoint of this number."""

    def metrics(self) -> Row:
        """Metrics of a row: restarts, and those of nodes, where there are any."""

    def close(self) -> None:
        """Wait for their end, for which they have the command. Safe to call twice."""


def snapshot_path(run_dir: Path, worker: int) -> Path:
    """File of a worker's state, for an exact resume."""
    return RunFolder(run_dir).checkpoints / f"collector_{worker}.pt"


def resumed(plans: Sequence[CollectorPlan], starts: Sequence[int], exact: bool) -> list[CollectorPlan]:
    """The plans of a resumed run's workers; additional workers get the largest number of starts."""
    known = [*starts, *[max(starts, default=0)] * len(plans)]
    return [dataclasses.replace(plan, start=known[i], exact=exact) for i, plan in enumerate(plans)]


class LocalCollectors:
    """Virtual workers in this process, one after another; see `Collectors`.

    Args:
        plans: of the workers.
        board: control board.
        event: takes a sentence about environments that could not be closed, as `Loggers.event`.
    """

    restarts = 0

    def __init__(self, plans: Sequence[CollectorPlan], board: ControlBoard, event: Event) -> None:
        self.plans, self._board, self._event = list(plans), board, event
        self.processes: list[Any] = []
        self.rollouts: list[Rollout] = []  # after `start`

    def start(self) -> None:
        """Make the environments."""
        for plan in self.plans:
            self.rollouts.append(virtual_worker(plan, SharedMemoryLink(self._board, plan.agents, plan.worker)))

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """See `Collectors`."""
        self.plans = resumed(self.plans, starts, exact)

    def starts(self) -> list[int]:
        """See `Collectors`."""
        return [plan.start + 1 for plan in self.plans]

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Collect a round of each worker, one after another."""
        self._board.round[0] += 1
        for rollout in self.rollouts:
            rollout.collect_round()

    def save_snapshots(self, number: int) -> None:
        """Save the state of each worker."""
        for rollout in self.rollouts:
            rollout.save_snapshot(number)

    def metrics(self) -> Row:
        """See `Collectors`."""
        return {"worker_restarts": self.restarts}

    def close(self) -> None:
        """Close the environments."""
        for rollout in self.rollouts:
            if problem := rollout.close():
                self._event(f"warning: {problem}")
        self.rollouts = []


class LocalAgents:
    """The rollouts of the local agents, which run in the agents' processes; see `Collectors`.

    Args:
        plans: of the rollouts.
    """

    restarts = 0  # those of local agents count as restarts of learners

    def __init__(self, plans: Sequence[CollectorPlan]) -> None:
        self.plans = list(plans)
        self.processes: list[Any] = []

    def start(self) -> None:
        """Do nothing: `SharedLearners` starts the processes."""

    def resume(self, starts: Sequence[int], exact: bool) -> None:
        """See `Collectors`."""
        known = [*starts, *[0] * len(self.plans)]
        self.plans = resumed(self.plans, known[: len(self.plans)], exact)

    def starts(self) -> list[int]:
        """See `Collectors`."""
        return [plan.start + 1 for plan in self.plans]

    def start_again(self, number: int) -> None:
        """Prepare the restart of a local agent, which begins new episodes."""
        plan = self.plans[number]
        end_episodes(plan.agents, 0)
        self.plans[number] = dataclasses.replace(plan, start=plan.start + 1, exact=False)

    def collect_round(self, wait: Callable[[], None]) -> None:
        """Do nothing: each local agent collects rounds by itself."""

    def save_snapshots(self, number: int) -> None:
        """Do nothing: a local agent's checkpoint has its state."""

    def metrics(self) -> Row:
        """See `Collectors`."""
        return {"worker_restarts": self.restarts}

    def close(self) -> None:
        """Do nothing: `SharedLearners` ends the processes."""
