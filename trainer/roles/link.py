"""The link between a worker and its learners: all that a worker writes for them, and all that it reads of them.

A rollout knows these methods and nothing behind them. `trainer.roles.shared_memory` is the link of a worker on the
learners' machine; one whose learners live elsewhere has another value in its place, and differs in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from trainer.envs.world import Observation


class AgentLink(Protocol):
    """Between a worker and one agent's learner; N is the number of the worker's sub-environments.

    A transition's row is written in three parts, in the order of a vector step.
    """

    @property
    def time(self) -> int:
        """Rows that were written for each sub-environment."""

    def write_observation(self, observation: Observation, present: np.ndarray, age: np.ndarray) -> None:
        """Begin a row for each sub-environment.

        Args:
            observation: what the agent acts on, arrays [N, ...]; they are copied.
            present: bool [N], whether the row starts a transition.
            age: int32 [N], steps since the episode's first observation.
        """

    def write_action(self, action: np.ndarray, values: np.ndarray, epsilon: float) -> None:
        """The rows' actions [N, *shape], the values float32 [N, A] behind them, and the mean exploration rate."""

    def write_step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, frames: int) -> None:
        """End and publish the rows, float32 [N] and bool [N]; `frames` of them start a transition."""

    def write_episodes(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Episodes that have ended, float64 [n] and int32 [n]."""

    def read_weights(self, flat: Tensor) -> None:
        """Copy the newest complete weights into float32 [numel], if they are new; waits for nobody."""

    def weights_reader(self) -> Callable[[Tensor], object]:
        """The same for another place that holds weights of its own, as an opponent does."""

    def frames(self) -> int:
        """The agent's transitions until now, by all workers."""

    def may_collect(self, frames: int) -> bool:
        """Whether the learner lets its agent go on after `frames` frames."""

    def round_frames(self) -> int:
        """The agent's transitions at the beginning of the round (sync)."""

    def episode_actions(self, age: np.ndarray) -> list[np.ndarray]:
        """Of the rows that were written: actions since each episode began, [steps, *shape] each; `age` as above.

        Raises:
            ValueError: an episode's first rows are gone.
        """


class WorkerLink(Protocol):
    """Between a worker and the process that gives it orders."""

    def begin(self) -> None:
        """Say that the worker's process is there."""

    def connect(self) -> Sequence[AgentLink]:
        """The links to the learners of the worker's agents, in their order."""

    def starting(self) -> None:
        """A sign of life of a worker that makes its environments, which may take long without another one."""

    def alive(self) -> None:
        """A sign of life."""

    def waited(self, seconds: float) -> None:
        """A sign of life after so long a wait for a limit or an order."""

    def fail(self, text: str) -> None:
        """Leave a traceback behind."""

    def close(self) -> None:
        """Say that the environments are closed."""

    def stopping(self) -> bool:
        """Whether the worker is to return."""

    def round_due(self) -> bool:
        """Whether a round is to be collected (sync)."""

    def round_done(self) -> None:
        """Say that it is."""

    def snapshot_due(self) -> int:
        """Number of the snapshot of the worker's state that is asked for; 0: none is."""

    def snapshot_done(self, number: int) -> None:
        """Say that it is on the disk, or cannot be there."""
