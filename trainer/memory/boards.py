"""Shared memory between the processes of a run: control board, agents' boards and weights boards.

Nothing here sends a message or takes a lock. Every field has one writer; readers poll. Both boards reach a worker
through pickling by torch's ForkingPickler, which keeps shared tensors shared.

On x86-64 stores become visible in program order. Elsewhere a barrier between data and sequence number would be needed,
which Python does not offer; torn reads there are caught by the sequence check with high probability only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.weight_update.weight_sync_schemes import WeightSyncScheme

from trainer.memory.blocks import Fields, shared_block, views_of

EPISODES_KEPT = 1024  # finished episodes a worker keeps for the main process to read
VERSIONS_KEPT = 4096  # published weights whose number of updates is known
START_S = 60.0  # beyond the time after which it is taken for hung, that a process may take to start
ERROR_BYTES = 16_384  # of a worker's traceback

# Commands in ControlBoard.command
RUN, STOP = 0, 1


def _view(board: object, tensors: dict[str, Tensor]) -> None:
    """NumPy views of shared tensors as attributes."""
    for name, tensor in tensors.items():
        setattr(board, name, tensor.numpy())


class ControlBoard:
    """Orders to the collectors and how they are, in shared memory.

    NumPy views are attributes; the torch tensors behind them are what crosses a process border.

    Args:
        num_workers: W.

    Attributes:
        command: int64 [1], ``RUN`` or ``STOP``; written by the main process.
        round: int64 [1], the round that may be collected (sync); main.
        rounds_done: int64 [W], rounds finished (sync); its worker.
        heartbeat: float64 [W], ``time.monotonic()`` of the last sub-environment's step or wait; its worker.
        waited_s: float64 [W], seconds spent waiting for a ``frame_limit``; its worker.
        pid: int64 [W], the worker's process id; its worker.
        snapshot: int64 [1], number of the last request for the workers' state (sync); main.
        snapshots_done: int64 [W], number of the request that was answered; its worker.
        closed: int64 [W], whether the worker's environments are closed; its worker.
        error: uint8 [W, ERROR_BYTES], UTF-8 text of a worker's traceback, zero-padded; its worker.
    """

    command: NDArray[np.int64]
    round: NDArray[np.int64]
    rounds_done: NDArray[np.int64]
    heartbeat: NDArray[np.float64]
    waited_s: NDArray[np.float64]
    pid: NDArray[np.int64]
    snapshot: NDArray[np.int64]
    snapshots_done: NDArray[np.int64]
    closed: NDArray[np.int64]
    error: NDArray[np.uint8]

    def __init__(self, num_workers: int) -> None:
        w = num_workers
        self._fields: Fields = {
            "command": ((1,), torch.int64),
            "round": ((1,), torch.int64),
            "rounds_done": ((w,), torch.int64),
            "heartbeat": ((w,), torch.float64),
            "waited_s": ((w,), torch.float64),
            "pid": ((w,), torch.int64),
            "snapshot": ((1,), torch.int64),
            "snapshots_done": ((w,), torch.int64),
            "closed": ((w,), torch.int64),
            "error": ((w, ERROR_BYTES), torch.uint8),
        }
        self._block = shared_block(self._fields)
        _view(self, views_of(self._block, self._fields))

    def __getstate__(self) -> tuple[Fields, Tensor]:
        return self._fields, self._block

    def __setstate__(self, state: tuple[Fields, Tensor]) -> None:
        self._fields, self._block = state
        _view(self, views_of(self._block, self._fields))

    def stopping(self) -> bool:
        """Whether the main process wants every process to return."""
        return self.command[0] == STOP

    def lives(self, worker: int) -> None:
        """A sign of life of a worker."""
        self.heartbeat[worker] = time.monotonic()

    def watcher(self, worker: int) -> Callable[[], None]:
        """The same as :meth:`lives`, for a hot loop: a third of its cost."""
        words: Any = self.heartbeat.data
        now = time.monotonic

        def beat() -> None:
            words[worker] = now()

        return beat

    def starts(self, worker: int) -> None:
        """The same of one that is not yet up, which may take long without another one."""
        self.heartbeat[worker] = time.monotonic() + START_S

    def write_error(self, worker: int, text: str) -> None:
        """Leave a traceback where the main process finds it; the end is kept when it is too long."""
        data = text.encode(errors="backslashreplace")[-ERROR_BYTES:].ljust(
            ERROR_BYTES, b"\0"
        )  # padded: an earlier error may have been longer
        self.error[worker] = np.frombuffer(data, np.uint8)

    def read_error(self, worker: int) -> str:
        """The traceback that a worker left, or an empty text."""
        return bytes(self.error[worker]).rstrip(b"\0").decode(errors="replace")


class AgentBoard:
    """What one agent's collectors and learner count, in shared memory; no other agent's process writes here.

    Args:
        num_workers: W.
        num_streams: S, sub-environments of all workers together.
        block: memory for :func:`agent_fields`; None: of its own.

    Attributes:
        frame_limit: int64 [1], collectors wait while the agent's frames are not below it; the learner's process.
        episode_limit: int64 [1], the same of episodes where they are what updates are due for; the learner's process.
        schedule_frames: int64 [1], frames at the round's start, from which exploration follows (sync); main.
        frames: int64 [W], the agent's transitions collected; its worker.
        cursor: int64 [S], rows published in a stream; its worker, after the rows.
        oldest: int64 [S], time of the oldest row that a resumed run found in a stream; main, before the start.
        version: int64 [W], weights version that a worker acts by; its worker.
        epsilon: float64 [W], mean exploration rate of the last vector step; its worker.
        episodes: float64 [W, EPISODES_KEPT, 3], ring of (return, length, frames at its end); its worker.
        episodes_done: int64 [W], episodes finished; its worker, after the ring.
        episodes_before: int64 [1], episodes that were finished before the run was resumed; main, before the start.
        updates: int64 [1], updates made; the learner's process.
        version_updates: int64 [VERSIONS_KEPT], ring of the updates after which each version of the weights was
            published; the learner's process.
        lost_at: int64 [1], frames after which a resumed run goes on with an empty replay; 0 if it does not; main.
        learner_heartbeat: float64 [1], ``time.monotonic()`` of the learner's last look around; its process.
        learner_waited_s: float64 [1], seconds that the learner had nothing due; its process.
    """

    frame_limit: NDArray[np.int64]
    episode_limit: NDArray[np.int64]
    schedule_frames: NDArray[np.int64]
    frames: NDArray[np.int64]
    cursor: NDArray[np.int64]
    oldest: NDArray[np.int64]
    version: NDArray[np.int64]
    epsilon: NDArray[np.float64]
    episodes: NDArray[np.float64]
    episodes_done: NDArray[np.int64]
    episodes_before: NDArray[np.int64]
    updates: NDArray[np.int64]
    version_updates: NDArray[np.int64]
    lost_at: NDArray[np.int64]
    learner_heartbeat: NDArray[np.float64]
    learner_waited_s: NDArray[np.float64]

    def __init__(self, num_workers: int, num_streams: int, block: Tensor | None = None) -> None:
        self._fields = agent_fields(num_workers, num_streams)
        self._block = shared_block(self._fields) if block is None else block
        _view(self, views_of(self._block, self._fields))

    def __getstate__(self) -> tuple[Fields, Tensor]:
        return self._fields, self._block

    def __setstate__(self, state: tuple[Fields, Tensor]) -> None:
        self._fields, self._block = state
        _view(self, views_of(self._block, self._fields))

    def total_frames(self) -> int:
        """The agent's transitions, collected by all workers."""
        return int(self.frames.sum())

    def total_episodes(self) -> int:
        """The agent's finished episodes, of all workers and of the whole run."""
        return int(self.episodes_done.sum() + self.episodes_before[0])

    def learner_lives(self) -> None:
        """A sign of life of the learner's process."""
        self.learner_heartbeat[0] = time.monotonic()

    def learner_starts(self) -> None:
        """The same of one that is not yet up, which may take long without another one."""
        self.learner_heartbeat[0] = time.monotonic() + START_S

    def read_episodes(self, seen: np.ndarray) -> np.ndarray:
        """Episodes finished since ``seen`` (int64 [W], updated in place), float64 [n, 3] as in ``episodes``."""
        new = []
        for worker, end in enumerate(self.episodes_done.copy()):
            begin = max(int(seen[worker]), int(end) - EPISODES_KEPT)
            new.append(self.episodes[worker, np.arange(begin, end) % EPISODES_KEPT])
            seen[worker] = end
        return np.concatenate(new)


