"""The gateway: to the learner it is a collector worker whose environment is the network.

Runs in: a process of the main one.
Receives: rows, counts and episodes of the nodes (`trainer.cluster.exchange`); limits and commands on the boards.
Sends: orders and weights to the nodes through sockets; sentences about nodes to the main process through a pipe.
Waits for: calls and reports of the nodes.
Stops when: it is told to on the control board, and the nodes have ended; its parent dies.
A node that is lost has its open episodes ended, and another one takes its workers' places.
"""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from trainer.cluster import line
from trainer.cluster.code import code, difference
from trainer.cluster.exchange import LOCAL_RING, Failed, Hello, Orders, Refusal, Report, Start, receive, send
from trainer.cluster.grants import grant
from trainer.cluster.nodes import SILENT_S, START_S, Node, Slot, figures, name_of, vacate, welcome
from trainer.cluster.placing import Places
from trainer.cluster.sink import OutOfOrder, Sink
from trainer.config.registries import CLUSTERS, registered
from trainer.config.sections import Config
from trainer.host.errors import one_too_many
from trainer.host.signals import obey_parent
from trainer.memory.boards import ControlBoard
from trainer.memory.pulse import Silence, signs_of
from trainer.roles import child
from trainer.roles.agents import AgentPlan
from trainer.telemetry.metrics import EverySeconds

IN_FLIGHT = 2  # orders to a node that it has not answered
POLL_S = 0.02  # most time without a look at the commands
CLOSE_S = 20.0  # most time for the nodes to end at the end of the run
WEIGHTS_EVERY_S = 0.05  # least time between two versions of the weights for a node (async)
WEIGHTS_RATE = 20e6  # most bytes of weights per second for a node, on average
TELL_EVERY_S = 1.0  # between two messages with figures
CONNECT_AGAIN_S = 2.0  # between two attempts to reach a cluster that was there before
# Of a line that ended within a message, too.
BROKEN = (EOFError, OSError, pickle.UnpicklingError, AttributeError, LookupError, TypeError, ValueError)


def run(
    plan: AgentPlan, control: ControlBoard, config: Config, workers: Sequence[Sequence[int]], starts: Sequence[int],
    again: bool, pulse: Tensor, pipe: Connection,
) -> None:  # fmt: skip
    """Body of the process.

    It sends (kind, value) through the pipe: "up" and "lost" with a sentence, "event" with role and sentence, "starts"
    with the number of starts of each worker, "figures" with metrics, "refused" with a sentence about what nothing
    will mend and a traceback, and "error" with a text of `trainer.host.errors.error_text`.

    Args:
        plan: of the agent.
        control: the control board.
        config: of the run.
        workers: numbers of each node's workers.
        starts: number of starts of each worker.
        again: whether it takes the place of another one.
        pulse: signs of life, see `trainer.memory.pulse`.
        pipe: to the main process.
    """
    child.begin(config, "gateway")
    beat, _ = signs_of(pulse)
    with child.reporting(pipe):
        places = _places(config, again, control, pipe, beat)
        if places is None:
            return
        obey_parent()  # Ray has taken the signals
        gateway = Gateway(plan, control, config, workers, starts, places, pipe.send)
        try:
            while not control.stopping():
                gateway.turn()
                beat()
            deadline = time.monotonic() + CLOSE_S
            while gateway.ending() and time.monotonic() < deadline:
                beat()
        finally:
            gateway.close()


def _places(
    config: Config, again: bool, control: ControlBoard, pipe: Connection, beat: Callable[[], None]
) -> Places | None:
    """The machines of the cluster; None if there is none, which the main process is told, or the run ends."""
    place, said = registered(CLUSTERS, config.cluster.name), False
    while not control.stopping():
        try:
            places: Places = place(config.cluster.address)
            return places
        except ConnectionError as error:
            if not again:
                pipe.send(("refused", (str(error), "")))
                return None
            if not said:
                pipe.send(("event", ("gateway", f"{error}; it is tried again and again, and learning goes on")))
                said = True
        beat()
        time.sleep(CONNECT_AGAIN_S)
    return None


