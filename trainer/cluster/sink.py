"""The learner's end of the link: it writes the rows of nodes into the replay, as a collector worker does.

Rows come first, then cursors, then counters, so a learner sees published rows only. A block overwrites many rows at a
time, so the sampler stays a block away from the oldest row (`block` in `trainer.replay.uniform`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from trainer.cluster.exchange import Block, Report, Standing, unpacked
from trainer.memory.boards import EPISODES_KEPT, INFO_KEPT, ControlBoard
from trainer.replay.streams import worker_rows
from trainer.roles.agents import AgentPlan, end_episodes


class OutOfOrder(ValueError):
    """A report or a block does not follow the last one."""


class Sink:
    """Writes the blocks of the nodes' workers into an agent's streams and onto the boards.

    Args:
        plan: of the agent.
        control: the control board.
    """

    def __init__(self, plan: AgentPlan, control: ControlBoard) -> None:
        self._plan, self._board, self._control = plan, plan.board, control
        self._streams = plan.streams
        self._rows: dict[int, dict[str, np.ndarray]] = {}
        self._base: dict[int, int] = {}  # cursor at which a worker's time 0 is
        self._next: dict[int, int] = {}  # time of the next block
        self._start: dict[int, int] = {}

    def attach(self, workers: Sequence[int], starts: Sequence[int]) -> list[Standing]:
        """Let a new node write these workers' streams; open episodes in them are ended."""
        board = self._board
        for worker, start in zip(workers, starts, strict=True):
            end_episodes([self._plan], worker)
            self._rows[worker] = worker_rows(self._plan.storage, self._streams, worker)
            self._base[worker] = int(board.cursor[self._streams.streams_of(worker)].max())
            self._next[worker], self._start[worker] = 0, start
        return [
            Standing(
                worker, int(board.frames[worker]), int(board.episodes_done[worker]),
                int(self._control.rounds_done[worker]), board.info_names[worker].copy(), self._start[worker],
            )
            for worker in workers
        ]  # fmt: skip

    def detach(self, workers: Sequence[int]) -> None:
        """End the open episodes of a node that is gone."""
        for worker in workers:
            del self._rows[worker]
            end_episodes([self._plan], worker)
            self._control.pid[worker] = 0

    def write(self, report: Report) -> int:
        """Write a report; returns the rows written.

        Raises:
            OutOfOrder: a block does not begin where the last one ended, or has more rows than a block may have.
        """
        for block in report.blocks:
            if block.worker not in self._rows or block.begin != self._next[block.worker]:
                expected = self._next.get(block.worker)
                raise OutOfOrder(f"rows of worker {block.worker} begin at {block.begin} in place of {expected}")
        first, columns = 0, unpacked(report.columns)
        for block in report.blocks:
            if block.count:
                part = slice(first, first + block.count)
                self._write_rows(block, {name: column[part] for name, column in columns.items()})
                first += block.count
            if block.start != self._start[block.worker]:  # another worker goes on from here, as on its node
                end_episodes([self._plan], block.worker)
                self._start[block.worker] = block.start
            self._write_counts(block)
        return first * self._streams.envs_per_worker

    def _write_rows(self, block: Block, columns: dict[str, np.ndarray]) -> None:
        ring, begin = self._streams.ring, self._base[block.worker] + block.begin
        slot = begin % ring
        fitting = min(block.count, ring - slot)
        for name, rows in self._rows[block.worker].items():
            rows[slot : slot + fitting] = columns[name][:fitting]
            rows[: block.count - fitting] = columns[name][fitting:]
        self._next[block.worker] = block.begin + block.count
        self._board.cursor[self._streams.streams_of(block.worker)] = begin + block.count  # publishes the rows

    def _write_counts(self, block: Block) -> None:
        board, control, worker = self._board, self._control, block.worker
        board.frames[worker], board.version[worker] = block.frames, block.version
        board.epsilon[worker] = block.epsilon
        if block.episodes_done > board.episodes_done[worker]:
            board.info_names[worker] = block.info_names
            for ring, rows, kept in (
                (board.episodes[worker], block.episodes, EPISODES_KEPT), (board.info[worker], block.info, INFO_KEPT),
            ):  # fmt: skip
                ring[np.arange(block.episodes_done - len(rows), block.episodes_done) % kept] = rows
            board.episodes_done[worker] = block.episodes_done
        control.waited_s[worker], control.pid[worker] = block.waited_s, block.pid
        control.closed[worker] = block.closed
        control.heartbeat[worker] = time.monotonic() - block.age_s
        control.rounds_done[worker] = block.rounds_done  # comes last: the main process waits for it
