"""A worker's link to learners on the same machine: the replay's rows, the agents' boards and the control board.

Nothing here waits or takes a lock; every field has one writer, see `trainer.memory`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from trainer.envs.faults import warn
from trainer.envs.world import Observation
from trainer.memory.boards import INFO_KEPT, MOST_INFO, ControlBoard
from trainer.replay.streams import worker_rows
from trainer.roles.agents import AgentPlan


class SharedMemoryAgentLink:
    """An `AgentLink` in shared memory.

    Args:
        plan: of the agent.
        worker: number of the worker.
    """

    def __init__(self, plan: AgentPlan, worker: int) -> None:
        self.rows = worker_rows(plan.storage, plan.streams, worker)
        self._board, self._worker, self._ring = plan.board, worker, plan.streams.ring
        self._weights, self._reader = plan.weights, plan.weights.reader()
        self._rows_of_envs = np.arange(plan.streams.envs_per_worker)
        self._cursor = plan.board.cursor[plan.streams.streams_of(worker)]
        self._by_episodes = plan.config.schedule.episodes_per_update is not None
        self._columns: dict[str, int | None] = {
            name: column for column, name in enumerate(plan.board.names_of_info(worker))
        }  # of scalars in `info`; a restarted worker has those of the one before
        self._keeps_age, self._keeps_values = "age" in self.rows, "value_best" in self.rows
        self.time = int(self._cursor[0])

    def write_observation(self, observation: Observation, present: np.ndarray, age: np.ndarray) -> None:
        """See `AgentLink`."""
        rows, i = self.rows, self.time % self._ring
        for name, array in observation.items():
            rows[name][i] = array
        np.logical_not(present, out=rows["final"][i])
        if self._keeps_age:
            rows["age"][i] = age

    def write_action(self, action: np.ndarray, values: np.ndarray, epsilon: float) -> None:
        """See `AgentLink`."""
        rows, i = self.rows, self.time % self._ring
        rows["action"][i] = action
        self._board.epsilon[self._worker] = epsilon
        if self._keeps_values:
            rows["value_taken"][i] = values[self._rows_of_envs, action]
            rows["value_best"][i] = values.max(1)

    def write_step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, frames: int) -> None:
        """See `AgentLink`."""
        rows, i = self.rows, self.time % self._ring
        rows["reward"][i], rows["terminated"][i], rows["truncated"][i] = reward, terminated, truncated
        self.time += 1
        self._cursor[:] = self.time  # publishes the row, so it comes last
        self._board.frames[self._worker] += frames

    def write_episodes(self, returns: np.ndarray, lengths: np.ndarray, info: Sequence[Mapping[str, float]]) -> None:
        """See `AgentLink`."""
        board, ring = self._board, self._board.episodes[self._worker]
        count = int(board.episodes_done[self._worker])
        slots = (count + np.arange(len(returns))) % len(ring)
        ring[slots, 0], ring[slots, 1], ring[slots, 2] = returns, lengths, board.total_frames()
        for number, scalars in enumerate(info, count):
            self._write_info(number, scalars)
        board.episodes_done[self._worker] = count + len(returns)

    def _write_info(self, number: int, scalars: Mapping[str, float]) -> None:
        row = self._board.info[self._worker, number % INFO_KEPT]
        row[:] = np.nan
        for name, value in scalars.items():
            if name not in self._columns:
                self._columns[name] = self._board.name_info(self._worker, name)
                if self._columns[name] is None:
                    known = ", ".join(self._board.names_of_info(self._worker))
                    warn(
                        f"info holds more than {MOST_INFO} scalars at the end of an episode, and {name} is left out: "
                        f"choose others by logger.info_keys (logged are {known})"
                    )
            if (column := self._columns[name]) is not None:
                row[column] = value

    def read_weights(self, flat: Tensor) -> None:
        """See `AgentLink`."""
        self._board.version[self._worker] = self._reader.pull(flat)

    def weights_reader(self) -> Callable[[Tensor], object]:
        """See `AgentLink`."""
        return self._weights.reader().pull

    def frames(self) -> int:
        """See `AgentLink`."""
        return self._board.total_frames()

    def may_collect(self, frames: int) -> bool:
        """See `AgentLink`."""
        board = self._board
        if frames >= board.frame_limit[0]:
            return False
        return not self._by_episodes or board.total_episodes() < board.episode_limit[0]

    def round_frames(self) -> int:
        """See `AgentLink`."""
        return int(self._board.schedule_frames[0])

    def episode_actions(self, age: np.ndarray) -> list[np.ndarray]:
        """See `AgentLink`."""
        return episode_actions(self.rows, self.time, age)


class SharedMemoryLink:
    """A `WorkerLink` in shared memory; it is pickled to the worker's process before `connect`.

    Args:
        board: the control board.
        agents: of the worker's world.
        worker: number of the worker, 0 .. W - 1.
    """

    def __init__(self, board: ControlBoard, agents: Sequence[AgentPlan], worker: int) -> None:
        self.board, self._agents, self._worker = board, tuple(agents), worker
        self.alive: Callable[[], None] = board.watcher(worker)

    def __getstate__(self) -> tuple[ControlBoard, tuple[AgentPlan, ...], int]:
        return self.board, self._agents, self._worker

    def __setstate__(self, state: tuple[ControlBoard, tuple[AgentPlan, ...], int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def begin(self) -> None:
        """See `WorkerLink`."""
        self.board.pid[self._worker] = os.getpid()

    def connect(self) -> Sequence[SharedMemoryAgentLink]:
        """See `WorkerLink`."""
        return [SharedMemoryAgentLink(agent, self._worker) for agent in self._agents]

    def starting(self) -> None:
        """See `WorkerLink`."""
        self.board.starts(self._worker)

    def waited(self, seconds: float) -> None:
        """See `WorkerLink`."""
        self.board.waited_s[self._worker] += seconds
        self.alive()

    def fail(self, text: str) -> None:
        """See `WorkerLink`."""
        self.board.write_error(self._worker, text)

    def close(self) -> None:
        """See `WorkerLink`."""
        self.board.closed[self._worker] = 1

    def stopping(self) -> bool:
        """See `WorkerLink`."""
        return self.board.stopping()

    def round_due(self) -> bool:
        """See `WorkerLink`."""
        return bool(self.board.round[0] > self.board.rounds_done[self._worker])

    def round_done(self) -> None:
        """See `WorkerLink`."""
        self.board.rounds_done[self._worker] += 1

    def snapshot_due(self) -> int:
        """See `WorkerLink`."""
        number = int(self.board.snapshot[0])
        return number if number > self.board.snapshots_done[self._worker] else 0

    def snapshot_done(self, number: int) -> None:
        """See `WorkerLink`."""
        self.board.snapshots_done[self._worker] = number


def episode_actions(rows: dict[str, np.ndarray], time: int, age: np.ndarray) -> list[np.ndarray]:
    """The actions of each sub-environment's running episode, [steps, *shape] each.

    Args:
        rows: a worker's columns, [ring, N, ...].
        time: number of rows written.
        age: steps of each running episode, [N].

    Raises:
        ValueError: an episode is longer than the ring.
    """
    ring = len(rows["action"])
    if (age >= ring).any():
        raise ValueError("an episode is longer than the part of the replay that holds its actions")
    times = [np.arange(time - steps, time) % ring for steps in age]
    return [rows["action"][slots, i].copy() for i, slots in enumerate(times)]