def agent_fields(num_workers: int, num_streams: int) -> Fields:
    """Of an `AgentBoard`."""
    w, s = num_workers, num_streams
    return {
        "frame_limit": ((1,), torch.int64),
        "episode_limit": ((1,), torch.int64),
        "schedule_frames": ((1,), torch.int64),
        "frames": ((w,), torch.int64),
        "cursor": ((s,), torch.int64),
        "oldest": ((s,), torch.int64),
        "version": ((w,), torch.int64),
        "epsilon": ((w,), torch.float64),
        "episodes": ((w, EPISODES_KEPT, 3), torch.float64),
        "episodes_done": ((w,), torch.int64),
        "episodes_before": ((1,), torch.int64),
        "updates": ((1,), torch.int64),
        "version_updates": ((VERSIONS_KEPT,), torch.int64),
        "lost_at": ((1,), torch.int64),
        "learner_heartbeat": ((1,), torch.float64),
        "learner_waited_s": ((1,), torch.float64),
    }


def ordered_leaves(weights: TensorDictBase) -> list[Tensor]:
    """The float tensors of ``weights`` in an order that depends on their names only.

    Constants such as indices stay home.
    """
    named = sorted(weights.items(True, True), key=lambda item: str(item[0]))
    return [leaf for _, leaf in named if leaf.is_floating_point()]


