"""An update: batch -> loss -> optimiser -> target network.

`trainer.roles.pace` decides when an update is due; `trainer.roles.learner` supplies the batches.

The algorithm is phases of parts. Loss and gradient of a part are one function of plain tensors (`make_gradients`).
`learner.execution` chooses how it runs:

- `eager`: as written, operation by operation.
- `trace`: recorded once as a list of tensor operations, forward and backward, which TorchScript's interpreter runs: the
  same operations in the same order, without Python, autograd or TensorDict in between.
- `compile`: that recording, compiled by Inductor; needs a C++ compiler and about 10 s.
- `auto`: `trace`, which was the fastest for MLPs on a CPU and has no requirements (`benchmarks/learner.py`).

With `learner.parallel_parts` recorded parts of a phase are computed at once in threads (`trainer.learning.threads`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from trainer.algorithms import Algorithm
from trainer.algorithms.algorithm import Part, TargetUpdates
from trainer.config.sections import LearnerConfig
from trainer.learning.feed import Batch
from trainer.learning.gradients import PartUpdate, groups_of, make_gradients, no_noise, read_by
from trainer.learning.optimizer import adam_steps, scripted_adam_step, trained_groups
from trainer.learning.threads import Threads, let_run_at_once
from trainer.memory.weights import ordered_leaves
from trainer.networks.recording import record

MAX_METRICS = 32  # most metrics of a part


class NotFinite(RuntimeError):
    """A loss or gradient was NaN or infinite; that update and all later ones were not applied."""


class Updater:
    """Has the trained weights, the target networks' weights and the optimiser's state, and updates them.

    Args:
        algorithm: its loss is moved to `device`.
        config: the section `learner`.
        device: of the updates.
        seed: of the noise that the algorithm's parts are given.

    Attributes:
        trained: weights of all groups.
        targets: of those that have target networks, in the same order.
        followed: the weights that the target networks follow.
        phases: the parts of each phase, in the order of the algorithm.
    """

    def __init__(self, algorithm: Algorithm, config: LearnerConfig, device: torch.device, seed: int = 0) -> None:
        self.config, self.device, self.algorithm = config, device, algorithm
        algorithm.loss.to(device)
        self.learning_rate = config.learning_rate
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.of_groups, self.optimizer = trained_groups(algorithm.groups, algorithm.loss, self.rate, config)
        self.not_finite = torch.zeros((), device=device)  # 1 once a loss or a gradient was not finite
        self.phases = [[self._part(part, phase.every) for part in phase.parts] for phase in algorithm.phases]
        self.parts = [one for phase in self.phases for one in phase]
        self._generator = torch.Generator().manual_seed(seed)
        self.look()
        self._threads = Threads()
        self.last_batch: Batch | None = None  # valid until the next but one gathering
        self.updates = 0
        self.optimize: Callable[[PartUpdate, list[Tensor]], None] = self._adam  # or the step of a shared optimiser

    def _part(self, part: Part, every: int) -> PartUpdate:
        trained = [one for name in part.trains for one in self.of_groups if one.group.name == name]
        sums = torch.zeros(MAX_METRICS, device=self.device)
        return PartUpdate(part, every, trained, read_by(part, self.of_groups), sums)

    def look(self) -> None:
        """Collect the tensors that an update reads and writes."""
        self.groups = groups_of(self.algorithm)
        for of_group in self.of_groups:
            of_group.look(self.groups, self.optimizer)
        for one in self.parts:
            one.look(self.groups, self.not_finite)
        self.trained, self.targets, self.first, self.second = (
            [tensor for of_group in self.of_groups for tensor in getattr(of_group, name)]
            for name in ("weights", "targets", "first", "second")
        )
        self.followed = [weight for of_group in self.of_groups if of_group.targets for weight in of_group.weights]

    @property
    def weights(self) -> TensorDictBase:
        """The weights to be published."""
        return self.groups[self.algorithm.acts]

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of the next updates; groups with one of their own follow in proportion."""
        self.learning_rate = value
        self.rate.fill_(value)
        for of_group in self.of_groups:
            if of_group.scale is not None:
                of_group.rate.fill_(of_group.scale * value)

    def update(self, batch: Batch) -> Tensor:
        """Make one update on a batch: the phases that are due, and the target networks when due.

        Args:
            batch: tensors [B, ...] on the learner's device.

        Returns:
            New priorities of the batch's transitions, float32 [B] on the device.
        """
        if self.parts[0].function is None:
            self._prepare(batch)
        priorities = []
        with torch.no_grad():
            for phase in self.phases:
                if (self.updates + 1) % phase[0].every:
                    continue
                found = self._calculated(phase, batch)
                for one, (*gradients, priority) in zip(phase, found, strict=True):
                    if not one.steps:
                        self.optimize(one, gradients)
                    priorities.append(priority)
            self.conclude()
        self.last_batch = batch
        return priorities[0]

    def _calculated(self, phase: list[PartUpdate], batch: Batch) -> list[tuple[Tensor, ...]]:
        noise = [[self.drawn(shape, batch) for shape in one.part.noise] for one in phase]
        return self._threads.calculated(phase, noise, batch, self.not_finite)

    def drawn(self, shape: tuple[int, ...], batch: Batch) -> Tensor:
        """Noise for a batch [B], float32 [B, *shape], from the updater's own generator."""
        size = len(batch["next", "reward"])
        return torch.randn(size, *shape, generator=self._generator).to(self.device)

    def _adam(self, one: PartUpdate, gradients: list[Tensor]) -> None:
        adam_steps(one.sizes, gradients, one.state, self.not_finite, self.config.adam_eps)

    def step_by(self, optimize: Callable[[PartUpdate, list[Tensor]], None]) -> None:
        """Have the steps made by a shared optimiser: `optimize(part, gradients)`."""
        self.optimize = optimize
        for one in self.parts:
            one.function = None

    def conclude(self) -> None:
        """Count one update whose gradients are applied, and update the target networks when due."""
        self.count()
        follow(self.algorithm.target_updates, self.targets, self.followed, self.updates)

    def count(self) -> None:
        """Count one update."""
        self.updates += 1
        for one in self.parts:
            one.summed += self.updates % one.every == 0

    def prepare(self, example: Batch) -> None:
        """Record the update for batches like `example`, so that the first update need not; changes no weights."""
        batch = {key: tensor.to(self.device) for key, tensor in example.items()}
        self._prepare(batch)
        with torch.no_grad():
            for one in self.parts:
                assert one.function is not None
                inputs = one.arguments(no_noise(one.part, batch), batch)
                for _ in range(2):  # TorchScript optimises in its second call
                    one.function(*[tensor.clone() for tensor in inputs])

    def metrics(self) -> dict[str, float]:
        """Mean metrics of the updates since the last call; waits for the device.

        Raises:
            NotFinite: a loss or gradient was NaN or infinite; no update was applied since then.
        """
        means: dict[str, float] = {}
        if any(one.summed for one in self.parts):
            self.check()
        for one in self.parts:
            if one.summed:
                means |= dict(zip(one.names, (one.sums / one.summed).tolist(), strict=False))
                one.sums.zero_()
                one.summed = 0
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
        target, offset = self.algorithm.targets.get(self.algorithm.acts), 0
        copies = [self.weights] if target is None else [self.weights, self.groups[target]]
        for leaves in zip(*map(ordered_leaves, copies), strict=True):
            part = flat[offset : offset + leaves[0].numel()].view(leaves[0].shape)
            for leaf in leaves:
                leaf.copy_(part)
            offset += part.numel()

    def state_dict(self) -> dict:
        """Copies of all weights, the optimiser's state, the learning rate, the number of updates, and of the noise."""
        state = {
            "loss": {k: v.clone() for k, v in self.algorithm.loss.state_dict().items() if isinstance(v, Tensor)},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "learning_rate": float(self.rate),
            "updates": self.updates,
        }
        return {**state, "noise": self._generator.get_state()} if any(one.part.noise for one in self.parts) else state

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
        if "noise" in state:
            self._generator.set_state(state["noise"])

    def _prepare(self, batch: Batch) -> None:
        for phase in self.phases:
            for one in phase:
                # The steps of parts that see the same weights come after all of their gradients.
                _make_function(self, one, batch, may_step=len(phase) == 1 and self.optimize == self._adam)
            if self.config.parallel_parts:
                let_run_at_once(phase, len(batch["next", "reward"]), self.groups, self.not_finite)


