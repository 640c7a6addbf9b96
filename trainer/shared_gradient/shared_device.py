"""The shared agent on a device: local agents put their gradients into mailboxes, one process applies them all.

Runs in: the main process, on `learner.device`; what local agents hold of it is its shared memory.
Receives: gradients with their learning rate, a mailbox for each local agent, in shared memory.
Sends: new weights through two slots in shared memory; for each mailbox, how many of its gradients are applied.
Waits for: nobody; where every mailbox is empty it says so, and the main process sleeps.
Stops when: the main process closes it; whoever waits for it then goes on without.

Modes (`schedule.application`), for a local agent that has sent its gradient:

- `locked`: it waits until that one is applied and takes the newest weights, which hold it.
- `hogwild`: it goes on with the weights that it has, or newer ones where there are, and waits only where the gradient
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
from torch import Tensor

from trainer.host.errors import RunFailed
from trainer.learning.update import Updater
from trainer.memory.fields import allocate, block_of, float32_tensor, int64, shared_fields
from trainer.shared_gradient.shared import APPLIED, COUNTS, STALENESS, adam_step, views

POLL_S = 5e-5  # between two looks of a local agent at its mailbox
PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


@shared_fields
class Mailboxes:
    """What crosses process borders: a mailbox for each local agent's gradient, and two slots for new weights.

    Args:
        num_agents: P.
        numel: N, of the weights.
    """

    gradients = float32_tensor(
        ("P", "G"), "gradient [N], its learning rate, and 1 where it is not finite: G is N + 2", by="its local agent"
    )
    slots = float32_tensor((2, "N"), "weights of two publications, written in turn", by="main")
    sent = int64(("P",), "gradients put into a mailbox, which is full while they are more than `applied`; raised after "
                 "the gradient", by="its local agent")  # fmt: skip
    based = int64(("P",), "version of the weights that its gradient was computed with", by="its local agent")
    applied = int64(("P",), "gradients whose step is in the newest slot, raised after the slot", by="main")
    made = int64(("P",), "version that a mailbox's last gradient made", by="main")
    newest = int64((3,), "number of the newest publication, and the versions in slots 0 and 1", by="main")
    closed = int64((1,), "1 once nothing is applied any more", by="main")

    def __init__(self, num_agents: int, numel: int) -> None:
        allocate(self, P=num_agents, N=numel, G=numel + 2)


class DeviceAgent:
    """Weights, Adam's moments and step count on a device; what crosses process borders is `Mailboxes`.

    Args:
        updater: of the shapes, and with the first weights.
        num_agents: P.
        device: where weights and moments live.
        mode: `locked` or `hogwild`.

    Attributes:
        mail: shared with the local agents.
        version: steps of the shared optimiser; in the main process.
        beat: called while a local agent waits for the main process; in its process.

    Raises:
        RunFailed: the shared memory cannot be page-locked.
    """

    def __init__(self, updater: Updater, num_agents: int, device: torch.device, mode: str) -> None:
        self.mode = mode
        self._shapes = [(tuple(p.shape), p.stride()) for p in updater.trained]
        self._shapes += [((), ()), ((), ())]  # behind a gradient: learning rate; 1 where it is not finite
        numel = sum(p.numel() for p in updater.trained)
        self.mail = Mailboxes(num_agents, numel)
        self._open()
        self._device, self._eps = device, updater.config.adam_eps
        self._locked_pages = device.type == "cuda"
        if self._locked_pages:
            _lock_pages(block_of(self.mail), device)
        self._state = torch.zeros(3, numel, device=device)  # weights, first and second moment
        self._parts = [views(part, self._shapes[:-2]) for part in self._state]
        self._step = torch.zeros((), device=device)  # of Adam
        self._arrived = torch.empty(numel + 2, device=device)
        *self._gradient, self._rate, self._not_finite = views(self._arrived, self._shapes)
        self._taken = np.zeros(num_agents, dtype=np.int64)  # gradients of a mailbox whose step is made
        self._staleness = np.zeros(num_agents, dtype=np.int64)  # sum over them of the steps since their weights
        self.version = 0
        for mine, its in zip(self._parts[0], updater.trained, strict=True):
            mine.copy_(its)
        self._publish()

    def _open(self) -> None:
        self._mailboxes = [views(row, self._shapes) for row in self.mail.gradients]
        self._weights = [views(slot, self._shapes[:-2]) for slot in self.mail.slots]
        self._held = 0  # version of the weights that this process's local agent has
        self.beat: Callable[[], None] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("mode", "_shapes", "mail")}

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
        """Send a gradient; the local network takes the newest weights, with `locked` those that hold it.

        A gradient that is not finite is not applied: the updater's own flag is set then.
        """
        if not self._wait(number):  # hogwild: the one before
            return
        for mine, own in zip(
            self._mailboxes[number], chain(gradients, (updater.rate, updater.not_finite)), strict=True
        ):
            mine.copy_(own)
        self.mail.based[number] = self._held
        self.mail.sent[number] += 1  # from here on it counts
        if self.mode == "locked" and not self._wait(number):
            return
        if self.mail.newest[1 + int(self.mail.newest[0]) % 2] != self._held:
            self.pull(number, updater.trained)

    def _wait(self, number: int) -> bool:
        """Until a mailbox is empty; whether it is, and not closed instead."""
        while self.mail.applied[number] < self.mail.sent[number]:
            if self.mail.closed[0]:
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
            publication = int(self.mail.newest[0])
            slot = publication % 2
            for mine, own in zip(weights, self._weights[slot], strict=True):
                mine.copy_(own)
            version = int(self.mail.newest[1 + slot])
            if (
                int(self.mail.newest[0]) == publication
            ):  # the slot is written again only after the other one is the newest
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
        for number in np.flatnonzero(self.mail.sent > self._taken):
            self._take(int(number))
        if not (self._taken > self.mail.applied).any():
            return False
        self._publish()
        self.mail.applied[:] = self._taken
        return True

    def _take(self, number: int) -> None:
        self._arrived.copy_(self.mail.gradients[number], non_blocking=True)
        adam_step(self._parts, self._step, self._gradient, self._rate, self._not_finite, self._eps)
        self._taken[number] += 1
        self._staleness[number] += self.version - int(self.mail.based[number])
        self.version += 1
        self.mail.made[number] = self.version

    def _publish(self) -> None:
        publication = int(self.mail.newest[0]) + 1
        slot = publication % 2
        self.mail.slots[slot].copy_(self._state[0], non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.mail.newest[1 + slot] = self.version
        self.mail.newest[0] = publication

    def updates_of(self, number: int) -> int:
        """Updates of a local agent that were applied."""
        return int(self.mail.applied[number])

    def metrics(self, number: int) -> dict[str, float]:
        """Of a local agent: mean number of updates between its weights and its gradient, its own too (hogwild)."""
        return {"staleness_updates": float(self._staleness[number] / max(1, self._taken[number]))}

    def totals(self) -> dict[str, int]:
        """Of the shared optimiser, for the loggers."""
        return {"optimizer_steps": self.version}

    def dismiss(self) -> None:
        """Let nobody wait for it any more."""
        self.mail.closed[0] = 1

    def close(self) -> None:
        """Give the page-locked memory back; safe to call twice.

        Raises:
            RuntimeError: the device has failed, which it says to whoever asks it anything.
        """
        self.dismiss()
        if self._locked_pages:
            torch.cuda.synchronize(self._device)
            torch.cuda.cudart().cudaHostUnregister(block_of(self.mail).data_ptr())
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
        self.mail.sent[:] = self.mail.applied[:] = self._taken
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
