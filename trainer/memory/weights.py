"""The weights board: shared memory from an agent's learner to all processes that act by its weights.

On x86-64 other processes see stores in program order. Elsewhere a memory barrier between data and sequence number would
be necessary, which Python does not have; there the sequence check finds a torn read only with high probability.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.weight_update.weight_sync_schemes import WeightSyncScheme

from trainer.memory.fields import allocate, block_of, float32_tensor, int64, shared_fields


def ordered_leaves(weights: TensorDictBase) -> list[Tensor]:
    """The float tensors of `weights`, ordered by their names; constants such as indices are left out."""
    named = sorted(weights.items(True, True), key=lambda item: str(item[0]))
    return [leaf for _, leaf in named if leaf.is_floating_point()]


def ordered_tensors(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Names and tensors of a module in the boards' order."""
    tensors = TensorDict.from_module(module).items(True, True)
    paths = [((key,) if isinstance(key, str) else key, leaf) for key, leaf in tensors]
    named = sorted(paths, key=lambda item: str(item[0]))  # the order of `ordered_leaves`
    return [(".".join(path), leaf) for path, leaf in named if leaf.is_floating_point()]


def flatten_parameters(module: torch.nn.Module) -> Tensor:
    """Make all float parameters and buffers of a module views of one flat tensor, which is returned: float32 [numel].

    It has the board's order, so one copy brings a new version into the module.
    """
    leaves = ordered_leaves(TensorDict.from_module(module))
    flat = torch.empty(sum(leaf.numel() for leaf in leaves), dtype=torch.float32, device="cpu")
    offset = 0
    for leaf in leaves:
        view = flat[offset : offset + leaf.numel()].view(leaf.shape)
        view.copy_(leaf.detach())
        leaf.data = view
        offset += leaf.numel()
    return flat


@shared_fields
class WeightSlots:
    """Memory of a `WeightsBoard`: two slots that are written in turn.

    Args:
        numel: N, number of float32 values of all parameters and buffers together.
        block: memory for its fields; None: memory of its own.
    """

    sequence = int64((3,), "version in slot 0, version in slot 1 (-1: being written), newest version", by="the learner")
    slots = float32_tensor((2, "N"), "weights of two versions; version v is in slot v % 2", by="the learner")

    def __init__(self, numel: int, block: Tensor | None = None) -> None:
        allocate(self, block, N=numel)


class WeightsBoard(WeightSyncScheme):
    """A TorchRL weight sync scheme without acknowledgement: a double buffer with versions in shared memory.

    The learner writes version v into slot v % 2 and returns; a worker copies the newest version between two vector
    steps. The copy is complete if the slot has the version's number before and after it. A dead or slow worker blocks
    no other process.

    Args:
        numel: number of float32 values of all parameters and buffers together.
        block: memory for the fields of `WeightSlots`; None: memory of its own.
    """

    def __init__(self, numel: int, block: Tensor | None = None) -> None:
        super().__init__()
        self.numel, self.memory = numel, WeightSlots(numel, block)

    def reader(self) -> WeightsReader:
        """A reader for another process."""
        return WeightsReader(self.memory)

    def another(self) -> WeightsBoard:
        """Another scheme with the same memory, as TorchRL uses a scheme for one collector only."""
        return WeightsBoard(self.numel, block_of(self.memory))

    @property
    def version(self) -> int:
        """The newest complete version; 0 before the first."""
        return int(self.memory.sequence[2])

    # Called by TorchRL; none of them waits.
    def _init_on_sender_impl(self, *, model_id, context=None, **_):
        self.model_id = model_id

    def _init_on_receiver_impl(self, *, model_id, context=None, model=None, worker_idx=None, **_):
        self.model_id = model_id
        if context is not None:
            self.context = context  # where TorchRL looks for the model

    def connect(self, *, worker_idx=None):
        """Connect without waiting, as the process was given the memory."""
        if self._initialized_on_sender:
            self.synchronized_on_sender = True
        elif self._initialized_on_receiver:
            self.synchronized_on_receiver = True

    def create_transport(self, **_):
        """Not used: there are no messages."""
        raise NotImplementedError

    def receive(self, timeout=None):
        """Do nothing: workers read between vector steps."""
        return None

    def shutdown(self):
        """Do nothing: shared memory ends with its last process."""

    def send(self, weights: TensorDictBase | None = None, worker_ids=None) -> None:
        """Publish `weights` (nested TensorDict of float tensors on any device) as the next version."""
        parts = [leaf.detach().reshape(-1) for leaf in ordered_leaves(weights)]

        def fill(slot: Tensor) -> None:
            if parts[0].is_cuda:
                slot.copy_(torch.cat(parts))  # one transfer instead of one for each tensor
            else:
                torch.cat(parts, out=slot)

        self._publish(int(self.memory.sequence[2]) + 1, fill)

    def take(self, version: int, flat: np.ndarray) -> None:
        """Publish weights, float32 [numel], under the version that they have on another machine's board.

        It may have the slot of the newest version here: readers then try again until it is written.
        """
        self._publish(version, lambda slot: slot.copy_(torch.from_numpy(flat)))

    def _publish(self, version: int, fill: Callable[[Tensor], object]) -> None:
        """Let `fill` write a version's slot, float32 [numel], while readers see that it is being written."""
        sequence, slot = self.memory.sequence, version % 2
        sequence[slot] = -1
        fill(self.memory.slots[slot])
        sequence[slot] = version
        sequence[2] = version


class WeightsReader:
    """Reads a weights board in another process, and remembers the version that it has read.

    Args:
        memory: of the board.
    """

    def __init__(self, memory: WeightSlots) -> None:
        self._memory, self._sequence, self._slots = memory, memory.sequence, memory.slots
        self.version = 0

    def __reduce__(self) -> tuple[type[WeightsReader], tuple[WeightSlots]]:
        return WeightsReader, (self._memory,)

    def pull(self, flat: Tensor) -> int:
        """Copy the newest complete version into `flat` (float32 [numel]) if it is new; return the version held."""
        sequence = self._sequence
        while True:
            version = int(sequence[2])
            if version == self.version or version == 0:
                return self.version
            slot = version % 2
            if sequence[slot] == version:
                flat.copy_(self._slots[slot])
                if sequence[slot] == version:  # else it was overwritten meanwhile
                    self.version = version
                    return version
