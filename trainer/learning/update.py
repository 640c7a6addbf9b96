"""An update: batch -> loss -> optimiser -> target network.

`trainer.roles.pace` decides when an update is due; `trainer.roles.learner` supplies the batches.

Loss and gradient are one function of plain tensors (`make_gradients`). `learner.execution` chooses how it runs:

- `eager`: as written, operation by operation.
- `trace`: recorded once as a list of tensor operations, forward and backward, which TorchScript's interpreter runs: the
  same operations in the same order, without Python, autograd or TensorDict in between.
- `compile`: that recording, compiled by Inductor; needs a C++ compiler and about 10 s.
- `auto`: `trace`, which was the fastest for MLPs on a CPU and has no requirements (`benchmarks/learner.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.algorithms import Algorithm
from trainer.config.algorithms import AlgorithmConfig
from trainer.config.sections import LearnerConfig
from trainer.learning.feed import Batch
from trainer.learning.gradients import make_gradients, parameter_groups
from trainer.memory.weights import ordered_leaves
from trainer.networks.recording import record

BETAS = (0.9, 0.999)
MAX_METRICS = 32  # most metrics of an update


class NotFinite(RuntimeError):
    """A loss or gradient was NaN or infinite; that update and all later ones were not applied."""


class Updater:
    """Has the trained weights, the target network's weights and the optimiser's state, and updates them.

    Args:
        algorithm: its loss is moved to `device`.
        config: the section `learner`.
        target: the section `algorithm`, for the updates of the target network.
        device: of the updates.
    """

    def __init__(
        self, algorithm: Algorithm, config: LearnerConfig, target: AlgorithmConfig, device: torch.device
    ) -> None:
        self.config, self.device = config, device
        self.algorithm = algorithm
        algorithm.loss.to(device)
        self.groups, self.trained_keys, self.target_keys = parameter_groups(algorithm)
        parameters = [getattr(algorithm.loss, name).get(key) for name, key in self.trained_keys]
        self.optimizer = torch.optim.Adam(
            parameters, lr=config.learning_rate, eps=config.adam_eps, betas=BETAS, fused=True
        )
        step = torch.zeros((), device=device)  # all parameters are updated together: one count for all of them
        for parameter in parameters:
            self.optimizer.state[parameter] = {
                "step": step,
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.learning_rate = config.learning_rate
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.not_finite = torch.zeros((), device=device)  # 1 once a loss or a gradient was not finite
        self._sums = torch.zeros(MAX_METRICS, device=device)
        self._parameters = parameters
        self._look()
        self.tau, self.target_every = target.target_tau, target.target_update_every_updates
        self._gradients: Callable | None = None
        self.names: list[str] = []
        self._summed = 0
        self.last_batch: Batch | None = None  # valid until the next but one gathering
        self.updates = 0
        self.optimize: Callable[[list[Tensor]], None] = self._adam  # or the step of a shared optimiser

    def _look(self) -> None:
        """Collect the tensors that an update reads and writes."""
        self.groups, _, _ = parameter_groups(self.algorithm)
        self.trained = [self.groups[name].get(key) for name, key in self.trained_keys]
        self.targets = [self.groups[name].get(key) for name, key in self.target_keys]
        moments = [self.optimizer.state[p] for p in self._parameters]
        self._first, self._second, self.steps = ([m[k] for m in moments] for k in ("exp_avg", "exp_avg_sq", "step"))
        # The first arguments of the gradient function; the batch follows.
        self.inputs = [*self.trained, *self.targets, self.not_finite, self._sums]

    def move_into(
        self, trained: Sequence[Tensor], targets: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor],
        not_finite: Tensor, sums: Tensor,
    ) -> None:  # fmt: skip
        """Move weights, targets, moments and metrics into the given tensors, which are views of those of a stack."""
        mine = (*self.trained, *self.targets, *self._first, *self._second)
        for tensor, place in zip(mine, (*trained, *targets, *first, *second), strict=True):
            place.copy_(tensor)
        loss = self.algorithm.loss
        for keys, places in ((self.trained_keys, trained), (self.target_keys, targets)):
            for (name, key), place in zip(keys, places, strict=True):
                getattr(loss, name).get(key).data = place
        for moments, exp_avg, exp_avg_sq in zip(self.optimizer.state.values(), first, second, strict=True):
            moments["exp_avg"], moments["exp_avg_sq"] = exp_avg, exp_avg_sq
        self.not_finite, self._sums = not_finite, sums
        self._look()

    @property
    def weights(self) -> TensorDictBase:
        """The weights to be published."""
        return self.groups[self.algorithm.acts]

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of the next updates."""
        self.learning_rate = value
        self.rate.fill_(value)

    def update(self, batch: Batch) -> Tensor:
        """Make one optimiser step on a batch, and update the target network when due.

        Args:
            batch: tensors [B, ...] on the learner's device.

        Returns:
            New priorities of the batch's transitions, float32 [B] on the device.
        """
        calculate = self._prepare(batch) if self._gradients is None else self._gradients
        with torch.no_grad():
            *gradients, priority = calculate(*self.inputs, *batch.values())
            self.apply(gradients)
        self.last_batch = batch
        return priority

    def apply(self, gradients: list[Tensor]) -> None:
        """Make one optimiser step, and update the target network when due.

        Args:
            gradients: clipped, with the strides of the parameters.
        """
        with torch.no_grad():
            self.optimize(gradients)
            self.count()
            if self.tau is not None:
                torch._foreach_lerp_(self.targets, self.trained, self.tau)
            elif self.updates % self.target_every == 0:
                torch._foreach_copy_(self.targets, self.trained)

    def _adam(self, gradients: list[Tensor]) -> None:
        self.steps[0].add_(1)
        # found_inf: after a loss that is not finite no update is applied, so the weights stay finite.
        torch._fused_adam_(
            self.trained, gradients, self._first, self._second, [], self.steps, lr=self.rate, beta1=BETAS[0],
            beta2=BETAS[1], weight_decay=0.0, eps=self.config.adam_eps, amsgrad=False, maximize=False,
            found_inf=self.not_finite,
        )  # fmt: skip

    def count(self) -> None:
        """Count one update."""
        self.updates += 1
        self._summed += 1

    def prepare(self, example: Batch) -> None:
        """Record the update for batches like `example`, so that the first update need not; changes no weights."""
        batch = {key: tensor.to(self.device) for key, tensor in example.items()}
        calculate = self._prepare(batch)
        with torch.no_grad():
            for _ in range(2):  # TorchScript optimises in its second call
                calculate(*[tensor.clone() for tensor in (*self.inputs, *batch.values())])

    def metrics(self) -> dict[str, float]:
        """Mean metrics of the updates since the last call; waits for the device.

        Raises:
            NotFinite: a loss or gradient was NaN or infinite; no update was applied since then.
        """
        if not self._summed:
            return {}
        self.check()
        means = dict(zip(self.names, (self._sums / self._summed).tolist(), strict=False))
        self._sums.zero_()
        self._summed = 0
        return means

    def check(self) -> None:
        """Raise `NotFinite` if a loss or gradient was not finite since the start; waits for the device."""
        if self.not_finite.item():
            raise NotFinite(
                "the loss or its gradient became NaN or infinite within the last updates before update "
                f"{self.updates}; lower learner.learning_rate, set learner.max_grad_norm, or look for NaN in the "
                "environment's rewards"
            )

    def load_flat(self, flat: Tensor) -> None:
        """Set network and target network to the weights of a policy, float32 [numel] in the boards' order."""
        offset = 0
        targets = self.groups[self.algorithm.targets[self.algorithm.acts]]
        for mine, target in zip(ordered_leaves(self.weights), ordered_leaves(targets), strict=True):
            part = flat[offset : offset + mine.numel()].view(mine.shape)
            mine.copy_(part)
            target.copy_(part)
            offset += mine.numel()

    def state_dict(self) -> dict:
        """Copies of all weights, the optimiser's state, the learning rate and the number of updates."""
        return {
            "loss": {k: v.clone() for k, v in self.algorithm.loss.state_dict().items() if isinstance(v, Tensor)},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "learning_rate": float(self.rate),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore a `state_dict`. Tensors are written in place, so a recorded update stays valid.

        Raises:
            ValueError: it is of another network.
        """
        mine = self.algorithm.loss.state_dict()
        if shapes_of(mine) != shapes_of(state["loss"]):
            raise ValueError("its network has other layers")
        for name, value in state["loss"].items():
            mine[name].copy_(value)
        for moments, saved in zip(self.optimizer.state.values(), state["optimizer"]["state"].values(), strict=True):
            for name, value in saved.items():
                moments[name].copy_(value)
        self.set_learning_rate(state["learning_rate"])
        self.updates = state["updates"]

    def _prepare(self, batch: Batch) -> Callable:
        """Build the gradient function for batches like this one."""
        function, self.names = make_gradients(self, batch)
        execution = "trace" if self.config.execution == "auto" else self.config.execution
        if execution != "eager":
            function = record(function, [*self.inputs, *batch.values()], execution)
        self._gradients = function
        return function


def shapes_of(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each tensor of a network's state."""
    return {name: value.shape for name, value in state.items()}


def flat_weights(updater: Updater) -> Tensor:
    """A copy of the weights to be published, float32 [numel] on the CPU, in the boards' order."""
    return torch.cat([w.reshape(-1) for w in ordered_leaves(updater.weights)]).cpu()


def linear(start: float, end: float | None, fraction: float) -> float:
    """A value that moves linearly from `start` to `end` as `fraction` goes from 0 to 1."""
    return start if end is None else start + (end - start) * min(1.0, math.floor(fraction * 100) / 100)