def _make_function(updater: Updater, one: PartUpdate, batch: Batch, may_step: bool) -> None:
    """Make the function of a part, for batches like this one.

    If it may, Adam's step is recorded with the gradients: a tenth less time for an update of a small network.
    """
    execution = "trace" if updater.config.execution == "auto" else updater.config.execution
    function, one.names = make_gradients(updater, one, batch)
    one.steps = may_step and execution == "trace"
    if execution != "eager":
        example = [*one.inputs, *no_noise(one.part, batch), *batch.values()]
        then, more = (partial(_stepped, one, updater.config.adam_eps), one.state) if one.steps else (None, [])
        function = record(function, example, execution, then, more)
    one.function = function


def _stepped(one: PartUpdate, eps: float, found: tuple[Tensor, ...], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    *gradients, priority = found
    return *adam_steps(one.sizes, gradients, state[:-1], state[-1], eps, scripted_adam_step), priority


def follow(due: TargetUpdates, targets: list[Tensor], weights: list[Tensor], updates: int) -> None:
    """Update target networks, if that is due after so many updates."""
    if not targets or updates % due.every:
        return
    if due.tau is not None:
        torch._foreach_lerp_(targets, weights, due.tau)
    else:
        torch._foreach_copy_(targets, weights)


def shapes_of(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each tensor of a network's state."""
    return {name: value.shape for name, value in state.items()}


def flat_weights(weights: TensorDictBase) -> Tensor:
    """A copy of a group's tensors, float32 [numel] on the CPU, in the boards' order."""
    return torch.cat([w.reshape(-1) for w in ordered_leaves(weights)]).cpu()


def linear(start: float, end: float | None, fraction: float) -> float:
    """A value that moves linearly from `start` to `end` as `fraction` goes from 0 to 1."""
    return start if end is None else start + (end - start) * min(1.0, math.floor(fraction * 100) / 100)
