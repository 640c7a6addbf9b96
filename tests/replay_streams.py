"""Streams with random transitions, and a slow reference of what a replay must give for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import flat
from trainer.replay.buffer import StreamReplay, Transitions
from trainer.replay.streams import (
    StreamLayout,
    open_storage,
    row_spec,
    worker_rows,
)
from trainer.replay.uniform import StreamSampler

GAMMA = 0.9
VECTOR = EnvSpec("test", (Leaf("observation", (3,), "float32", "vector"),), DiscreteAction(4))
EVERYTHING = EnvSpec(
    "test",
    (
        Leaf("observation.camera", (4, 3), "uint8", "image", "hw", stack=4),
        Leaf("observation.speed", (2,), "float32", "vector", stack=2),
        Leaf("observation.cell", (1,), "int64", "discrete", nvec=(9,)),
        Leaf("observation.bits", (3,), "bool", "binary"),
    ),
    DiscreteAction(4, has_mask=True),
)
ATARI = EnvSpec("test", (Leaf("observation", (84, 84), "uint8", "image", "hw", stack=4),), DiscreteAction(18))


@dataclass
class Streams:
    """A replay, and every row that was ever written into it: `history[stream][time]`."""

    spec: EnvSpec
    streams: StreamLayout
    cursor: np.ndarray
    storage: Any
    history: list[list[dict[str, Any]]] = field(default_factory=list)

    def replay(self, n_step: int = 1, batch_size: int = 16, seed: int = 0) -> StreamReplay:
        final = self.storage._storage["final"].numpy()
        sampler = StreamSampler(self.cursor, self.streams, n_step, self.spec.stack - 1, seed, final=final)
        return StreamReplay(self.transitions(n_step), sampler, batch_size)

    def transitions(self, n_step: int = 1) -> Transitions:
        columns = {name: column.numpy() for name, column in self.storage._storage.items()}
        return Transitions(self.spec, columns, self.streams, self.cursor, GAMMA, n_step)

    def write(self, worker: int, steps: int, rng: np.random.Generator, end: float = 0.15) -> None:
        """Vector steps of one worker, with random numbers in every column; an episode ends with probability `end`."""
        rows, own = worker_rows(self.storage, self.streams, worker), self.streams.streams_of(worker)
        for _ in range(steps):
            for env, history in enumerate(self.history[own]):
                before = history[-1] if history else None
                final = before is not None and bool(before["terminated"] or before["truncated"])
                first = before is None or before["final"]
                row = {name: random_value(*column, rng) for name, column in row_spec(self.spec).items()}
                ends = not final and rng.random() < end
                row["terminated"] = ends and rng.random() < 0.5
                row["truncated"] = ends and not row["terminated"]
                row["final"] = final
                if "age" in row:
                    row["age"] = 0 if first else before["age"] + 1
                if "action_mask" in row:
                    row["action_mask"][row["action"]] = True  # an illegal one would have a value of minus infinity
                for name, value in row.items():
                    rows[name][len(history) % self.streams.ring, env] = value
                history.append(row)
            self.cursor[own] += 1

    def startable(self, n_step: int) -> set[tuple[int, int]]:
        """Every pair (stream, time) that may be drawn."""
        pairs = set()
        for stream, history in enumerate(self.history):
            end, behind = len(history), self.spec.stack - 1
            oldest = end - self.streams.ring + 1 + behind if end >= self.streams.ring else 0
            pairs |= {(stream, time) for time in range(oldest, end - n_step) if not history[time]["final"]}
        return pairs


def random_value(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    values = {
        "bool": lambda: rng.random(shape) < 0.5,
        "float32": lambda: rng.standard_normal(shape, np.float32),
        "uint8": lambda: rng.integers(0, 256, shape, dtype=np.uint8),
        "int32": lambda: rng.integers(0, 9, shape, dtype=np.int32),
        "int64": lambda: rng.integers(0, 4, shape),
    }
    return values[dtype]()


def make_streams(folder: Path, spec: EnvSpec = VECTOR, workers: int = 2, envs: int = 3, ring: int = 40) -> Streams:
    streams = StreamLayout(workers, envs, ring)
    return Streams(
        spec,
        streams,
        np.zeros(streams.num_streams, np.int64),
        open_storage(spec, streams, folder),
        [[] for _ in range(streams.num_streams)],
    )


def expected_transition(history: list[dict[str, Any]], time: int, n_step: int, spec: EnvSpec) -> dict[Any, Any]:
    """What a transition out of the remembered rows is, step by step."""
    total, steps = 0.0, 0
    while steps < n_step:
        row = history[time + steps]
        total += GAMMA**steps * float(row["reward"])
        steps += 1
        if row["terminated"] or row["truncated"]:
            break
    last, following = history[time + steps - 1], history[time + steps]
    expected = {
        "action": history[time]["action"],
        ("next", "reward"): total,
        ("next", "terminated"): last["terminated"],
        ("next", "truncated"): last["truncated"],
        ("next", "done"): last["terminated"] or last["truncated"],
        "steps_to_next_obs": steps,
    }
    for leaf in spec.leaves:
        expected[leaf.name] = stacked(history, time, leaf)
        expected["next", leaf.name] = stacked(history, time + steps, leaf)
    if spec.action.has_mask:
        expected["action_mask"] = history[time]["action_mask"]
        expected["next", "action_mask"] = following["action_mask"]
    return expected


def stacked(history: list[dict[str, Any]], time: int, leaf: Leaf) -> np.ndarray:
    """The leaf as the policy saw it: frames go through a deque that an episode's first frame fills."""
    if leaf.stack == 1:
        return history[time][leaf.name]
    start = time
    while start > 0 and not history[start - 1]["final"]:
        start -= 1
    frames: deque[np.ndarray] = deque([history[start][leaf.name]] * leaf.stack, maxlen=leaf.stack)
    for row in history[start + 1 : time + 1]:
        frames.append(row[leaf.name])
    return np.stack(frames)


def sampled(replay: StreamReplay, count: int) -> dict[Any, torch.Tensor]:
    """`count` batches that are sampled at once, one behind the other, [count * B, ...]."""
    return flat(replay.sample(count * replay.batch_size))


def assert_right(batch: dict[Any, torch.Tensor], made: Streams, n_step: int) -> int:
    """Compare every row of a batch [B, ...] with its reference; returns how many."""
    columns = {key: tensor.numpy() for key, tensor in batch.items()}
    startable = made.startable(n_step)
    for i, (stream, time) in enumerate(zip(columns["stream"].tolist(), columns["time"].tolist(), strict=True)):
        assert (stream, time) in startable
        for key, value in expected_transition(made.history[stream], time, n_step, made.spec).items():
            if key == ("next", "reward"):
                assert columns[key][i, 0] == pytest.approx(value, rel=1e-6, abs=1e-6), (stream, time)
            elif key != "steps_to_next_obs" or n_step > 1:
                assert np.array_equal(columns[key][i].reshape(np.shape(value)), value), (key, stream, time)
    assert np.array_equal(columns["index"], made.streams.index(columns["stream"], columns["time"]))
    return len(columns["stream"])
