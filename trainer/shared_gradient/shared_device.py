"""The shared agent on a device: local agents put their gradients into mailboxes, one process applies them all.

Runs in: the main process, on ``learner.device``; what local agents hold of it is its shared memory.
Receives: gradients with their learning rate, a mailbox for each local agent, in shared memory.
Sends: new weights through two slots in shared memory; for each mailbox, how many of its gradients are applied.
Waits for: nobody; where every mailbox is empty it says so, and the main process sleeps.
Stops when: the main process closes it; whoever waits for it then goes on without.

Modes (``schedule.application``), for a local agent that has sent its gradient:

- ``locked``: it waits until that one is applied and takes the newest weights, which hold it.
- ``hogwild``: it goes on with the weights that it has, or newer ones where there are, and waits only where the gradient
  before is still in its mailbox. One process applies all of them, so that no step is lost in either mode.

Where the device is a GPU, the shared memory is page-locked for copies that do not block; with the CPU as the device the
very same lines run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.host.errors import RunFailed
from trainer.learning.update import Updater
from trainer.memory.blocks import Fields, shared_block, views_of
from trainer.shared_gradient.shared import APPLIED, COUNTS, STALENESS, adam_step, views

POLL_S = 5e-5  # between two looks of a local agent at its mailbox
PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


class DeviceAgent:
    """Weights, Adam's moments and step count on a device; what crosses process borders is mailboxes and slots.

    Args:
        updater: of the shapes, and with the first weights.
        num_agents: P.
        device: where weights and moments live.
        mode: ``locked`` or ``hogwild``.

    Attributes:
        sent: int64 [P], gradients put into a mailbox, which is full while they are more than ``applied``; its local
            agent, after the gradient.
        based: int64 [P], version of the weights that the mailbox's gradient was computed with; its local agent.
        applied: int64 [P], gradients of a mailbox whose step is in the newest slot; main, after the slot.
        made: int64 [P], version that a mailbox's last gradient made; main.
        newest: int64 [3], number of the newest slot's publication, and the versions in slots 0 and 1; main.
        closed: int64 [1], nothing is applied any more; main.
        version: steps of the shared optimiser; in the main process.
        beat: called while a local agent waits for the main process; in its own process.

    Raises:
        RunFailed: the shared memory cannot be page-locked.
    """

    sent: NDArray[np.int64]
    based: NDArray[np.int64]
    applied: NDArray[np.int64]
    made: NDArray[np.int64]
    newest: NDArray[np.int64]
    closed: NDArray[np.int64]

    def __init__(self, updater: Updater, num_agents: int, device: torch.device, mode: str) -> None:
        self.mode = mode
        self._shapes = [(tuple(p.shape), p.stride()) for p in updater.trained]
        self._shapes += [((), ()), ((), ())]  # behind a gradient: learning rate; 1 where it is not finite
        numel = sum(p.numel() for p in updater.trained)
        self._fields: Fields = {
            "gradients": ((num_agents, numel + 2), torch.float32),
            "slots": ((2, numel), torch.float32),
            **{name: ((num_agents,), torch.int64) for name in ("sent", "based", "applied", "made")},
            "newest": ((3,), torch.int64),
            "closed": ((1,), torch.int64),
        }
        self._block = shared_block(self._fields)
        self._open()
        self._device, self._eps = device, updater.config.adam_eps
        self._locked_pages = device.type == "cuda"
        if self._locked_pages:
            _lock_pages(self._block, device)
        self._state = torch.zeros(3, numel, device=device)  # weights, first and second moment
        self._parts = [views(part, self._shapes[:-2]) for part in self._state]
        self._step = torch.zeros((), device=device)  # of Adam
        self._arrived = torch.empty(numel + 2, device=device)
        *self._gradient, self._rate, self._not_finite = views(self._arrived, self._shapes)
        self._taken = np.zeros(num_agents, dtype=np.int64)  # gradients of a mailbox whose step is made
        self._staleness = np.zeros(num_agents, dtype=np.int64)  # sum over them of the steps since their weights
        self.version = 0
        for mine, own in zip(self._parts[0], updater.trained, strict=True):
            mine.copy_(own)
        self._publish()

    def _open(self) -> None:
        fields = views_of(self._block, self._fields)
        gradients, self._slots = fields.pop("gradients"), fields.pop("slots")
        self._gradients = gradients
        self._mail = [views(row, self._shapes) for row in gradients]
        self._weights = [views(slot, self._shapes[:-2]) for slot in self._slots]
        for name, tensor in fields.items():
            setattr(self, name, tensor.numpy())
        self._held = 0  # version of the weights that this process's local agent has
        self.beat: Callable[[], None] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("mode", "_shapes", "_fields", "_block")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    # A local agent's side.

    def join(self, number: int, updater: Updater) -> None:
        """Let a local agent's optimiser be the shared one from now on, and take its weights.

        What a predecessor had sent before it died is applied first.
        """
        updater.optimize = partial(self.apply, number, updater)
        self._wait(number)
        self.pull(number, updater.trained)

    def apply(self, number: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        """Send a gradient; the local network takes the newest weights, with ``locked`` those that hold it.

        A gradient that is not finite is not applied: the updater's own flag is set then.
        """
        if not self._wait(number):  # hogwild: the one before
            return
        for mine, own in zip(self._mail[number], chain(gradients, (updater.rate, updater.not_finite)), strict=True):
            mine.copy_(own)
        self.based[number] = self._held
        self.sent[number] += 1  # from here on it counts
        if self.mode == "locked" and not self._wait(number):
            return
        if self.newest[1 + int(self.newest[0]) % 2] != self._held:
            self.pull(number, updater.trained)

    def _wait(self, number: int) -> bool:
        """Until a mailbox is empty; whether it is, and not closed instead."""
        while self.applied[number] < self.sent[number]:
            if self.closed[0]:
                return False
            self.beat()  # who waits for the main process is not hung, however long that is busy
            time.sleep(POLL_S)
        return True

    def pull(self, number: int | None, weights: Sequence[Tensor]) -> None:
        """Copy the newest weights, all of one version, into tensors of the updater's shapes; waits for nobody.

        Args:
            number: of the local agent that goes on from them; None: somebody who only looks.
            weights: where to.
        """
        while True:
            publication = int(self.newest[0])
            slot = publication % 2
            for mine, own in zip(weights, self._weights[slot], strict=True):
                mine.copy_(own)
            version = int(self.newest[1 + slot])
            if int(self.newest[0]) == publication:  # the slot is written again only after the other one is the newest
                break
        if number is not None:
            self._held = version

    # The main process's side.

    def serve(self) -> bool:
        """Apply what is in the mailboxes and publish the new weights; whether there was anything.

        Every gradient that is there when it is called is applied in one round, each in a step of its own, so that
        nobody waits for more than the others' one. A copy to the device is ordered before the step that reads it, and
        the slot is whole before its number is told.
        """
        for number in np.flatnonzero(self.sent > self._taken):
            self._take(int(number))
        if not (self._taken > self.applied).any():
            return False
        self._publish()
        self.applied[:] = self._taken
        return True

    def _take(self, number: int) -> None:
        self._arrived.copy_(self._gradients[number], non_blocking=True)
        adam_step(self._parts, self._step, self._gradient, self._rate, self._not_finite, self._eps)
        self._taken[number] += 1
        self._staleness[number] += self.version - int(self.based[number])
        self.version += 1
        self.made[number] = self.version

    def _publish(self) -> None:
        publication = int(self.newest[0]) + 1
        slot = publication % 2
        self._slots[slot].copy_(self._state[0], non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.newest[1 + slot] = self.version
        self.newest[0] = publication

    def updates_of(self, number: int) -> int:
        """Updates of a local agent that were applied."""
        return int(self.applied[number])

    def figures(self, number: int) -> dict[str, float]:
        """Of a local agent: mean number of updates between its weights and its gradient, its own too (hogwild)."""
        return {"staleness_updates": float(self._staleness[number] / max(1, self._taken[number]))}

    def totals(self) -> dict[str, int]:
        """Of the shared optimiser, for the loggers."""
        return {"optimizer_steps": self.version}

    def dismiss(self) -> None:
        """Let nobody wait for it any more."""
        self.closed[0] = 1

    def close(self) -> None:
        """Give the page-locked memory back; safe to call twice.

        Raises:
            RuntimeError: the device has failed, which it says to whoever asks it anything.
        """
        self.dismiss()
        if self._locked_pages:
            torch.cuda.synchronize(self._device)
            torch.cuda.cudart().cudaHostUnregister(self._block.data_ptr())
            self._locked_pages = False

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, step and counts, with what is in the mailboxes; as `SharedAgent.state_dict` gives it."""
        self.serve()
        counts = torch.zeros(len(self._taken), COUNTS, dtype=torch.int64)
        counts[:, APPLIED], counts[:, STALENESS] = torch.from_numpy(self._taken), torch.from_numpy(self._staleness)
        return {
            "state": self._state.to("cpu", copy=True),
            "steps": float(self._step),
            "version": self.version,
            "counts": counts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, before any local agent is started; counts are kept of as many as there were."""
        self._state.copy_(state["state"])
        self._step.fill_(state["steps"])
        self.version = state["version"]
        known = min(len(self._taken), len(state["counts"]))
        counts = state["counts"][:known].numpy()
        self._taken[:known], self._staleness[:known] = counts[:, APPLIED], counts[:, STALENESS]
        self.sent[:] = self.applied[:] = self._taken
        self._publish()


def _lock_pages(block: Tensor, device: torch.device) -> None:
    """Page-lock shared memory in this process, which alone copies between it and the device."""
    with torch.cuda.device(device):
        error = int(torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.numel(), PORTABLE))
    if error:
        raise RunFailed(
            f"{block.numel() / 2**20:.0f} MB of shared memory cannot be page-locked for {device} (cudaHostRegister "
            f"gave error {error}): set learner.device=cpu, or a smaller schedule.num_agents"
        )
