"""The link between a worker and its learners: all that the worker writes for them and reads from them.

A rollout uses only these methods. `trainer.roles.shared_memory` has the link for learners on the same machine; learners
on another machine would need only another link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from trainer.envs.world import Observation


class AgentLink(Protocol):
    """Link between a worker with N sub-environments and the learner of one agent.

    A row is written in three parts, in the order of a vector step.
    """

    @property
    def time(self) -> int:
        """Number of rows written for each sub-environment."""

    def write_observation(self, observation: Observation, present: np.ndarray, age: np.ndarray) -> None:
        """Begin a row for each sub-environment.

        Args:
            observation: what the agent acts on, arrays [N, ...]; they are copied.
            present: bool [N], whether the row starts a transition.
            age: int32 [N], steps since the episode's first observation.
        """

    def write_action(self, action: np.ndarray, values: np.ndarray, epsilon: float) -> None:
        """Write the rows' actions, [N, *shape], the values behind them, float32 [N, A], and the mean epsilon."""

    def write_step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, frames: int) -> None:
        """Complete and publish the rows: float32 [N], bool [N], bool [N]; `frames` of them start a transition."""

    def write_episodes(self, returns: np.ndarray, lengths: np.ndarray, info: Sequence[Mapping[str, float]]) -> None:
        """Report episodes that have ended: float64 [n], int32 [n], and the n scalars of their last `info` by name."""

    def read_weights(self, flat: Tensor) -> None:
        """Copy the newest weights into a tensor, float32 [numel], if they are new; does not wait."""

    def weights_reader(self) -> Callable[[Tensor], object]:
        """A function that does the same for other copies of the weights, as an opponent has."""

    def frames(self) -> int:
        """Number of the agent's transitions so far, of all workers."""

    def may_collect(self, frames: int) -> bool:
        """Whether the agent may collect more after `frames` frames."""

    def round_frames(self) -> int:
        """Number of the agent's transitions at the beginning of the round (sync)."""

    def episode_actions(self, age: np.ndarray) -> list[np.ndarray]:
        """The actions of the running episodes from the rows, [steps, *shape] each; `age` as in `write_observation`.

        Raises:
            ValueError: the first rows of an episode are overwritten.
        """


class WorkerLink(Protocol):
    """Link between a worker and the main process."""

    def begin(self) -> None:
        """Report that the worker's process is there."""

    def connect(self) -> Sequence[AgentLink]:
        """The links to the learners of the worker's agents, in their order."""

    def starting(self) -> None:
        """Give a sign of life before making environments; the next one may take long."""

    def alive(self) -> None:
        """Give a sign of life."""

    def waited(self, seconds: float) -> None:
        """Give a sign of life, and count the time of a wait for a limit or a command."""

    def fail(self, text: str) -> None:
        """Report an error with its traceback."""

    def close(self) -> None:
        """Report that the environments are closed."""

    def stopping(self) -> bool:
        """Whether the worker must return."""

    def round_due(self) -> bool:
        """Whether the worker must collect a round (sync)."""

    def round_done(self) -> None:
        """Report that the round is collected."""

    def snapshot_due(self) -> int:
        """Number of the snapshot of the worker's state that the main process asks for; 0 for none."""

    def snapshot_done(self, number: int) -> None:
        """Report that the snapshot is saved, or that saving it failed."""
