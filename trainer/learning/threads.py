"""Parts of an update that see the same weights, computed at once: each in a thread.

The interpreter of a recording holds no lock of Python, so two parts take two cores. Each part is computed by one thread
from first to last, so the bits are those of one part after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.config.machine import available_cores
from trainer.learning.feed import Batch
from trainer.learning.gradients import PartUpdate

Call = tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]  # a function and its arguments
SMALLEST = 5e6  # floating-point operations of the smallest part; below that handing it over costs what it gains


class Threads:
    """Threads that compute calls beside the calling one. They are made when they are needed, and end with this."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def calculated(
        self, phase: Sequence[PartUpdate], noise: Sequence[Sequence[Tensor]], batch: Batch, not_finite: Tensor
    ) -> list[tuple[Tensor, ...]]:
        """The gradients and priorities of a phase's parts, all at the same weights.

        Args:
            phase: parts whose functions are made.
            noise: of each part.
            batch: tensors [B, ...].
            not_finite: float32 [], set to 1 if a loss or gradient is not finite.
        """
        calls = list[Call]()
        for one, drawn in zip(phase, noise, strict=True):
            assert one.function is not None
            calls.append((one.function, one.arguments(drawn, batch)))
        if phase[0].not_finite is None:
            return [function(*tensors) for function, tensors in calls]
        found = self.run(calls)
        for one in phase:
            assert one.not_finite is not None
            torch.maximum(not_finite, one.not_finite, out=not_finite)
        return found

    def run(self, calls: Sequence[Call]) -> list[tuple[Tensor, ...]]:
        """The results of the calls.

        The calling thread computes the first, and then those that no thread has begun: on busy cores a thread may wait
        longer for a core than its part takes.
        """
        if self._pool is None:  # its threads inherit how this one treats denormal numbers
            number = torch.get_num_threads()  # else MKL takes all cores in each new thread, and its threads spin
            self._pool = ThreadPoolExecutor(len(calls) - 1, "parts", torch.set_num_threads, (number,))
        others = [self._pool.submit(_computed, call) for call in calls[1:]]
        found = [_computed(calls[0])]
        for call, other in zip(calls[1:], others, strict=True):
            found.append(_computed(call) if other.cancel() else other.result())
        return found


def gain_by_threads(parts: Sequence[PartUpdate], batch_size: int, device: torch.device) -> bool:
    """Whether the parts of a phase give the same bits faster if each has a thread.

    They must be recorded, write nothing that others read, and draw nothing from torch's global generator, whose order
    would depend on the threads. Each must be large, and there must be cores for the threads of all.
    """
    if len(parts) < 2 or device.type != "cpu" or available_cores() < len(parts) * torch.get_num_threads():
        return False
    if any(one.group.buffers for part in parts for one in part.trained):
        return False
    graphs = [getattr(part.function, "graph", None) for part in parts]
    if any(graph is None or any(node.isNondeterministic() for node in graph.nodes()) for graph in graphs):
        return False
    weights = [sum(weight.numel() for weight in part.weights) for part in parts]
    return 6 * batch_size * min(weights) >= SMALLEST  # a product and a sum, forward and twice backward


def let_run_at_once(
    phase: Sequence[PartUpdate], batch_size: int, groups: dict[str, TensorDictBase], not_finite: Tensor
) -> None:
    """Let the parts of a phase, whose functions are made, run at once, if that can be faster.

    Each then has a flag of its own for what is not finite, as two threads would overwrite each other's.
    """
    if gain_by_threads(phase, batch_size, not_finite.device):
        for one in phase:
            one.not_finite = not_finite.clone()
            one.look(groups, not_finite)


def _computed(call: Call) -> tuple[Tensor, ...]:
    function, arguments = call
    with torch.no_grad():  # a setting of each thread, too
        return function(*arguments)
