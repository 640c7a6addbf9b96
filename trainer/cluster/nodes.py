"""What the gateway knows of a node, and how it speaks of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from trainer.cluster.exchange import Hello
from trainer.cluster.placing import Placed
from trainer.memory.pulse import Silence

CALL_S = 120.0  # most time for a node's process to start and to call
START_S = 60.0  # most time without a sign of life of a node whose workers start
SILENT_S = 8.0  # the same of one that collects
AGAIN_S, LONGEST_S = 1.0, 30.0  # time until a lost node's place is filled; it doubles while no node collects there


@dataclass
class Slot:
    """A place for a node, with its part of the workers.

    Args:
        workers: their numbers.
        again_at: when a node may begin there.
        in_vain: nodes one after another that were lost before they collected.
        failures: times of nodes that failed by themselves, see `trainer.host.errors.one_too_many`.
    """

    workers: list[int]
    again_at: float = 0.0
    in_vain: int = 0
    failures: deque[float] = field(default_factory=deque)


def vacate(slot: Slot, up: bool) -> None:
    """Note that the node of a slot is lost; `up` says whether it has collected."""
    slot.in_vain = 0 if up else slot.in_vain + 1
    slot.again_at = time.monotonic() + min(LONGEST_S, AGAIN_S * 2**slot.in_vain)


@dataclass
class Node:
    """A node as the gateway sees it.

    Args:
        number: of the node.
        workers: numbers of its workers.
        placed: its process.
        hello: what it said of itself; None until it has called.
        line: to it; None until it has called.
        up: whether it has sent a report.
        sent: orders sent.
        answered: reports received.
        asked_at: times at which the orders were sent that it has not answered.
        round_trip_s: time from the last answered orders to their report.
        received: bytes since the last figures.
        counted: frames at the last figures.
        counted_at: when these were.
        version: of the weights that it was sent.
        weights_at: when it was sent them.
        heard: when it was last heard of; before its call: when its process was placed.
        silence: since then.
    """

    number: int
    workers: list[int]
    placed: Placed
    hello: Hello | None = None
    line: Connection | None = None
    up: bool = False
    sent: int = 0
    answered: int = 0
    asked_at: deque[float] = field(default_factory=deque)
    round_trip_s: float = 0.0
    received: int = 0
    counted: int = 0
    counted_at: float = 0.0
    version: int = 0
    weights_at: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    silence: Silence = field(default_factory=lambda: Silence(CALL_S))


def name_of(node: Node) -> str:
    """Name of a node in sentences, with its machine and process."""
    return f"node {node.number} ({node.placed.where}{f', pid {node.hello.pid}' if node.hello else ''})"


def welcome(node: Node) -> str:
    """A sentence about a node that has begun, and about what slows it down."""
    assert node.hello is not None
    cores, workers, nice = node.hello.cores, len(node.workers), node.hello.nice
    text = f"{name_of(node)} collects with {workers} workers on {cores} cores"
    if workers > cores:
        text += f": that is more than it has, set cluster.workers_per_node={max(1, cores - 1)}"
    if nice > 0:
        text += f"; its nice value is {nice}, so other work goes first: start Ray with RAY_worker_niceness=0"
    return text


def figures(nodes: Sequence[tuple[Node, int]]) -> dict[str, float]:
    """Metrics of the nodes that collect, as in `trainer.telemetry.rows`; speeds are those since the last call.

    Args:
        nodes: with the frames of each.
    """
    now, rate, speeds = time.monotonic(), 0.0, {}
    for node, frames in nodes:
        seconds = max(1e-3, now - node.counted_at)
        speeds[f"node_{node.number}_frames_per_s"] = (frames - node.counted) / seconds
        rate += node.received / seconds / 1e6
        node.received, node.counted, node.counted_at = 0, frames, now
    trip = 1e3 * max((node.round_trip_s for node, _ in nodes), default=0.0)
    return {"nodes": len(nodes), "link_mb_per_s": rate, "link_round_trip_ms": trip, **speeds}
