"""The shared agent: one network and one optimiser in shared memory, to which local agents apply their gradients.

`trainer.shared_gradient.shared_device` has the same methods, with network and optimiser on a device.

Modes (`schedule.application`):

- `locked`: a lock is held during a step of the optimiser and the copy of the new weights. It is a `flock`, which the
  kernel frees when its holder dies. A step is written into the slot that is not in use, and a single store makes this
  slot the one in use: if a process dies during its step, the state before the step stays whole.
- `hogwild` (Recht et al. 2011): no lock. Steps that overlap may overwrite parts of each other, and are counted.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.learning.optimizer import adam_step
from trainer.learning.update import Updater
from trainer.memory.fields import allocate, float32_tensor, int64, shared_fields
from trainer.run_folder import manifest

LOCK_S = 2e-5  # between two tries to get the lock
COUNTS = 6  # of each local agent, see `SharedAgent`
APPLIED, BEGUN, ENDED, OVERLAPPED, STALENESS, PULLED = range(COUNTS)


@shared_fields
class SharedBoard:
    """The shared memory of a `SharedAgent`.

    Args:
        num_agents: P.
        numel: N, number of weights.
    """

    state = float32_tensor((2, 3, "N"), "two slots of weights, first and second moment", by="who holds the lock")
    steps = float32_tensor((2,), "Adam's step count of each slot", by="who holds the lock")
    version = int64((1,), "steps of the shared optimiser; version v is in slot v % 2", by="who holds the lock")
    holder = int64((1,), "local agent that holds the lock, counted from 1; 0: nobody", by="it")
    recovered = int64((1,), "how often the lock's holder was found dead", by="who holds the lock")
    counts = int64(("P", COUNTS), "updates applied, begun and ended; those that overlapped with another's (hogwild); "
                   "sum over updates of how many others came between taking the weights and applying; version held",
                   by="its local agent")  # fmt: skip

    def __init__(self, num_agents: int, numel: int) -> None:
        allocate(self, P=num_agents, N=numel)


class SharedAgent:
    """Weights, Adam's moments and step counts in shared memory; it is pickled to the local agents' processes.

    Args:
        updater: has the shapes and the first weights.
        num_agents: P.
        lock: the lock's file, which is made here.
        mode: `locked` or `hogwild`.

    Attributes:
        beat: called in a local agent's process while it waits for the lock.
        board: the shared memory; `counts`, `holder` and `recovered` are its fields.
    """

    def __init__(self, updater: Updater, num_agents: int, lock: Path, mode: str) -> None:
        self.mode, self._lock_path = mode, str(lock)
        manifest.add(lock)
        lock.touch(0o600)
        self._shapes = [(tuple(p.shape), p.stride()) for p in updater.trained]
        numel = sum(p.numel() for p in updater.trained)
        self.board = SharedBoard(num_agents, numel)
        self._open()
        for mine, its in zip(self._parts[0][0], updater.trained, strict=True):
            mine.copy_(its)

    def _open(self) -> None:
        self.beat: Callable[[], None] = lambda: None
        board = self.board
        self._state, self._steps, self._version = board.state, board.steps, board.version
        self.counts, self.holder, self.recovered = board.counts, board.holder, board.recovered
        self._parts = [[views(part, self._shapes) for part in slot] for slot in self._state]
        self._file = os.open(self._lock_path, os.O_RDWR)  # opened in each process: a `flock` belongs to the open file

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("mode", "_lock_path", "_shapes", "board")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def version(self) -> int:
        """Number of steps of the shared optimiser; with `hogwild` without those that were overwritten."""
        return int(self._version[0])

    def join(self, number: int, updater: Updater) -> None:
        """Make the shared optimiser that of a local agent's updater, and copy the shared weights into it."""
        updater.step_by(lambda _, gradients: self.apply(number, updater, gradients))
        self.counts[number, BEGUN] = self.counts[number, ENDED]  # the process before may have died between the two
        self.pull(number, updater.trained)

    def apply(self, number: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        """Make one step of the shared optimiser, and copy the new weights into the local agent's network.

        If a gradient was not finite, the step changes nothing, as the updater's flag says so.

        Args:
            number: of the local agent.
            updater: of the local agent.
            gradients: with the strides of the parameters.
        """
        if self.mode == "hogwild":
            self._apply_freely(number, updater, gradients)
            return
        self._take_lock()
        try:
            if dead := int(self.holder[0]):  # it died during its step, which is in the slot that is not in use
                self.recovered[0] += 1
                self.counts[dead - 1, APPLIED] += int(self._version[0]) - self.counts[:, APPLIED].sum()
            self.holder[0] = number + 1
            version = int(self._version[0])
            old, new = version % 2, (version + 1) % 2
            self._state[new].copy_(self._state[old])
            self._steps[new] = self._steps[old]
            self._step(new, updater, gradients)
            counts = self.counts[number]
            counts[STALENESS] += version - counts[PULLED]
            torch._foreach_copy_(updater.trained, self._parts[new][0])
            counts[PULLED] = version + 1
            counts[APPLIED] += 1
            self._version[0] = version + 1  # now the new slot is in use
        finally:
            self.holder[0] = 0
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take_lock(self) -> None:
        """Wait for the lock with signs of life: if its holder hangs, the holder must be found, not those that wait."""
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self.beat()
                time.sleep(LOCK_S)

    def _apply_freely(self, number: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        counts = self.counts[number]
        counts[BEGUN] += 1
        ended = self.counts[:, ENDED].copy()
        counts[STALENESS] += int(self._version[0]) - counts[PULLED]
        self._step(0, updater, gradients)
        torch._foreach_copy_(updater.trained, self._parts[0][0])
        self._version[0] += 1
        others = np.arange(len(self.counts)) != number
        counts[OVERLAPPED] += bool((self.counts[others, BEGUN] > ended[others]).any())
        counts[PULLED] = self._version[0]
        counts[APPLIED] += 1
        counts[ENDED] += 1

    def _step(self, slot: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        eps = updater.config.adam_eps
        weights, first, second = self._parts[slot]
        adam_step(weights, list(gradients), first, second, self._steps[slot], updater.rate, updater.not_finite, eps)

    def pull(self, number: int | None, weights: Sequence[Tensor]) -> None:
        """Copy the shared weights of one version into tensors, without waiting.

        Args:
            number: of the local agent that continues with them; None: they are only read.
            weights: tensors of the updater's shapes.
        """
        while True:
            version = int(self._version[0])
            slot = version % 2 if self.mode == "locked" else 0
            for mine, its in zip(weights, self._parts[slot][0], strict=True):
                mine.copy_(its)
            if self.mode == "hogwild" or int(self._version[0]) == version:
                break
        if number is not None:
            self.counts[number, PULLED] = version

    def serve(self) -> bool:
        """Do nothing in the main process, as local agents apply their gradients; returns False."""
        return False

    def updates_of(self, number: int) -> int:
        """Number of a local agent's updates that were applied."""
        return int(self.counts[number, APPLIED])

    def totals(self) -> dict[str, int]:
        """Metrics of the shared optimiser and its lock."""
        return {"optimizer_steps": self.version, "lock_recoveries": int(self.recovered[0])}

    def metrics(self, number: int) -> dict[str, float]:
        """Metrics of a local agent: mean number of others' updates between its weights and its gradient; overlaps."""
        counts = self.counts[number]
        metrics = {"staleness_updates": float(counts[STALENESS] / max(1, counts[APPLIED]))}
        return metrics if self.mode == "locked" else {**metrics, "overlapped_updates": int(counts[OVERLAPPED])}

    def dismiss(self) -> None:
        """Do nothing: no local agent waits for the main process."""

    def close(self) -> None:
        """Close the lock's file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1  # the number may be another file's by now

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, step and counts; with `locked` all of one version, although local agents may go on."""
        while True:
            version = self.version
            slot = version % 2 if self.mode == "locked" else 0
            found = {
                "state": self._state[slot].clone(),
                "steps": float(self._steps[slot]),
                "version": version,
                "counts": torch.from_numpy(self.counts.copy()),
            }
            # Else the slot may have been written meanwhile; local agents wait as soon as their round has ended.
            if self.mode == "hogwild" or self.version == version:
                return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint before any local agent is started; it may have counts of fewer or more local agents."""
        slot = state["version"] % 2 if self.mode == "locked" else 0
        self._state[slot].copy_(state["state"])
        self._steps[slot] = state["steps"]
        self._version[0] = state["version"]
        known = min(len(self.counts), len(state["counts"]))
        self.counts[:known] = state["counts"][:known].numpy()


def views(flat: Tensor, shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Tensor]:
    """Tensors of the given shapes and strides, one behind the other in the memory of a flat tensor."""
    found, offset = [], 0
    for shape, stride in shapes:
        found.append(flat.as_strided(shape, stride, flat.storage_offset() + offset))
        offset += math.prod(shape)
    return found
