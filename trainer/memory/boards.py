"""Shared memory between the processes of a run: the control board, and a board for each agent.

Nothing here sends a message or takes a lock. Every field has one writer; readers poll. A board reaches a worker through
pickling by torch's ForkingPickler, which keeps shared tensors shared. `trainer.memory.weights` is the third board.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from trainer.memory.fields import allocate, float64, int64, shared_fields, uint8

EPISODES_KEPT = 1024  # size of a worker's ring of finished episodes, which the main process reads
INFO_KEPT = 128  # size of a worker's ring of what `info` held at the end of these episodes
MOST_INFO = 16  # most keys of `info` that are kept
INFO_BYTES = 64  # most bytes of such a key
VERSIONS_KEPT = 4096  # size of the ring of published versions
START_S = 60.0  # seconds that a process may take to start, before it can count as hung
ERROR_BYTES = 16_384  # most bytes of a worker's traceback

# Commands in ControlBoard.command
RUN, STOP = 0, 1

MAIN, WORKER, LEARNER = "main", "its worker", "the learner's process"  # who writes


@shared_fields
class ControlBoard:
    """Commands to the collectors and their state, in shared memory.

    Args:
        num_workers: W.
    """

    command = int64((1,), "`RUN` or `STOP`", by=MAIN)
    round = int64((1,), "the round that may be collected (sync)", by=MAIN)
    rounds_done = int64(("W",), "rounds finished (sync)", by=WORKER)
    heartbeat = float64(("W",), "`time.monotonic` of the last sub-environment's step or wait", by=WORKER)
    waited_s = float64(("W",), "seconds spent waiting for a `frame_limit`", by=WORKER)
    pid = int64(("W",), "the worker's process id", by=WORKER)
    snapshot = int64((1,), "number of the last request for the workers' state (sync)", by=MAIN)
    snapshots_done = int64(("W",), "number of the request that was answered", by=WORKER)
    closed = int64(("W",), "whether the worker's environments are closed", by=WORKER)
    error = uint8(("W", ERROR_BYTES), "UTF-8 text of a worker's traceback, padded with zeros", by=WORKER)

    def __init__(self, num_workers: int) -> None:
        allocate(self, W=num_workers)

    def stopping(self) -> bool:
        """Whether the main process wants every process to end."""
        return self.command[0] == STOP

    def lives(self, worker: int) -> None:
        """Give a sign of life of a worker."""
        self.heartbeat[worker] = time.monotonic()

    def watcher(self, worker: int) -> Callable[[], None]:
        """A function that does the same as `lives`, for a hot loop: at a third of its cost."""
        words: Any = self.heartbeat.data
        now = time.monotonic

        def beat() -> None:
            words[worker] = now()

        return beat

    def starts(self, worker: int) -> None:
        """Give a sign of life of a worker that starts, after which the next one may come `START_S` later."""
        self.heartbeat[worker] = time.monotonic() + START_S

    def write_error(self, worker: int, text: str) -> None:
        """Write a traceback for the main process; of a long one the end."""
        data = text.encode(errors="backslashreplace")[-ERROR_BYTES:].ljust(
            ERROR_BYTES, b"\0"
        )  # padded: an earlier error may have been longer
        self.error[worker] = np.frombuffer(data, np.uint8)

    def read_error(self, worker: int) -> str:
        """The traceback that a worker wrote, or ""."""
        return bytes(self.error[worker]).rstrip(b"\0").decode(errors="replace")


@shared_fields
class AgentBoard:
    """Counts of one agent's collectors and learner, in shared memory.

    Args:
        num_workers: W.
        num_streams: S, sub-environments of all workers together.
        block: memory for its fields; None: memory of its own.
    """

    frame_limit = int64((1,), "collectors wait while the agent's frames are not below it", by=LEARNER)
    episode_limit = int64((1,), "the same of episodes, where updates are due for them", by=LEARNER)
    schedule_frames = int64((1,), "frames at the round's start, from which exploration follows (sync)", by=MAIN)
    frames = int64(("W",), "the agent's transitions collected", by=WORKER)
    cursor = int64(("S",), "rows published in a stream, raised after the rows", by=WORKER)
    oldest = int64(("S",), "time of the oldest row that a resumed run found in a stream", by="main, before the start")
    version = int64(("W",), "weights version that a worker acts by", by=WORKER)
    epsilon = float64(("W",), "mean exploration rate of the last vector step", by=WORKER)
    episodes = float64(("W", EPISODES_KEPT, 3), "ring of (return, length, frames at its end)", by=WORKER)
    info = float64(
        ("W", INFO_KEPT, MOST_INFO), "ring of the scalars in `info` at the end of an episode, NaN: none", by=WORKER
    )
    info_names = uint8(
        ("W", MOST_INFO, INFO_BYTES), "UTF-8 names of these scalars, padded with zeros; 0: no more", by=WORKER
    )
    episodes_done = int64(("W",), "episodes finished, raised after the rings", by=WORKER)
    episodes_before = int64((1,), "episodes finished before the run was resumed", by="main, before the start")
    updates = int64((1,), "updates made", by=LEARNER)
    version_updates = int64(
        (VERSIONS_KEPT,), "ring of the updates after which each version of the weights was published", by=LEARNER
    )
    lost_at = int64((1,), "frames after which a resumed run goes on with an empty replay, else 0", by=MAIN)
    learning_rate = float64((1,), "the learning rate that a callback has set; 0: the configuration's", by=MAIN)
    learner_heartbeat = float64((1,), "`time.monotonic` of the learner's last look around", by=LEARNER)
    learner_waited_s = float64((1,), "seconds that the learner had nothing due", by=LEARNER)

    def __init__(self, num_workers: int, num_streams: int, block: Tensor | None = None) -> None:
        allocate(self, block, W=num_workers, S=num_streams)

    def total_frames(self) -> int:
        """The agent's transitions, collected by all workers."""
        return int(self.frames.sum())

    def total_episodes(self) -> int:
        """The agent's finished episodes, of all workers and of the whole run."""
        return int(self.episodes_done.sum() + self.episodes_before[0])

    def learner_lives(self) -> None:
        """Give a sign of life of the learner's process."""
        self.learner_heartbeat[0] = time.monotonic()

    def learner_starts(self) -> None:
        """Give a sign of life of a learner that starts, after which the next one may come `START_S` later."""
        self.learner_heartbeat[0] = time.monotonic() + START_S

    def read_episodes(self, seen: np.ndarray) -> np.ndarray:
        """Read the episodes that have finished since the last call.

        Args:
            seen: number of episodes that were read of each worker, int64 [W]; updated in place.

        Returns:
            float64 [n, 3] as in `episodes`.
        """
        new = []
        for worker, end in enumerate(self.episodes_done.copy()):
            begin = max(int(seen[worker]), int(end) - EPISODES_KEPT)
            new.append(self.episodes[worker, np.arange(begin, end) % EPISODES_KEPT])
            seen[worker] = end
        return np.concatenate(new)

    def names_of_info(self, worker: int) -> list[str]:
        """The names of the scalars in a worker's `info`, in the order of their columns."""
        names = [bytes(name).rstrip(b"\0").decode(errors="replace") for name in self.info_names[worker]]
        return [name for name in names if name]

    def name_info(self, worker: int, name: str) -> int | None:
        """Give another scalar of a worker's `info` a column, and return it; None if there is none left."""
        column = len(self.names_of_info(worker))
        if column == MOST_INFO:
            return None
        self.info_names[worker, column] = np.frombuffer(name.encode()[:INFO_BYTES].ljust(INFO_BYTES, b"\0"), np.uint8)
        return column

    def read_info(self, begin: np.ndarray, end: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Read what `info` held at the end of the episodes from `begin` to `end`, numbers of each worker, int64 [W].

        Returns:
            Name and values, float64 [n], of each worker's scalars; of more than `INFO_KEPT` episodes the last ones.
        """
        found = []
        for worker in np.flatnonzero(end > begin).tolist():
            rows = np.arange(max(int(begin[worker]), int(end[worker]) - INFO_KEPT), int(end[worker])) % INFO_KEPT
            for name, values in zip(self.names_of_info(worker), self.info[worker, rows].T, strict=False):
                found.append((name, values[~np.isnan(values)]))
        return found
