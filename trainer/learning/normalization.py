"""Running statistics of an agent's observations and rewards, from the rows that its collectors publish.

The rows stay as the environment gave them. They are normalised by the newest statistics when transitions are sampled
(`trainer.replay.buffer`), so the networks of an update get normalised numbers, and their buffers say mean 0 and
scale 1. Whoever acts gets the statistics as these buffers, with the weights (`trainer.networks.encoders.Flatten`):
collectors, evaluations, opponents and policy files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.config.algorithms import AlgorithmConfig
from trainer.networks.encoders import RETURN_SCALE, RUNNING_MEAN, RUNNING_SCALE, is_normalized
from trainer.replay.buffer import Transitions

EPS = 1e-8  # added to a variance


class Moments:
    """Count, mean and variance of vectors, joined batch by batch (Chan, Golub and LeVeque 1979, eq. 1.5).

    Args:
        size: numbers of a vector.
    """

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)  # squares: sum of (x - mean)^2

    def add(self, vectors: np.ndarray) -> None:
        """Add vectors, [n, size]."""
        if not len(vectors):
            return
        vectors = vectors.astype(np.float64)
        mean, total = vectors.mean(0), self.count + len(vectors)
        difference = mean - self.mean
        self.squares += ((vectors - mean) ** 2).sum(0) + difference**2 * (self.count * len(vectors) / total)
        self.mean += difference * (len(vectors) / total)
        self.count = total

    def begin(self, count: int, mean: Tensor, scale: Tensor) -> None:
        """Take the statistics of others as those of `count` vectors, if there are none yet."""
        if not self.count:
            self.count, self.mean = count, mean.double().cpu().numpy()
            self.squares = count * np.maximum(0, 1 / scale.double().cpu().numpy() ** 2 - EPS)

    @property
    def scale(self) -> np.ndarray:
        """1 / standard deviation, float64 [size]; 1 before the second vector."""
        return 1 / np.sqrt(self.squares / self.count + EPS) if self.count > 1 else np.ones_like(self.mean)

    def state_dict(self) -> dict[str, Any]:
        """All that it knows."""
        return {"count": self.count, "mean": torch.tensor(self.mean), "squares": torch.tensor(self.squares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.count, self.mean, self.squares = state["count"], state["mean"].numpy(), state["squares"].numpy()


class Normalization:
    """The statistics of one agent; nothing where its configuration asks for none.

    Args:
        config: the section `algorithm`.
        transitions: of the agent, which are sampled with the statistics.
        cursor: int64 [S], rows published in each stream; shared with the collectors.

    Attributes:
        observations: moments of each leaf that is normalised, by its name.
        returns: moments of the discounted return so far, which rewards are divided by.
    """

    def __init__(self, config: AlgorithmConfig, transitions: Transitions, cursor: np.ndarray) -> None:
        spec, streams = transitions.spec, transitions.streams
        self._leaves, self._transitions = spec.leaves, transitions
        self.observations = {
            leaf.name: Moments(int(np.prod(leaf.shape))) for leaf in spec.leaves if is_normalized(leaf, config)
        }
        self.returns = Moments(1) if config.normalize_rewards else None
        self._gamma, self._clip = config.gamma, config.normalize_clip
        self._columns, self._streams, self._cursor = transitions.columns, streams, cursor
        self._seen = np.zeros(streams.num_streams, np.int64)  # rows of each stream that were looked at
        self._return = np.zeros(streams.num_streams)  # discounted, of the running episode of each stream
        self.active = bool(self.observations) or self.returns is not None
        self._apply()

    def look(self) -> bool:
        """Take in the rows that were published since the last call; returns whether there were any.

        Rows that start no transition (`final`) are left out. In rounds the rows of a call, and their order, are the
        same whatever the speed of the workers.
        """
        if not self.active:
            return False
        end = self._cursor.copy()
        begin = np.maximum(self._seen, end - self._streams.ring + 1)  # older ones may be overwritten meanwhile
        self._seen = end
        counts = np.maximum(end - begin, 0)
        if not counts.any():
            return False
        # An episode that was cut off because its worker died ends with the row before.
        self._return[self._columns["final"][self._streams.index(np.arange(len(begin)), begin - 1)] & (begin > 0)] = 0.0
        step, stream = np.nonzero(np.arange(counts.max())[:, None] < counts)  # by time, then by stream
        rows = self._streams.index(stream, begin[stream] + step)
        starts = ~self._columns["final"][rows]
        for name, moments in self.observations.items():
            moments.add(self._columns[name][rows[starts]].reshape(-1, len(moments.mean)))
        if self.returns is not None:
            self._look_at_rewards(self.returns, rows, stream, step, starts)
        self._apply()
        return True

    def _look_at_rewards(
        self, returns: Moments, rows: np.ndarray, stream: np.ndarray, step: np.ndarray, starts: np.ndarray
    ) -> None:
        reward, ended = (
            self._columns["reward"][rows],
            self._columns["terminated"][rows] | self._columns["truncated"][rows],
        )
        found = np.empty(len(rows))
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(step)) + 1):  # one step of all streams each
            those = part[starts[part]]
            at = stream[those]
            found[those] = self._return[at] = self._return[at] * self._gamma + reward[those]
            self._return[at[ended[those]]] = 0.0
        returns.add(found[starts][:, None])

    def _apply(self) -> None:
        """Let transitions be sampled with the present statistics."""
        found = {}
        for leaf in self._leaves:
            if (moments := self.observations.get(leaf.name)) is not None:
                mean, scale = (torch.tensor(x, dtype=torch.float32) for x in (moments.mean, moments.scale))
                found[leaf.name] = mean.view(leaf.shape), scale.view(leaf.shape)
        self._transitions.normalized = found
        if self.returns is not None:
            self._transitions.reward_scale = float(self.returns.scale[0])
            self._transitions.reward_clip = self._clip

    def buffers(self) -> dict[tuple[str, str], Tensor]:
        """Values of the networks' buffers, float32, by the last two parts of their names, as ("0", "running_mean")."""
        found = {}
        for number, leaf in enumerate(self._leaves):
            if (moments := self.observations.get(leaf.name)) is not None:
                found[str(number), RUNNING_MEAN] = torch.tensor(moments.mean, dtype=torch.float32)
                found[str(number), RUNNING_SCALE] = torch.tensor(moments.scale, dtype=torch.float32)
        if self.returns is not None:
            found["encoders", RETURN_SCALE] = torch.tensor(self.returns.scale[0], dtype=torch.float32)
        return found

    def published(self, weights: TensorDictBase) -> TensorDictBase:
        """The weights for whoever acts: those of an update, with the statistics in their buffers."""
        if not self.active:
            return weights
        found, buffers = weights.copy(), self.buffers()
        for key, tensor in weights.items(True, True):
            if (value := buffers.get(key[-2:])) is not None:
                found.set(key, value.to(tensor.device))
        return found

    def take_out(self, weights: Sequence[TensorDictBase], count: int) -> None:
        """Take the statistics out of the weights of a policy, whose buffers become those of an update.

        Args:
            weights: of the network, and of its target network if it has one.
            count: frames that they count as, where there are no statistics yet.
        """
        found: dict[tuple[str, str], Tensor] = {}
        for key, tensor in [item for tree in reversed(weights) for item in tree.items(True, True)]:
            if key[-1] in (RUNNING_MEAN, RUNNING_SCALE, RETURN_SCALE):
                found[key[-2:]] = tensor.clone()
                tensor.fill_(float(key[-1] != RUNNING_MEAN))
        for number, leaf in enumerate(self._leaves):
            if (moments := self.observations.get(leaf.name)) is not None:
                moments.begin(count, found[str(number), RUNNING_MEAN], found[str(number), RUNNING_SCALE])
        if self.returns is not None:
            scale = found["encoders", RETURN_SCALE].reshape(1)
            self.returns.begin(count, torch.zeros_like(scale), scale)
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """All statistics, and where each stream stands."""
        return {
            "observations": {name: moments.state_dict() for name, moments in self.observations.items()},
            "returns": None if self.returns is None else self.returns.state_dict(),
            "seen": torch.from_numpy(self._seen.copy()),
            "return": torch.from_numpy(self._return.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`. With another layout, or without its rows, episodes are counted from new rows on."""
        for name, moments in self.observations.items():
            moments.load_state_dict(state["observations"][name])
        if self.returns is not None:
            self.returns.load_state_dict(state["returns"])
        seen = state["seen"].numpy()
        if len(seen) == len(self._cursor) and (seen <= self._cursor).all():
            self._seen, self._return = seen.copy(), state["return"].numpy().copy()
        else:
            self._seen, self._return = self._cursor.copy(), np.zeros(len(self._cursor))
        self._apply()