class Gateway:
    """The nodes of a run, and the sink of their rows.

    Args:
        plan, control, config, workers, starts: as of `run`.
        places: the machines.
        tell: takes a message for the main process.
    """

    def __init__(
        self, plan: AgentPlan, control: ControlBoard, config: Config, workers: Sequence[Sequence[int]],
        starts: Sequence[int], places: Places, tell: Callable[[Any], None],
    ) -> None:  # fmt: skip
        self._plan, self._board, self._control, self._config = plan, plan.board, control, config
        self._starts, self._tell, self._key, self._code = list(starts), tell, secrets.token_bytes(32), code()
        self._slots = [Slot(list(each)) for each in workers]
        self._places, self._problem, self._begun = places, "", False
        self._sink, self._nodes, self._granted = Sink(plan, control), dict[int, Node](), dict[int, int]()
        self._reader, self._flat = plan.weights.reader(), torch.zeros(plan.weights.numel)
        self._weights_every = max(WEIGHTS_EVERY_S, 4 * plan.weights.numel / WEIGHTS_RATE)
        self._listener = line.listen(places.host)
        self._tell_every = EverySeconds(TELL_EVERY_S)

    def turn(self) -> None:
        """Fill free places, take calls and reports, send new orders, and look who is gone."""
        self._place()
        while (call := line.accept(self._listener, self._key)) is not None:
            self._begin(*call)
        self._listen(self._take)
        for node in list(self._nodes.values()):
            self._look(node)
        if self._tell_every.crossed():
            up = [(node, self._collected(node)) for node in self._nodes.values() if node.up]
            self._tell(("figures", figures(up)))

    def _place(self) -> None:
        for number, slot in enumerate(self._slots):
            if number not in self._nodes and time.monotonic() >= slot.again_at:
                call = {"address": self._listener.getsockname()[:2], "key": self._key.hex(), "number": number}
                if (placed := self._places.place(number, call)) is not None:
                    self._nodes[number] = Node(number, slot.workers, placed)
        if (problem := self._places.problem()) != self._problem:
            self._problem = problem
            self._tell(("event", ("gateway", problem or "Ray's head answers again")))

    def _listen(self, take: Callable[[Node], None]) -> None:
        """Call `take` with each node of which a message has come, and wait a moment for the first one."""
        lines = {node.line: node for node in self._nodes.values() if node.line is not None}
        for heard in wait([self._listener, *lines], POLL_S):
            if heard in lines:
                take(lines[heard])  # type: ignore[index]

    def _begin(self, hello: Hello, caller: Connection) -> None:
        """Answer a call: a node that is welcome gets its first orders."""
        node = self._nodes.get(hello.number)
        if node is None or node.line is not None:
            line.close(caller)  # a process that was given up
            return
        node.hello, node.line = hello, caller
        node.heard, node.silence = time.monotonic(), Silence(START_S)
        try:
            if other := difference(self._code, hello.code):
                text = f"{name_of(node)} has other code ({other}): install the same everywhere"
                send(caller, Refusal(text))
                self._tell(("refused", (text, "")))
                return
            standing = self._sink.attach(node.workers, [self._starts[worker] for worker in node.workers])
            self._granted[node.number] = self._collected(node)
            send(caller, Start(self._config, [(self._plan.name, self._plan.spec)], standing))
            for _ in range(IN_FLIGHT):
                self._order(node)
        except OSError as error:
            self._lose(node, str(error))

    def _hear(self, node: Node) -> Any:
        """The message that has come; None if the line is broken, and the node lost."""
        assert node.line is not None
        try:
            message, count = receive(node.line)
        except BROKEN as error:
            self._lose(node, f"the line to it broke ({error})" if str(error) else "it closed the line")
            return None
        node.heard, node.received = time.monotonic(), node.received + count
        return message

    def _take(self, node: Node) -> None:
        """Take a message; a report is followed by the next orders, so that the node works meanwhile."""
        message = self._hear(node)
        try:
            if isinstance(message, Failed):
                self._lose(node, message.text, True, message.traceback)
            elif isinstance(message, Report):
                self._write(node, message)
                self._order(node)
        except (OSError, OutOfOrder) as error:
            self._lose(node, str(error))

    def _write(self, node: Node, report: Report) -> None:
        """Write the rows of a report that follows the last one, and pass on what happened."""
        if report.number != node.answered:
            raise OutOfOrder(f"report {report.number} came in place of {node.answered}")
        node.answered += 1
        node.round_trip_s = node.heard - node.asked_at.popleft()
        self._sink.write(report)
        if not node.up:
            node.up, node.silence, self._begun = True, Silence(SILENT_S), True
            node.counted, node.counted_at = self._collected(node), time.monotonic()
            self._tell(("up", welcome(node)))
        for role, text in report.events:
            self._tell(("event", (role, f"node {node.number}: {text}")))
        for block in report.blocks:
            if block.start != self._starts[block.worker]:
                self._starts[block.worker] = block.start
                self._tell(("starts", list(self._starts)))

    def _collected(self, node: Node) -> int:
        return int(self._board.frames[node.workers].sum())

    def _order(self, node: Node) -> None:
        """Send orders. The round is read before the weights, which were published before it began."""
        assert node.line is not None
        board, control, number = self._board, self._control, node.number
        turn, frames_before, total = int(control.round[0]), int(board.schedule_frames[0]), board.total_frames()
        collected = {other: self._collected(self._nodes[other]) for other in self._granted}
        most = LOCAL_RING * self._plan.streams.envs_per_worker * len(node.workers)
        self._granted[number] = grant(number, int(board.frame_limit[0]), total, collected, self._granted, most)
        weights, now = None, time.monotonic()
        if self._config.schedule.kind.rounds or now >= node.weights_at + self._weights_every:
            self._reader.pull(self._flat)
            if self._reader.version != node.version:
                weights, node.version, node.weights_at = self._flat.numpy(), self._reader.version, now
        orders = Orders(
            node.sent, self._granted[number], total - collected[number], frames_before, turn, node.version, weights,
            control.stopping(),
        )  # fmt: skip
        node.sent += 1
        node.asked_at.append(now)
        send(node.line, orders)

    def _look(self, node: Node) -> None:
        """Look whether a node is there that sends nothing."""
        if node.line is None and (ended := node.placed.poll()) is not None:
            self._lose(node, ended.how, ended.by_itself)
        elif node.line is None and node.placed.waiting():
            node.heard = time.monotonic()
        elif node.silence.too_long(node.heard):
            self._lose(node, f"nothing was heard of it for {node.silence.silent_s:.0f} s")

    def _lose(self, node: Node, why: str, its_fault: bool | None = None, traceback: str = "") -> None:
        """End the episodes of a node that is gone, and let another one take its place soon.

        A machine may come and go as often as it likes; a node that fails by itself may do so as often as `faults`
        allows. One that never collected has failed by itself, unless `its_fault` says otherwise; if it says that the
        first one has, others would, too.
        """
        text, then = f"{name_of(node)} is lost: {why}", "another node takes its place"
        node.placed.kill()
        del self._nodes[node.number]
        if node.line is not None:
            line.close(node.line)
        if self._granted.pop(node.number, None) is not None:
            self._sink.detach(node.workers)
            then = f"its {len(node.workers) * self._plan.streams.envs_per_worker} streams end, {then}, the others go on"
            for worker in node.workers:
                self._starts[worker] += 1
            self._tell(("starts", list(self._starts)))
        slot = self._slots[node.number]
        vacate(slot, node.up)
        counts = not node.up if its_fault is None else its_fault
        often = one_too_many(slot.failures, self._config.faults) if counts else None
        if often is not None or (its_fault and not self._begun):
            self._tell(("refused", (f"{text}{often or ''}", traceback)))
        else:
            self._tell(("lost", f"{text}; {then}"))

    def ending(self) -> bool:
        """Tell the nodes to stop, and take their last messages; whether one of them still runs."""
        self._listen(self._take_last)
        for node in list(self._nodes.values()):
            if node.line is None or not node.up:
                node.placed.kill()
                del self._nodes[node.number]
        return bool(self._nodes)

    def _take_last(self, node: Node) -> None:
        """Take a message of a node that is to end, which closes its line at last."""
        assert node.line is not None
        try:
            if isinstance(receive(node.line)[0], Report):
                self._order(node)  # to stop: what it was ordered before the end it has reported
        except BROKEN:
            line.close(node.line)
            node.line = None

    def close(self) -> None:
        """End the nodes that still run, and leave the cluster."""
        for node in self._nodes.values():
            node.placed.kill()
        self._listener.close()
        self._places.close()
