"""Prioritized draws for the streams of many writers: the learner's process owns all priorities.

Workers write rows and their cursors as ever. Before it draws, the sampler adopts the rows that the cursors have passed
and drops those that are about to be overwritten; between two looks a row of the tree stands for one known transition,
so that a priority that comes back later is taken only if the row still is that transition.

TorchRL's sampler keeps its priorities in a C++ segment tree, which does not load with the torch of constraints.txt, and
expects to see every write. The tree here is array operations on whole batches, with the same interface.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler

from trainer.replay.uniform import StreamSampler

FANOUT = 16  # children of a node: a block of them is two cache lines, and a million rows are five levels
LEAST = 1e-200  # in place of a priority of 0, which nobody divides by


class PriorityTree:
    """Sums of non-negative priorities over nodes of `FANOUT` children, for whole index arrays at once.

    Interface of TorchRL's SumSegmentTree. A node is always the sum of all its children, so that rounding errors do not
    add up over a run.

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
        """Priorities float64 of leaves int64, of any shape."""
        return self._sums[0][index]

    def __setitem__(self, index: np.ndarray, priority: np.ndarray | float) -> None:
        """Set leaves int64 [n]; of one that is named twice the last value holds."""
        self._sums[0][index] = priority
        for level in range(1, len(self._sums)):
            index = index // FANOUT
            if level > 1:  # above it many children share a parent
                index = np.unique(index)
            self._sums[level][index] = self._sums[level - 1].reshape(-1, FANOUT)[index].sum(1)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._sums[-1][0])

    def scan_lower_bound(self, mass: np.ndarray) -> np.ndarray:
        """For each `mass` float64 [n] in [0, total) the first leaf up to which the sum is above it, int64 [n]."""
        mass, node = mass.copy(), np.zeros(len(mass), np.int64)
        for sums in self._sums[-2::-1]:
            upto = np.cumsum(sums.reshape(-1, FANOUT)[node], axis=1)
            # Rounding may put a mass at the very end beyond the last child that has any: stay within.
            mass = np.minimum(mass, np.nextafter(upto[:, -1], 0))
            child = (upto <= mass[:, None]).sum(1)
            before = np.take_along_axis(upto, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            mass -= np.where(child > 0, before, 0)
            node = node * FANOUT + child
        return node

    def entropy(self) -> float:
        """`-sum P ln P` of the draws' distribution over `ln` of how many leaves there are: 1 is uniform."""
        leaves = self._sums[0]
        p = leaves[leaves > 0] / max(self.total, np.finfo(float).tiny)
        return float(-(p * np.log(p)).sum() / np.log(len(p))) if len(p) > 1 else 1.0


class PrioritizedStreamSampler(Sampler):
    """Draws transitions in proportion to `priority ** alpha` (Schaul et al. 2016, eq. 1 and section 3.4).

    Args:
        streams: says which rows are whole, as for uniform draws.
        alpha: exponent of priorities.
        beta: exponent of importance weights; set anew as training goes on.
        eps: added to every TD error.
        final: the column of that name, bool [rows]: rows that start no transition and get no priority.
        batch_size: B: of several batches that are drawn at once, each one's weights are over its own largest.

    Attributes:
        first: `first(rows) -> TD errors` float64 [n] of new rows int64 [n]; None: they get the largest so far.
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
        """Take in the rows that were published since the last call, let go of those that are being overwritten."""
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
        """`count` pairs (stream, time) that start a transition, int64 [count] each.

        Raises:
            RuntimeError: no stream holds a whole transition yet.
        """
        stream, time = self._draw(count)
        again = np.flatnonzero(self._final[self.streams.index(stream, time)])  # a dead writer's: `close_episodes`
        while len(again):
            stream[again], time[again] = self._draw(len(again))
            again = again[self._final[self.streams.index(stream[again], time[again])]]
        return stream, time

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`draw`, among rows too that became final after they were adopted."""
        self.adopt()
        if self.tree.total <= 0:
            raise RuntimeError("the replay holds no whole transition yet")
        rows = self.tree.scan_lower_bound(self.uniform.rng.random(count) * self.tree.total)
        n, ring = self.streams.envs_per_worker, self.streams.ring
        stream, slot = rows // (n * ring) * n + rows % n, rows // n % ring
        begin = self._begin[stream]
        return stream, begin + (slot - begin) % ring  # the one time at this place that the tree knows

    def intact(self, stream: np.ndarray, time: np.ndarray) -> np.ndarray:
        """As :meth:`StreamSampler.intact`."""
        return self.uniform.intact(stream, time)

    def weights(self, stream: np.ndarray, time: np.ndarray, batch_size: int) -> np.ndarray:
        """Importance weights `(N P) ** -beta`, each over the largest of its batch (Schaul et al. 2016, section 3.4).

        Over the largest of all rows, the weights of every batch would shrink as training goes on: one row that is
        hardly ever drawn scales all others down. Dopamine and dqn_zoo divide by the batch's largest too.

        Args:
            stream: of the transitions drawn, int64 [n], one batch behind the other.
            time: likewise.
            batch_size: B; n is a multiple of it.

        Returns:
            float32 [n], in (0, 1]; the largest of each batch is 1.
        """
        leaf = self.tree[self.streams.index(stream, time)].reshape(-1, batch_size)
        leaf = np.maximum(leaf, LEAST)  # all are 0 in an example out of rows that are not written yet
        return ((leaf / leaf.min(1, keepdims=True)) ** -self.beta).ravel().astype(np.float32)

    def update(self, stream: np.ndarray, time: np.ndarray, error: np.ndarray) -> None:
        """New TD errors float [n] of transitions drawn before; those that were let go of meanwhile are left out."""
        known = (time >= self._begin[stream]) & (time < self._adopted[stream]) & self.intact(stream, time)
        known &= np.isfinite(error)  # what ends a run must not end the one that goes on with its checkpoint
        self.rejected += int(len(known) - np.count_nonzero(known))
        if known.any():
            error = error[known].astype(np.float64)
            self.tree[self.streams.index(stream[known], time[known])] = (error + self.eps) ** self.alpha
            self.largest = max(self.largest, float(error.max()))

    def sample(self, storage, batch_size: int) -> tuple[Tensor, dict]:
        """TorchRL's interface: rows of the storage, the pairs they stand for, and their weights."""
        return self.described(*self.draw(batch_size))

    def described(self, stream: np.ndarray, time: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """As :meth:`StreamSampler.described`, with their weights: each over the largest of its batch.

        Where their number is no multiple of the batch size, all of them are one batch.
        """
        index, info = self.uniform.described(stream, time)
        size = len(time) if len(time) % self.batch_size else self.batch_size
        return index, {**info, "priority_weight": torch.from_numpy(self.weights(stream, time, size))}

    def metrics(self) -> dict[str, float]:
        """For the log: the draws' entropy (1 is uniform), and the largest priority over the mean one."""
        leaves = self.tree[np.arange(self.tree.size)]
        known = np.count_nonzero(leaves)
        return {
            "priority_entropy": self.tree.entropy(),
            "priority_max_over_mean": float(leaves.max() * known / self.tree.total) if known else float("nan"),
            "priority_beta": self.beta,
        }

    def state_dict(self) -> dict:
        """Random generator, priorities of all rows and what they stand for."""
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
        if state_dict.get("moved"):  # the rows lie elsewhere now
            self._begin, self._adopted = begin, np.maximum(begin, end)
        else:
            self._begin, self._adopted = state_dict["begin"].numpy().copy(), state_dict["adopted"].numpy().copy()
        known = np.zeros(self.tree.size, bool)
        known[self.streams.index(*_ranges(self._begin, self._adopted))] = True
        known &= ~self._final
        priorities = state_dict["priorities"].numpy()
        if state_dict.get("moved"):  # among rows that were adopted there are some that had not been
            priorities = np.where(priorities > 0, priorities, (self.largest + self.eps) ** self.alpha)
        self.tree[np.arange(self.tree.size)] = np.where(known, priorities, 0.0)

    def _empty(self) -> None:
        """Nothing is kept besides what the cursors say."""

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
