"""What a node and the gateway exchange: orders to the node, and a report back.

Boards exist on both sides and every field has one writer, as on one machine: a report has the fields that the node's
workers write, orders have those of the learner and of the main process. Ages travel in place of times, as the clocks of
two machines differ; an age is negative while a worker that starts is given more time.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trainer.config.sections import Config
from trainer.envs import EnvSpec

LOCAL_RING = 512  # rows of a stream on a node, in async
WORTH_PACKING = 2**12  # bytes of a column below which compression saves nothing


@dataclass(frozen=True)
class Hello:
    """The first message of a node.

    Args:
        number: of the node.
        pid: of its process.
        host: name of its machine.
        cores: that its process may use.
        nice: its nice value.
        code: see `trainer.cluster.code`.
    """

    number: int
    pid: int
    host: str
    cores: int
    nice: int
    code: dict[str, str]


@dataclass(frozen=True)
class Start:
    """The answer to a node that is welcome.

    Args:
        config: of the run.
        world: name and spec of its agent.
        standing: of the node's workers.
    """

    config: Config
    world: list[tuple[str, EnvSpec]]
    standing: list[Standing]


@dataclass(frozen=True)
class Refusal:
    """The answer to a node that is not.

    Args:
        text: why, in one sentence.
    """

    text: str


@dataclass(frozen=True)
class Progress:
    """From a node whose workers start, about once a second.

    Args:
        text: how far they are.
    """

    text: str


@dataclass(frozen=True)
class Failed:
    """The last message of a node that has given up.

    Args:
        text: why, in one sentence.
        traceback: of its worker, "" if there is none.
    """

    text: str
    traceback: str


@dataclass(frozen=True)
class Standing:
    """Counts of a worker on the learner's boards, from which the node's worker goes on.

    Args:
        worker: its number.
        frames: transitions collected.
        episodes_done: episodes finished.
        rounds_done: rounds finished (sync).
        info_names: uint8 [MOST_INFO, INFO_BYTES], as on the agent's board.
        start: number of its starts so far.
    """

    worker: int
    frames: int
    episodes_done: int
    rounds_done: int
    info_names: np.ndarray
    start: int


@dataclass(frozen=True)
class Orders:
    """From the gateway to a node.

    Args:
        number: of the exchange with this node, from 0.
        granted: frames up to which the node's workers together may collect, counted from the run's start.
        elsewhere: frames of all other workers.
        schedule_frames: frames at the round's start (sync).
        round: the round that may be collected (sync).
        version: newest version of the weights.
        weights: float32 [numel]; None if the node has this version.
        stop: whether its workers must end.
    """

    number: int
    granted: int
    elsewhere: int
    schedule_frames: int
    round: int
    version: int
    weights: np.ndarray | None = None
    stop: bool = False


@dataclass(frozen=True)
class Block:
    """A worker's part of a report.

    Args:
        worker: its number.
        begin: time of the first row, counted from the node's start.
        count: number of vector steps whose rows are in the report.
        start: number of starts of the worker; a larger one than before closes the open episodes after these rows.
        frames, version, epsilon: as on the agent's board.
        episodes_done: as on the agent's board.
        episodes: float64 [n, 3], the newest ones.
        info: float64 [m, MOST_INFO], of the newest episodes.
        info_names: uint8 [MOST_INFO, INFO_BYTES].
        rounds_done, waited_s, pid, closed: as on the control board.
        age_s: time since the last sign of life, in seconds.
    """

    worker: int
    begin: int
    count: int
    start: int
    frames: int
    version: int
    epsilon: float
    episodes_done: int
    episodes: np.ndarray
    info: np.ndarray
    info_names: np.ndarray
    rounds_done: int
    waited_s: float
    pid: int
    closed: int
    age_s: float


@dataclass(frozen=True)
class Report:
    """From a node to the gateway.

    Args:
        number: of the orders that it answers.
        blocks: of each worker.
        columns: rows of all blocks, one block after another, arrays [sum of counts, N, ...]; see `packed`.
        events: (role, sentence) of what happened on the node.
    """

    number: int
    blocks: list[Block]
    columns: dict[str, Any]
    events: list[tuple[str, str]] = field(default_factory=list)


def send(pipe: Connection, message: Any) -> int:
    """Send a message; its arrays follow as they are in memory, without a copy. Returns the bytes sent."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    filled = [part for part in raw if part.nbytes]
    pipe.send_bytes(pickle.dumps((head, [part.nbytes for part in raw])))
    for part in filled:
        pipe.send_bytes(part)
    return len(head) + sum(part.nbytes for part in filled)


def receive(pipe: Connection) -> tuple[Any, int]:
    """Receive a message that `send` sent, and return it with the bytes received.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    head, sizes = pickle.loads(pipe.recv_bytes())
    parts = [bytearray(pipe.recv_bytes()) if size else bytearray() for size in sizes]
    return pickle.loads(head, buffers=parts), len(head) + sum(sizes)


@dataclass(frozen=True)
class Packed:
    """A compressed array.

    Args:
        data: its bytes, by zlib.
        shape: of the array.
        dtype: of the array.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str


def packed(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The columns with the large ones compressed, at zlib's level 1: frames of Pong become 72 times smaller."""
    return {
        name: Packed(zlib.compress(np.ascontiguousarray(column).data, 1), column.shape, column.dtype.str)
        if column.nbytes >= WORTH_PACKING
        else column
        for name, column in columns.items()
    }


def unpacked(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The columns as they were before `packed`."""
    return {
        name: np.frombuffer(zlib.decompress(column.data), column.dtype).reshape(column.shape)
        if isinstance(column, Packed)
        else column
        for name, column in columns.items()
    }
