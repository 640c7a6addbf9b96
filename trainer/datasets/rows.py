"""Episodes as rows of the replay, and back; `trainer.replay.streams` says what a row is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.envs import EnvSpec
from trainer.replay.streams import Columns, StreamLayout, row_spec


@dataclass(frozen=True)
class Episode:
    """One episode of T steps, or a part of one.

    Args:
        observations: leaves by name, [T + 1, *shape] of one frame each; and `action_mask`, bool [T + 1, A], if the
            environment has masks. The last one follows the last action.
        actions: [T, *shape], numbered from 0.
        rewards: float32 [T].
        terminated: bool [T].
        truncated: bool [T].
    """

    observations: Mapping[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def rows_of(episodes: Sequence[Episode], spec: EnvSpec) -> Columns:
    """The rows of episodes, one after another: T + 1 of each, the last of which is final.

    An episode without an end counts as truncated at its last step, as what follows is not known.

    Args:
        episodes: at least one.
        spec: of the environment.

    Returns:
        The columns of `row_spec(spec)`, [M, ...].
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in row_spec(spec)}
    for episode in episodes:
        steps = len(episode.actions)
        truncated = episode.truncated.copy()
        truncated[-1:] |= ~episode.terminated[-1:]
        rows = {
            **episode.observations,
            "action": _longer(episode.actions),
            "reward": _longer(episode.rewards),
            "terminated": _longer(episode.terminated),
            "truncated": _longer(truncated),
            "final": np.arange(steps + 1) == steps,
            "age": np.arange(steps + 1),
        }
        for name, part in parts.items():
            part.append(rows[name])
    return {name: np.concatenate(parts[name]).astype(dtype, copy=False) for name, (_, dtype) in row_spec(spec).items()}


def episodes_of(
    columns: Columns, streams: StreamLayout, first: np.ndarray, upto: np.ndarray, spec: EnvSpec
) -> Iterator[Episode]:
    """The episodes in the rows of a replay, stream by stream, the oldest first.

    An episode whose beginning was overwritten is left out. One that is going on ends, truncated, with its newest
    observation.

    Args:
        columns: [rows, ...].
        streams: the layout.
        first: time of the oldest row of each worker, int64 [W].
        upto: time after the newest row of each worker, int64 [W].
        spec: of the environment.
    """
    seen = [leaf.name for leaf in spec.leaves] + ["action_mask"] * spec.action.has_mask
    for stream in range(streams.num_streams):
        worker = stream // streams.envs_per_worker
        time = np.arange(first[worker], upto[worker])
        rows = streams.index(np.full(len(time), stream), time)
        final = columns["final"][rows]
        ends = np.flatnonzero(final)
        begins = np.concatenate([[0] if not first[worker] else [], ends + 1]).astype(np.int64)
        for begin in begins:
            later = ends[ends >= begin]
            end = int(later[0]) if len(later) else len(rows) - 1
            if end <= begin:  # absent agents' rows, or a single observation
                continue
            own, steps = rows[begin : end + 1], rows[begin:end]
            truncated = columns["truncated"][steps].copy()
            truncated[-1] |= not columns["terminated"][steps[-1]]
            yield Episode(
                {name: columns[name][own] for name in seen},
                columns["action"][steps],
                columns["reward"][steps],
                columns["terminated"][steps],
                truncated,
            )


def _longer(array: np.ndarray) -> np.ndarray:
    """With one more row of zeros, at which no transition starts."""
    return np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