def ordered_tensors(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Names and tensors of a module in the boards' order."""
    tensors = TensorDict.from_module(module).items(True, True)
    paths = [((key,) if isinstance(key, str) else key, leaf) for key, leaf in tensors]
    named = sorted(paths, key=lambda item: str(item[0]))  # as ordered_leaves sorts them below a common prefix
    return [(".".join(path), leaf) for path, leaf in named if leaf.is_floating_point()]


def flatten_parameters(module: torch.nn.Module) -> Tensor:
    """Make all float parameters and buffers of ``module`` views of one flat float32 tensor [numel].

    They lie in the board's order, so that a new version reaches the module by one copy.
    """
    leaves = ordered_leaves(TensorDict.from_module(module))
    flat = torch.empty(sum(leaf.numel() for leaf in leaves))
    offset = 0
    for leaf in leaves:
        view = flat[offset : offset + leaf.numel()].view(leaf.shape)
        view.copy_(leaf.detach())
        leaf.data = view
        offset += leaf.numel()
    return flat


def weights_fields(numel: int) -> Fields:
    """Of a `WeightsBoard`: version in slot 0, in slot 1, newest; and the two slots."""
    return {"sequence": ((3,), torch.int64), "slots": ((2, numel), torch.float32)}


class WeightsBoard(WeightSyncScheme):
    """TorchRL weight sync scheme without acknowledgement: a versioned double buffer in shared memory.

    The learner writes version v into slot v % 2 and returns; a worker copies the newest complete version between two
    vector steps. A version is complete while its slot carries its number before and after the copy. A dead or slow
    worker blocks nobody.

    Args:
        numel: number of float32 values of all parameters and buffers together.
        block: memory for :func:`weights_fields`; None: of its own.
    """

    def __init__(self, numel: int, block: Tensor | None = None) -> None:
        super().__init__()
        self.numel = numel
        self._block = shared_block(weights_fields(numel)) if block is None else block
        self._sequence, self._slots = views_of(self._block, weights_fields(numel)).values()

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        del state["_slots"], state["_sequence"]
        return state

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._sequence, self._slots = views_of(self._block, weights_fields(self.numel)).values()

    def reader(self) -> WeightsReader:
        """What another process needs in order to read."""
        return WeightsReader(self._block, self.numel)

    def another(self) -> WeightsBoard:
        """A scheme on the same memory: TorchRL ties a scheme to one collector."""
        twin = WeightsBoard(0)
        twin.numel, twin._block = self.numel, self._block
        twin._slots, twin._sequence = self._slots, self._sequence
        return twin

    @property
    def version(self) -> int:
        """The newest complete version; 0 before the first."""
        return int(self._sequence[2])

    # What TorchRL calls; nothing here waits.
    def _init_on_sender_impl(self, *, model_id, context=None, **_):
        self.model_id = model_id

    def _init_on_receiver_impl(self, *, model_id, context=None, model=None, worker_idx=None, **_):
        self.model_id = model_id
        if context is not None:
            self.context = context  # where TorchRL looks for the model

    def connect(self, *, worker_idx=None):
        """Nothing to wait for: the memory came with the process."""
        if self._initialized_on_sender:
            self.synchronized_on_sender = True
        elif self._initialized_on_receiver:
            self.synchronized_on_receiver = True

    def create_transport(self, **_):
        """Not used: there are no messages."""
        raise NotImplementedError

    def receive(self, timeout=None):
        """Workers read between vector steps instead."""
        return None

    def shutdown(self):
        """Shared memory goes with its last process."""

    def send(self, weights: TensorDictBase | None = None, worker_ids=None) -> None:
        """Publish ``weights`` (nested TensorDict of float tensors on any device) as the next version."""
        sequence = self._sequence.numpy()
        version = int(sequence[2]) + 1
        slot = version % 2
        sequence[slot] = -1
        parts = [leaf.detach().reshape(-1) for leaf in ordered_leaves(weights)]
        if parts[0].is_cuda:
            self._slots[slot].copy_(torch.cat(parts))  # one transfer instead of one for each tensor
        else:
            torch.cat(parts, out=self._slots[slot])
        sequence[slot] = version
        sequence[2] = version


class WeightsReader:
    """A process's own look at a weights board."""

    def __init__(self, block: Tensor, numel: int) -> None:
        self._block, self._numel = block, numel
        sequence, self._slots = views_of(block, weights_fields(numel)).values()
        self._sequence = sequence.numpy()
        self.version = 0

    def __reduce__(self):
        return WeightsReader, (self._block, self._numel)

    def pull(self, flat: Tensor) -> int:
        """Copy the newest complete version into ``flat`` (float32 [numel]) if it is new; return the version held."""
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
