"""The shared agent on a device: local agents put their gradients into mailboxes, and one process applies them all.

Runs in: the main process, on `learner.device`; local agents have its shared memory.
Receives: gradients with their learning rate, a mailbox for each local agent, in shared memory.
Sends: new weights through two slots in shared memory; for each mailbox, how many of its gradients are applied.
Waits for: nothing; if every mailbox is empty, the main process sleeps.
Stops when: the main process closes it; local agents that wait for it then go on.

Modes (`schedule.application`), for a local agent that has sent its gradient:

- `locked`: it waits until this gradient is applied, and takes the weights that follow from it.
- `hogwild`: it goes on with its weights, or with newer ones if there are some; it waits only if the gradient before is
  still in its mailbox. As one process applies all gradients, no step is lost in either mode.

If the device is a GPU, the shared memory is page-locked, so that copies do not block; with the CPU as the device the
same code runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.host.errors import RunFailed
from trainer.learning.optimizer import adam_step
from trainer.learning.update import Updater
from trainer.memory.fields import allocate, block_of, float32_tensor, int64, shared_fields
from trainer.shared_gradient.shared import APPLIED, COUNTS, STALENESS, views

POLL_S = 5e-5  # between two checks of a local agent's mailbox
PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device


@shared_fields
class Mailboxes:
    """The shared memory of a `DeviceAgent`: a mailbox for each local agent's gradient, and two slots for new weights.

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
    """Weights, Adam's moments and step count on a device; local agents get its `Mailboxes`.

    Args:
        updater: has the shapes and the first weights.
        num_agents: P.
        device: where weights and moments live.
        mode: `locked` or `hogwild`.

    Attributes:
        mail: shared with the local agents.
        version: number of steps of the shared optimiser; in the main process.
        beat: called in a local agent's process while it waits for the main process.

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
        """Make the shared optimiser that of a local agent's updater, and copy the shared weights into it.

        A gradient that the process before had sent when it died is applied first.
        """
        updater.step_by(lambda _, gradients: self.apply(number, updater, gradients))
        self._wait(number)
        self.pull(number, updater.trained)

    def apply(self, number: int, updater: Updater, gradients: Sequence[Tensor]) -> None:
        """Send a gradient, and copy the newest weights into the local network: with `locked` those that follow from it.

        If the gradient was not finite, it changes nothing, as the updater's flag says so.
        """
        if not self._wait(number):  # hogwild: for the gradient before
            return
        for mine, its in zip(
            self._mailboxes[number], chain(gradients, (updater.rate, updater.not_finite)), strict=True
        ):
            mine.copy_(its)
        self.mail.based[number] = self._held
        self.mail.sent[number] += 1  # now it may be applied
        if self.mode == "locked" and not self._wait(number):
            return
        if self.mail.newest[1 + int(self.mail.newest[0]) % 2] != self._held:
            self.pull(number, updater.trained)

    def _wait(self, number: int) -> bool:
        """Wait until a mailbox is empty; returns False if the shared agent was closed before."""
        while self.mail.applied[number] < self.mail.sent[number]:
            if self.mail.closed[0]:
                return False
            self.beat()  # a local agent that waits for a busy main process does not hang
            time.sleep(POLL_S)
        return True

    def pull(self, number: int | None, weights: Sequence[Tensor]) -> None:
        """Copy the newest weights, all of one version, into tensors, without waiting.

        Args:
            number: of the local agent that continues with them; None: they are only read.
            weights: tensors of the updater's shapes.
        """
        while True:
            publication = int(self.mail.newest[0])
            slot = publication % 2
            for mine, its in zip(weights, self._weights[slot], strict=True):
                mine.copy_(its)
            version = int(self.mail.newest[1 + slot])
            if (
                int(self.mail.newest[0]) == publication
            ):  # the slot is written again only after the other one is the newest
                break
        if number is not None:
            self._held = version

    # The main process's side.

    def serve(self) -> bool:
        """Apply the gradients in all mailboxes, then publish the new weights; returns whether there was any gradient.

        Each gradient is applied by one step. A local agent waits for at most one gradient of each other local agent.
        The copy of a gradient to the device comes before the step that reads it, and a slot is whole before its number
        is published.
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
        weights, first, second = self._parts
        adam_step(weights, self._gradient, first, second, self._step, self._rate, self._not_finite, self._eps)
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
        """Number of a local agent's updates that were applied."""
        return int(self.mail.applied[number])

    def metrics(self, number: int) -> dict[str, float]:
        """Metrics of a local agent: mean number of updates between its weights and its gradient, with its updates."""
        return {"staleness_updates": float(self._staleness[number] / max(1, self._taken[number]))}

    def totals(self) -> dict[str, int]:
        """Metrics of the shared optimiser."""
        return {"optimizer_steps": self.version}

    def dismiss(self) -> None:
        """End all waits of local agents."""
        self.mail.closed[0] = 1

    def close(self) -> None:
        """Unlock the page-locked memory. Safe to call twice.

        Raises:
            RuntimeError: the device has failed.
        """
        self.dismiss()
        if self._locked_pages:
            torch.cuda.synchronize(self._device)
            torch.cuda.cudart().cudaHostUnregister(block_of(self.mail).data_ptr())
            self._locked_pages = False

    def state_dict(self) -> dict[str, Any]:
        """Apply the gradients in the mailboxes; returns what `SharedAgent.state_dict` returns."""
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
        """Load a checkpoint before any local agent is started; it may have counts of fewer or more local agents."""
        self._state.copy_(state["state"])
        self._step.fill_(state["steps"])
        self.version = state["version"]
        known = min(len(self._taken), len(state["counts"]))
        counts = state["counts"][:known].numpy()
        self._taken[:known], self._staleness[:known] = counts[:, APPLIED], counts[:, STALENESS]
        self.mail.sent[:] = self.mail.applied[:] = self._taken
        self._publish()


def _lock_pages(block: Tensor, device: torch.device) -> None:
    """Page-lock shared memory in this process; only this process copies between it and the device."""
    with torch.cuda.device(device):
        error = int(torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.numel(), PORTABLE))
    if error:
        raise RunFailed(
            f"{block.numel() / 2**20:.0f} MB of shared memory cannot be page-locked for {device} (cudaHostRegister "
            f"gave error {error}): set learner.device=cpu, or a smaller schedule.num_agents"
        )
