"""What a draw becomes: the row, what follows it n steps later, and the rewards between, as TorchRL's storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from trainer.envs import EnvSpec
from trainer.replay.streams import Columns, StreamLayout

Memory = dict[str, np.ndarray]  # arrays that gathered rows are written into, kept from one gathering to the next
FirstPriority = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Transitions(Storage):
    """TorchRL storage whose item at a row is the n-step transition that starts there; the collectors write the rows.

    Args:
        spec: the environment.
        columns: of the rows, [rows, ...], on the memory that the collectors write.
        streams: the layout.
        cursor: int64 [S], rows published in each stream; shared with the collectors.
        gamma: discount within an n-step return.
        n_step: n.
        pin_memory: let `memory` be page-locked, for copies to a GPU that overlap with its work.

    Attributes:
        memory: what the next transitions are written into; None: each gathering gets memory of its own.
    """

    device = torch.device("cpu")

    def __init__(
        self, spec: EnvSpec, columns: Columns, streams: StreamLayout, cursor: np.ndarray, gamma: float, n_step: int,
        pin_memory: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(streams.rows, compilable=True)  # else it takes shared memory for counts of its own writes
        self.spec, self.streams, self.gamma, self.n_step = spec, streams, gamma, n_step
        self.memory: Memory | None = None
        self._columns, self._cursor, self._pinned = columns, cursor, pin_memory

    def __len__(self) -> int:
        """Rows that are published and not overwritten."""
        return int(np.minimum(self._cursor, self.streams.ring).sum())

    def get(self, index: Tensor | np.ndarray | slice | int) -> TensorDict:
        """The transitions that start at storage rows int64 [B], of a slice of them, or of one row (B = 1).

        Returns:
            TensorDict [B]: `action` as the spec says, `action_mask` bool [A] where there are masks, the observation's
            leaves; below `next` the same leaves and mask n steps later, `reward` float32 [1] (the discounted sum of
            up to n rewards), `terminated`, `truncated` and `done` bool [1]; and with n > 1 `steps_to_next_obs`
            int64 [1].
        """
        rows = index.numpy() if isinstance(index, Tensor) else np.atleast_1d(np.arange(self.max_size)[index])
        returns, steps = self._returns(rows)
        last = rows if self.n_step == 1 else self.streams.later(rows, steps - 1)
        following = self.streams.later(rows, steps)
        terminated, truncated = self._take("terminated", last), self._take("truncated", last)
        now, then = self._observed(rows), self._observed(following, "next")
        then |= {
            "reward": returns,
            "terminated": terminated.unsqueeze(-1),
            "truncated": truncated.unsqueeze(-1),
            "done": (terminated | truncated).unsqueeze(-1),
        }
        if self.n_step > 1:
            now["steps_to_next_obs"] = torch.from_numpy(steps).unsqueeze(-1)
        size = [len(rows)]
        return TensorDict({"action": self._take("action", rows), **now, "next": TensorDict(then, size)}, size)

    def first_priorities(self, rows: np.ndarray, priority: FirstPriority) -> np.ndarray:
        """Priorities float64 [n] of new transitions by the values that the collectors acted by.

        Args:
            rows: at which they start, int64 [n].
            priority: of the algorithm; see `trainer.algorithms.Algorithm`.
        """
        returns, steps = self._returns(rows)
        going_on = ~self._columns["terminated"][self.streams.later(rows, steps - 1)]
        following = self._columns["value_best"][self.streams.later(rows, steps)]
        going_on &= np.isfinite(following)  # infinite: no action was legal
        following = np.where(going_on, following, 0.0)
        values = (self.gamma**steps * going_on, following, self._columns["value_taken"][rows])
        return priority(returns[:, 0], *map(torch.from_numpy, values)).double().numpy()

    def _returns(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """n-step returns float32 [B, 1] and their lengths int64 [B] (Sutton and Barto 2018, eq. 12.1).

        R = sum_{k < m} gamma^k r_{t+k}, where m is n, or less when the episode ends before.
        """
        if self.n_step == 1:
            return self._take("reward", rows).unsqueeze(-1), np.ones(len(rows), np.int64)
        window = self.streams.later(rows[:, None], np.arange(self.n_step))
        ended = self._columns["terminated"][window] | self._columns["truncated"][window]
        before = np.cumsum(ended, axis=1) - ended  # ends strictly before step k
        alive = before == 0
        discounts = self.gamma ** np.arange(self.n_step)
        returns = (self._columns["reward"][window] * alive * discounts).sum(1, dtype=np.float64)
        return torch.from_numpy(returns.astype(np.float32)).unsqueeze(-1), alive.sum(1)

    def _observed(self, rows: np.ndarray, role: str = "") -> dict[str, Tensor]:
        """Mask and leaves at `rows`, stacked where they are; `role` names the memory that they are written into."""
        found = {"action_mask": self._take("action_mask", rows, role)} if self.spec.action.has_mask else {}
        for leaf in self.spec.leaves:
            if leaf.stack == 1:
                found[leaf.name] = self._take(leaf.name, rows, role)
            else:  # frames t - stack + 1 .. t; before the episode's first frame that one repeats
                age = self._columns["age"][rows]
                back = np.minimum(np.arange(leaf.stack - 1, -1, -1), age[:, None])
                found[leaf.name] = self._take(leaf.name, self.streams.later(rows[:, None], -back), role)
        return found

    def _take(self, name: str, rows: np.ndarray, role: str = "") -> Tensor:
        column = self._columns[name]
        out = self._buffer(role + name, (*rows.shape, *column.shape[1:]), column.dtype)
        np.take(column, rows, axis=0, out=out, mode="clip")  # clip: the other modes copy once more
        return torch.from_numpy(out)

    def _buffer(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self.memory is None:
            return np.empty(shape, dtype)
        buffer = self.memory.get(key)
        if buffer is None or len(buffer) < shape[0] or buffer.shape[1:] != shape[1:]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=self._pinned)
            buffer = self.memory[key] = tensor.numpy()
        return buffer[: shape[0]]  # chunks of many sizes share one buffer: new memory costs more than filling it

    def set(self, *_: Any, **__: Any) -> None:
        """Not used: the collectors write the rows."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Nothing: `trainer.replay.on_disk` keeps the rows."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Nothing to load."""

    def contains(self, item: int) -> bool:
        """Whether a row is published."""
        block = self.streams.ring * self.streams.envs_per_worker
        stream = item // block * self.streams.envs_per_worker + item % self.streams.envs_per_worker
        return item % block // self.streams.envs_per_worker < self._cursor[stream]

    def _empty(self) -> None:
        """Nothing is kept besides the rows, which the collectors own."""
