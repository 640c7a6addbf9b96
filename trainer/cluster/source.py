"""A node's end of the link: it obeys orders by writing onto the node's boards, and reports what its workers wrote.

The node's boards have the size of the whole run, so numbers of workers, seeds and exploration are those of the run. Its
streams are short rings: a worker waits where its ring would overwrite rows that are not reported yet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.cluster.exchange import LOCAL_RING, Block, Orders, Report, Standing, packed
from trainer.config.sections import BLOCK, Config
from trainer.envs import EnvSpec
from trainer.memory.boards import EPISODES_KEPT, INFO_KEPT, STOP, ControlBoard
from trainer.replay.streams import worker_rows
from trainer.roles.agents import AgentPlan, plan_agents

LATE = 4  # vector steps that a worker may make after it has looked at its limit


class Source:
    """Reads the streams and boards of a node's workers.

    Args:
        plan: of the agent on this node, with short streams.
        control: control board of this node.
        standing: counts from which the node's workers go on.
    """

    def __init__(self, plan: AgentPlan, control: ControlBoard, standing: Sequence[Standing]) -> None:
        self._plan, self._board, self._control = plan, plan.board, control
        self.workers = [each.worker for each in standing]
        self._rows = {worker: worker_rows(plan.storage, plan.streams, worker) for worker in self.workers}
        self._sent = dict.fromkeys(self.workers, 0)  # rows of each stream that were reported
        self._episodes = {each.worker: each.episodes_done for each in standing}
        self._starts = {each.worker: each.start for each in standing}
        self._closing: dict[int, tuple[int, int]] = {}  # time at which another worker goes on, and its start
        self._granted, self._compressed = 0, plan.config.cluster.compression == "zlib"
        others = [worker for worker in range(plan.streams.num_workers) if worker not in self._sent]
        self._elsewhere = others[0] if others else None
        for each in standing:
            self._board.frames[each.worker], self._board.info_names[each.worker] = each.frames, each.info_names
            self._board.episodes_done[each.worker] = each.episodes_done
            control.rounds_done[each.worker] = each.rounds_done

    def obey(self, orders: Orders) -> None:
        """Write the learner's fields; weights and limits first, as the round lets workers begin."""
        board, control = self._board, self._control
        if self._elsewhere is not None:
            board.frames[self._elsewhere] = orders.elsewhere
        if orders.weights is not None:
            self._plan.weights.take(orders.version, orders.weights)
        self._granted = orders.granted
        board.schedule_frames[0] = orders.schedule_frames
        self.renew_limit()
        control.round[0] = orders.round
        if orders.stop:
            control.command[0] = STOP

    def renew_limit(self) -> None:
        """Let workers collect up to the grant, and as far as each ring can hold what one worker alone may collect."""
        board, streams = self._board, self._plan.streams
        mine = int(board.frames[self.workers].sum())
        unsent = max(self._upto(worker) - sent for worker, sent in self._sent.items())
        room = max(0, streams.ring - unsent - LATE) * streams.envs_per_worker // 2  # a frame may take two rows
        may = mine + max(0, room - len(self.workers) * streams.envs_per_worker)
        board.frame_limit[0] = board.total_frames() - mine + min(self._granted, may)

    def pending(self) -> int:
        """Most vector steps of a worker that are not reported yet."""
        return max(self._upto(worker) - sent for worker, sent in self._sent.items())

    def round_complete(self) -> bool:
        """Whether all workers have collected the present round (sync)."""
        return bool((self._control.rounds_done[self.workers] >= self._control.round[0]).all())

    def _upto(self, worker: int) -> int:
        return int(self._board.cursor[self._plan.streams.streams_of(worker)].min())

    def replaced(self, starts: Mapping[int, int]) -> None:
        """Note which workers take the place of others, whose episodes were ended, before these write a row.

        Args:
            starts: number of starts of each worker.
        """
        for worker in self.workers:
            if starts[worker] != self._starts[worker] and worker not in self._closing:
                self._closing[worker] = self._upto(worker), starts[worker]

    def report(self, number: int, events: Sequence[tuple[str, str]] = ()) -> Report:
        """What the workers wrote since the last report.

        Args:
            number: of the orders that it answers.
            events: (role, sentence) of what happened.
        """
        blocks = [self._block(worker) for worker in self.workers]
        columns = {
            name: np.concatenate([self._part(block, name) for block in blocks]) for name in self._rows[self.workers[0]]
        }
        for block in blocks:
            self._sent[block.worker] += block.count
        self.renew_limit()
        return Report(number, blocks, packed(columns) if self._compressed else columns, list(events))

    def _block(self, worker: int) -> Block:
        board, control = self._board, self._control
        rounds, frames = int(control.rounds_done[worker]), int(board.frames[worker])  # before the rows that they count
        done = int(board.episodes_done[worker])
        upto, begin = self._upto(worker), self._sent[worker]
        end = min(upto, begin + BLOCK)
        if worker in self._closing:
            time_of_closing, start = self._closing[worker]
            end = min(end, time_of_closing)
            if end == time_of_closing:
                self._starts[worker] = start  # the report after this one has the rows of its successor
                del self._closing[worker]
        new = min(done - self._episodes[worker], EPISODES_KEPT)
        self._episodes[worker] = done
        slots = np.arange(done - new, done)
        return Block(
            worker, begin, end - begin, self._starts[worker], frames, int(board.version[worker]),
            float(board.epsilon[worker]), done, board.episodes[worker, slots % EPISODES_KEPT].copy(),
            board.info[worker, slots[-INFO_KEPT:] % INFO_KEPT].copy(), board.info_names[worker].copy(),
            rounds if end == upto else min(rounds, int(control.round[0]) - 1), float(control.waited_s[worker]),
            int(control.pid[worker]), int(control.closed[worker]), time.monotonic() - float(control.heartbeat[worker]),
        )  # fmt: skip

    def _part(self, block: Block, name: str) -> np.ndarray:
        """A copy-free view of a block's rows where the ring does not wrap."""
        rows, ring = self._rows[block.worker][name], self._plan.streams.ring
        slot = block.begin % ring
        if slot + block.count <= ring:
            return rows[slot : slot + block.count]
        return np.concatenate([rows[slot:], rows[: slot + block.count - ring]])


def plan_node(config: Config, world: Sequence[tuple[str, EnvSpec]], folder: Path, workers: Sequence[int]) -> AgentPlan:
    """The plan of the agent on a node: that of the run, with short streams, of which these workers' have disk space.

    Args:
        config: of the run.
        world: name and spec of its agent.
        folder: for the node's files.
        workers: numbers of the node's workers.
    """
    collector, schedule, ring = config.collector, config.schedule, LOCAL_RING
    assert collector.num_workers is not None  # `config` is resolved
    streams = collector.num_workers * collector.envs_per_worker
    if schedule.kind.rounds:  # workers make a whole round without a look at their limit
        ring = max(ring, (schedule.frames_per_round or 0) // streams + 2 * BLOCK)
    local = replace(config, replay=replace(config.replay, capacity_frames=ring * streams, scratch_dir=None))
    (plan,) = plan_agents(local, world, folder, folder / "scratch", workers)
    plan.folder.rmdir()  # nothing is saved on a node
    return plan
