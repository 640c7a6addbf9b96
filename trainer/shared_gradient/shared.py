"""The shared agent: one network and one optimiser in shared memory, to which local agents apply their gradients.

`trainer/shared_gradient/shared_device.py` is the one that lives on a device, with the same methods.

Modes (`schedule.application`):

- `locked`: one lock around optimiser step and weight pull. The kernel gives it back when its holder dies (`flock`).
  A step is written into the slot that is not in use, which becomes the one in use by a single store: a death in the
  middle leaves the state before it whole.
- `hogwild` (Recht et al. 2011): no lock; steps that overlap may lose parts of one another and are counted.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.learning.update import BETAS, Updater
from trainer.run_folder import manifest

LOCK_S = 2e-5  # between two looks at the lock
COUNTS = 6  # of each local agent, see `SharedAgent`
APPLIED, BEGUN, ENDED, OVERLAPPED, STALENESS, PULLED = range(COUNTS)


class SharedAgent:
    """Weights, Adam's moments and step counts in shared memory; crosses process borders.

    Args:
        updater: of the shapes, and with the first weights.
        num_agents: P.
        lock: file that stands for the lock; made here.
        mode: `locked` or `hogwild`.

    Attributes:
        beat: called while a local agent waits for the lock; in its own process.
        counts: int64 [P, COUNTS]: updates applied, begun and ended; those that overlapped with another's (hogwild); sum
            over updates of how many others came between taking the weights and applying; version held. Each row has
            one writer, its local agent.
        holder: int64 [1], number of the local agent that holds the lock, counted from 1; 0: nobody.
        recovered: int64 [1], how often the lock's holder was found dead.
    """

    def __init__(self, updater: Updater, num_agents: int, lock: Path, mode: str) -> None:
        self.mode, self._lock_path = mode, str(lock)
        manifest.add(lock)
        lock.touch(0o600)
        self._shapes = [(tuple(p.shape), p.stride()) for p in updater.trained]
        numel = sum(p.numel() for p in updater.trained)
        self._state = torch.zeros(2, 3, numel).share_memory_()  # slot; weights, first and second moment
        self._steps = torch.zeros(2).share_memory_()  # of Adam, for each slot
        self._words = torch.zeros(3, dtype=torch.int64).share_memory_()  # version, holder, recovered
        self._counts = torch.zeros(num_agents, COUNTS, dtype=torch.int64).share_memory_()
        self._open()
        for mine, own in zip(self._parts[0][0], updater.trained, strict=True):
            mine.copy_(own)

    def _open(self) -> None:
        self.beat: Callable[[], None] = lambda: None
        words, self.counts = self._words.numpy(), self._counts.numpy()
        self._version, self.holder, self.recovered = words[:1], words[1:2], words[2:]
        self._parts = [[views(part, self._shapes) for part in slot] for slot in self._state]
        self._file = os.open(self._lock_path, os.O_RDWR)  # a description of its own: the lock is this process's

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("mode", "_lock_path", "_shapes", "_state", "_steps", "_words", "_counts")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def version(self) -> int:
        """Steps of the shared optimiser until now; with `hogwild` without those that were lost."""
        return int(self._version[0])

    def join(self, number: int, updater: Updater) -> None:
        """Let a local agent's optimiser be the shared one from now on, and take its weights."""
        updater.optimize = partial(self.apply, number, updater)
        self.counts[number, BEGUN] = self.counts[number, ENDED]  # a predecessor may have died between the two
        self.pull(number, updater.trained)

    def apply(self, number: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        """One step of the shared optimiser with a local agent's gradients; the local network takes the new weights.

        A gradient that is not finite is not applied: the updater's own flag is set then.
        """
        if self.mode == "hogwild":
            self._apply_freely(number, updater, gradients)
            return
        self._take_lock()
        try:
            if dead := int(self.holder[0]):  # it died within; what it was writing is in the slot that is not in use
                self.recovered[0] += 1
                self.counts[dead - 1, APPLIED] += int(self._version[0]) - self.counts[:, APPLIED].sum()
            self.holder[0] = number + 1
            version = int(self._version[0])
            old, new = version % 2, (version + 1) % 2
            self._state[new].copy_(self._state[old])
            self._steps[new] = self._steps[old]
            self._step(new, updater, gradients)
            own = self.counts[number]
            own[STALENESS] += version - own[PULLED]
            torch._foreach_copy_(updater.trained, self._parts[new][0])
            own[PULLED] = version + 1
            own[APPLIED] += 1
            self._version[0] = version + 1  # from here on it counts
        finally:
            self.holder[0] = 0
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take_lock(self) -> None:
        """Wait for the lock, showing life: whoever holds it may have been stopped, and is found by its own silence."""
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self.beat()
                time.sleep(LOCK_S)

    def _apply_freely(self, number: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        own = self.counts[number]
        own[BEGUN] += 1
        ended = self.counts[:, ENDED].copy()
        own[STALENESS] += int(self._version[0]) - own[PULLED]
        self._step(0, updater, gradients)
        torch._foreach_copy_(updater.trained, self._parts[0][0])
        self._version[0] += 1
        others = np.arange(len(self.counts)) != number
        own[OVERLAPPED] += bool((self.counts[others, BEGUN] > ended[others]).any())
        own[PULLED] = self._version[0]
        own[APPLIED] += 1
        own[ENDED] += 1

    def _step(self, slot: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        eps = updater.config.adam_eps
        adam_step(self._parts[slot], self._steps[slot], list(gradients), updater.rate, updater.not_finite, eps)

    def pull(self, number: int | None, weights: Sequence[Tensor]) -> None:
        """Copy the shared weights of one version into tensors of the updater's shapes; waits for nobody.

        Args:
            number: of the local agent that goes on from them; None: somebody who only looks.
            weights: where to.
        """
        while True:
            version = int(self._version[0])
            slot = version % 2 if self.mode == "locked" else 0
            for mine, own in zip(weights, self._parts[slot][0], strict=True):
                mine.copy_(own)
            if self.mode == "hogwild" or int(self._version[0]) == version:
                break
        if number is not None:
            self.counts[number, PULLED] = version

    def serve(self) -> bool:
        """Nothing for the main process to do: the local agents apply their gradients by themselves."""
        return False

    def updates_of(self, number: int) -> int:
        """Updates of a local agent that were applied."""
        return int(self.counts[number, APPLIED])

    def totals(self) -> dict[str, int]:
        """Of the shared optimiser and its lock, for the loggers."""
        return {"optimizer_steps": self.version, "lock_recoveries": int(self.recovered[0])}

    def metrics(self, number: int) -> dict[str, float]:
        """Of a local agent: mean number of the others' updates between its weights and its gradient; overlaps."""
        own = self.counts[number]
        metrics = {"staleness_updates": float(own[STALENESS] / max(1, own[APPLIED]))}
        return metrics if self.mode == "locked" else {**metrics, "overlapped_updates": int(own[OVERLAPPED])}

    def dismiss(self) -> None:
        """Nothing to do: nobody waits for the main process."""

    def close(self) -> None:
        """Let go of the lock's file; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1  # the number may be another file's by now

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, step and counts, with `locked` all of one version though local agents may go on."""
        while True:
            version = self.version
            slot = version % 2 if self.mode == "locked" else 0
            found = {
                "state": self._state[slot].clone(),
                "steps": float(self._steps[slot]),
                "version": version,
                "counts": self._counts.clone(),
            }
            # Else the slot may have been written meanwhile. Whoever goes on waits too when its round has ended.
            if self.mode == "hogwild" or self.version == version:
                return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, before any local agent is started; counts are kept of as many as there were."""
        slot = state["version"] % 2 if self.mode == "locked" else 0
        self._state[slot].copy_(state["state"])
        self._steps[slot] = state["steps"]
        self._version[0] = state["version"]
        known = min(len(self._counts), len(state["counts"]))
        self._counts[:known] = state["counts"][:known]


def views(flat: Tensor, shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Tensor]:
    """Tensors of the given shapes and strides on a flat one's memory, one behind the other."""
    found, offset = [], 0
    for shape, stride in shapes:
        found.append(flat.as_strided(shape, stride, flat.storage_offset() + offset))
        offset += math.prod(shape)
    return found


def adam_step(
    parts: Sequence[list[Tensor]], step: Tensor, gradients: list[Tensor], rate: Tensor, not_finite: Tensor, eps: float
) -> None:
    """One step of fused Adam, as `Updater` makes it; none where `not_finite` is 1.

    Args:
        parts: weights, first and second moment, each a tensor for each parameter.
        step: count of steps, float32 [], raised by one.
        gradients: strided as the weights.
        rate: learning rate, float32 [].
        not_finite: 1 where a gradient was not finite, float32 [].
        eps: Adam's.
    """
    weights, first, second = parts
    step.add_(1)
    torch._fused_adam_(
        weights, gradients, first, second, [], [step] * len(weights), lr=rate, beta1=BETAS[0], beta2=BETAS[1],
        weight_decay=0.0, eps=eps, amsgrad=False, maximize=False, found_inf=not_finite,
    )  # fmt: skip
