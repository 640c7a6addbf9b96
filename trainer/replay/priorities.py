"""Prioritized draws from the streams of many writers; the learner's process has all priorities.

Workers only write rows and cursors. Before it draws, the sampler adopts the rows that were published since the last
draw, and drops those that may be overwritten. In between each row of the tree stands for one known transition, so a new
priority is taken only if the row still has that transition.

TorchRL's sampler has its priorities in a C++ segment tree, which does not load with the torch of constraints.txt, and
which must be told of every write. The tree here has the same interface, and works on whole arrays in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler

from trainer.replay.uniform import StreamSampler

FANOUT = 16  # children of a node: they fill two cache lines, and a million rows have five levels
LEAST = 1e-200  # replaces a priority of 0 in a division


class PriorityTree:
    """A tree of sums of non-negative priorities, with `FANOUT` children for each node and operations on index arrays.

    It has the interface of TorchRL's SumSegmentTree. Each change sums all children of a node again, so rounding errors
    do not add up.

    Args:
        size: number of leaves.
    """

    def __init__(self, size: int) -> None:
        sizes = [size]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        padded = [-(-n // FANOUT) * FANOUT for n in sizes]
        self.size = size
        self._sums = [np.zeros(n) for n in padded]  # leaves first, the root last

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """Priorities, float64, of leaves, int64 of any shape."""
        return self._sums[0][index]

    def __setitem__(self, index: np.ndarray, priority: np.ndarray | float) -> None:
        """Set leaves, int64 [n]; for a repeated leaf the last value counts."""
        self._sums[0][index] = priority
        for level in range(1, len(self._sums)):
            index = index // FANOUT
            if level > 1:  # higher up many children share a parent
                index = np.unique(index)
            self._sums[level][index] = self._sums[level - 1].reshape(-1, FANOUT)[index].sum(1)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._sums[-1][0])

    def scan_lower_bound(self, mass: np.ndarray) -> np.ndarray:
        """For each `mass`, float64 [n] in [0, total), the first leaf up to which the sum is larger, int64 [n]."""
        mass, node = mass.copy(), np.zeros(len(mass), np.int64)
        for sums in self._sums[-2::-1]:
            upto = np.cumsum(sums.reshape(-1, FANOUT)[node], axis=1)
            # By rounding a mass at the end may lie beyond the last child with a priority: stay within.
            mass = np.minimum(mass, np.nextafter(upto[:, -1], 0))
            child = (upto <= mass[:, None]).sum(1)
            before = np.take_along_axis(upto, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            mass -= np.where(child > 0, before, 0)
            node = node * FANOUT + child
        return node

    def entropy(self) -> float:
        """Entropy of the draws, `-sum P ln P`, divided by `ln` of the number of leaves: 1 is uniform."""
        leaves = self._sums[0]
        p = leaves[leaves > 0] / max(self.total, np.finfo(float).tiny)
        return float(-(p * np.log(p)).sum() / np.log(len(p))) if len(p) > 1 else 1.0


class PrioritizedStreamSampler(Sampler):
    """Draws transitions in proportion to `priority ** alpha` (Schaul et al. 2016, eq. 1 and section 3.4).

    Args:
        streams: the uniform sampler, for the rows that can be drawn.
        alpha: exponent of priorities.
        beta: exponent of importance weights; changed during training.
        eps: added to every TD error.
        final: the column of this name, bool [rows]: rows that start no transition and have no priority.
        batch_size: B; where several batches are drawn at once, weights are scaled for each batch.

    Attributes:
        first: `first(rows)`: TD errors, float64 [n], of new rows, int64 [n]; None: the largest TD error so far.
    """

    prioritized = True

    def __init__(
        self,
        streams: StreamSampler,
        alpha: float,
        beta: float,
        eps: float,
        final: np.ndarray,
        batch_size: int,
    ) -> None:
        super().__init__()
        self.uniform, self.streams, self.cursor = streams, streams.streams, streams.cursor
        self.alpha, self.beta, self.eps = alpha, beta, eps
        self._final, self.batch_size = final, batch_size
        self.first: Callable[[np.ndarray], np.ndarray] | None = None
        self.tree = PriorityTree(self.streams.rows)
        self.largest = 1.0  # TD error; Schaul et al. 2016, algorithm 1
        self._begin = np.zeros(self.streams.num_streams, np.int64)  # the tree knows the times [begin, adopted) of
        self._adopted = np.zeros_like(self._begin)  # each stream
        self.rejected = 0  # priorities that came too late

    def adopt(self) -> None:
        """Add the rows that were published since the last call, and drop those that may be overwritten."""
        begin, end = self.uniform.whole()
        end = np.maximum(end, self._adopted)
        dropped = _ranges(self._begin, np.minimum(begin, self._adopted))
        if len(dropped[0]):
            self.tree[self.streams.index(*dropped)] = 0.0
        stream, time = _ranges(np.maximum(begin, self._adopted), end)
        self._begin, self._adopted = np.maximum(begin, self._begin), end
        if len(stream):
            rows = self.streams.index(stream, time)
            if self.first is None:
                error = np.full(len(rows), self.largest)
            else:
                error = self.first(rows)
                self.largest = max(self.largest, float(error.max()))
            self.tree[rows] = np.where(self._final[rows], 0.0, (error + self.eps) ** self.alpha)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw transitions: their first rows as (stream, time), int64 [count] each.

        Raises:
            RuntimeError: there is no complete transition yet.
        """
        stream, time = self._draw(count)
        again = np.flatnonzero(self._final[self.streams.index(stream, time)])  # set later by `close_episodes`
        while len(again):
            stream[again], time[again] = self._draw(len(again))
            again = again[self._final[self.streams.index(stream[again], time[again])]]
        return stream, time

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As `draw`, but also rows that became final after they were adopted."""
        self.adopt()
        if self.tree.total <= 0:
            raise RuntimeError("the replay holds no whole transition yet")
        rows = self.tree.scan_lower_bound(self.uniform.rng.random(count) * self.tree.total)
        n, ring = self.streams.envs_per_worker, self.streams.ring
        stream, slot = rows // (n * ring) * n + rows % n, rows // n % ring
        begin = self._begin[stream]
        return stream, begin + (slot - begin) % ring  # the time of the transition that the tree has there

    def intact(self, stream: np.ndarray, time: np.ndarray) -> np.ndarray:
        """As `StreamSampler.intact`."""
        return self.uniform.intact(stream, time)

    def weights(self, stream: np.ndarray, time: np.ndarray, batch_size: int) -> np.ndarray:
        """Importance weights `(N P) ** -beta`, divided by the largest of the batch (Schaul et al. 2016, section 3.4).

        Divided by the largest of all rows, the weights of every batch would shrink during training, as one row that is
        hardly ever drawn has a very large weight. Dopamine and dqn_zoo divide by the largest of the batch too.

        Args:
            stream: of the transitions, one batch after another, int64 [n].
            time: of the transitions, int64 [n].
            batch_size: B; n is a multiple of it.

        Returns:
            float32 [n], in (0, 1]; the largest of each batch is 1.
        """
        leaf = self.tree[self.streams.index(stream, time)].reshape(-1, batch_size)
        leaf = np.maximum(leaf, LEAST)  # all are 0 in `StreamReplay.example`
        return ((leaf / leaf.min(1, keepdims=True)) ** -self.beta).ravel().astype(np.float32)

    def update(self, stream: np.ndarray, time: np.ndarray, error: np.ndarray) -> None:
        """Set TD errors, float [n], of transitions that were drawn before; those dropped since are ignored."""
        known = (time >= self._begin[stream]) & (time < self._adopted[stream]) & self.intact(stream, time)
        known &= np.isfinite(error)  # the update ends the run; a resumed run must not have them
        self.rejected += int(len(known) - np.count_nonzero(known))
        if known.any():
            error = error[known].astype(np.float64)
            self.tree[self.streams.index(stream[known], time[known])] = (error + self.eps) ** self.alpha
            self.largest = max(self.largest, float(error.max()))

    def sample(self, storage, batch_size: int) -> tuple[Tensor, dict]:
        """Draw as TorchRL's samplers: rows of the storage, their (stream, time), and their weights."""
        return self.described(*self.draw(batch_size))

    def described(self, stream: np.ndarray, time: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """As `StreamSampler.described`, with importance weights.

        If the number of rows is no multiple of the batch size, all rows are one batch.
        """
        index, info = self.uniform.described(stream, time)
        size = len(time) if len(time) % self.batch_size else self.batch_size
        return index, {**info, "priority_weight": torch.from_numpy(self.weights(stream, time, size))}

    def metrics(self) -> dict[str, float]:
        """Metrics: entropy of the draws (1 is uniform), largest priority divided by the mean one, beta."""
        leaves = self.tree[np.arange(self.tree.size)]
        known = np.count_nonzero(leaves)
        return {
            "priority_entropy": self.tree.entropy(),
            "priority_max_over_mean": float(leaves.max() * known / self.tree.total) if known else float("nan"),
            "priority_beta": self.beta,
        }

    def state_dict(self) -> dict:
        """Random generator, priorities of all rows, and the times of their transitions."""
        leaves = self.tree[np.arange(self.tree.size)]
        return {
            **self.uniform.state_dict(),
            "priorities": torch.from_numpy(leaves),
            "begin": torch.from_numpy(self._begin.copy()),
            "adopted": torch.from_numpy(self._adopted.copy()),
            "largest": self.largest,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on with the draws of a checkpoint, over the same rows."""
        self.uniform.load_state_dict(state_dict)
        self.largest = state_dict["largest"]
        begin, end = self.uniform.whole()
        if state_dict.get("moved"):  # the layout has changed
            self._begin, self._adopted = begin, np.maximum(begin, end)
        else:
            self._begin, self._adopted = state_dict["begin"].numpy().copy(), state_dict["adopted"].numpy().copy()
        known = np.zeros(self.tree.size, bool)
        known[self.streams.index(*_ranges(self._begin, self._adopted))] = True
        known &= ~self._final
        priorities = state_dict["priorities"].numpy()
        if state_dict.get("moved"):  # rows that had not been adopted have no priority yet
            priorities = np.where(priorities > 0, priorities, (self.largest + self.eps) ** self.alpha)
        self.tree[np.arange(self.tree.size)] = np.where(known, priorities, 0.0)

    def _empty(self) -> None:
        """Do nothing: there is no other state than the cursors."""

    def dumps(self, path) -> None:
        """Not used: checkpoints take the state dict."""
        raise NotImplementedError

    def loads(self, path) -> None:
        """Not used: checkpoints take the state dict."""
        raise NotImplementedError


def _ranges(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (stream, time) with `begin[stream] <= time < end[stream]`, int64 [n] each."""
    count = np.maximum(0, end - begin)
    stream = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return stream, np.arange(len(stream)) - first[stream] + begin[stream]


def moved(sampler: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """A sampler's state for a replay whose row i was row `rows[i]` (-1: none) when it was saved, int64 [rows]."""
    if "priorities" not in sampler:
        return sampler
    priorities = sampler["priorities"].numpy()
    return {**sampler, "priorities": torch.from_numpy(np.where(rows >= 0, priorities[rows], 0.0)), "moved": True}
