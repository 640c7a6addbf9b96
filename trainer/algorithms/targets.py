"""Pure functions that losses share (choosing actions, discounts, value rescaling), and the LossModule around them.

B is the batch size, A the number of actions, K the number of a network's outputs for each action.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.modules import QValueActor
from torchrl.objectives import LossModule

from trainer.config.algorithms import ValueConfig
from trainer.config.registries import LOSS_FUNCTIONS

RESCALING_EPS = 1e-3

Network = Callable[..., Tensor]
Errors = tuple[Tensor, Tensor, Tensor]
Objective = Callable[[Network, Network, TensorDictBase], Errors]


def rescale(x: Tensor) -> Tensor:
    """`h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x` (Pohlen et al. 2018, prop. A.2)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + RESCALING_EPS * x


def unrescale(y: Tensor) -> Tensor:
    """The inverse of `rescale`."""
    eps = RESCALING_EPS
    inner = y.abs() + 1 + eps
    root = (1 + 4 * eps * inner).sqrt()
    return y.sign() * ((2 * inner / (root + 1)).square() - 1)  # (root - 1) / (2 eps) would cancel


def discounts(batch: TensorDictBase, gamma: float) -> Tensor:
    """The weight of the next state's value: `gamma^m (1 - terminated)`, float [B, 1]."""
    going_on = ~batch["next", "terminated"]
    steps = batch.get("steps_to_next_obs", None)
    return going_on * (gamma if steps is None else gamma ** steps.float())


def bellman(following: Tensor, batch: TensorDictBase, config: ValueConfig) -> Tensor:
    """`R + gamma^m (1 - terminated) x` for outputs x [B or 1, K] of the next state, rescaled if configured; [B, K]."""
    return backed_up(batch["next", "reward"], discounts(batch, config.gamma), following, config)


def backed_up(rewards: Tensor, counts: Tensor, following: Tensor, config: ValueConfig) -> Tensor:
    """`rewards + counts * following`; with value rescaling `h(rewards + counts * h^-1(following))`."""
    if config.value_rescaling:
        return rescale(rewards + counts * unrescale(following))
    return rewards + counts * following


def first_priority(rewards: Tensor, counts: Tensor, following: Tensor, taken: Tensor, config: ValueConfig) -> Tensor:
    """`|R + gamma^m (1 - terminated) max Q(s') - Q(s, a)|`, float [n] (Horgan et al. 2018, algorithm 1, line 9).

    The first priority of a row, for algorithms whose priority is the absolute TD error of their values. For rescaled
    quantiles it is the error of their mean, within 15 % of the mean of their errors.

    Args:
        rewards: R, float [n].
        counts: `gamma^m (1 - terminated)`, float [n].
        following: `max Q(s')` of the network that the collector acted by, float [n].
        taken: `Q(s, a)` of that network, float [n].
        config: of the algorithm, for value rescaling.
    """
    return (backed_up(rewards, counts, following, config) - taken).abs()


def best(values: Tensor, mask: Tensor | None) -> Tensor:
    """The best legal action of each row, int64 [B], of values [B, A] and a mask bool [B, A] or None."""
    return (values if mask is None else values.masked_fill(~mask, -torch.inf)).argmax(-1)


def of_action(numbers: Tensor, action: Tensor) -> Tensor:
    """The outputs of one action for each row: [B, A, K] and int64 [B] to [B, K].

    By a mask and a sum, not by an index: Inductor compiles the gradient of an index wrongly for IQN on a CPU with
    several threads. It writes outside the tensor, which led to a double free (torch 2.13, pytorch/pytorch#191837).
    Values and gradients have the same bits.
    """
    chosen = torch.arange(numbers.shape[1], device=action.device) == action[:, None]
    return torch.where(chosen[:, :, None], numbers, 0.0).sum(1)


def next_mask(batch: TensorDictBase) -> Tensor | None:
    """Legal actions of the next state, bool [B, A]; None without masks."""
    return batch.get(("next", "action_mask"), None)


def distance(difference: Tensor, loss_function: str) -> Tensor:
    """The Huber loss of each entry with threshold 1 (`smooth_l1`), or half of its square (`l2`).

    In TorchRL's DQNLoss `l2` is the whole square.
    """
    of_entries: Callable[[Tensor], Tensor] = resolve_name(LOSS_FUNCTIONS[loss_function])
    return of_entries(difference)


def huber(difference: Tensor) -> Tensor:
    """Each entry's Huber loss with threshold 1."""
    size = difference.abs()
    return torch.where(size < 1, size.square() / 2, size - 0.5)


def half_square(difference: Tensor) -> Tensor:
    """Half of each entry's square."""
    return difference.square() / 2


class ObjectiveLoss(LossModule):
    """A pure function as a TorchRL loss, with a target network, importance weights and priorities.

    The function is `objective(online, target, batch) -> (loss, td_error, priority)`, float [B] each. `online` and
    `target` are the network with its own parameters and with those of the target network: `target(batch["next"])` calls
    the method `numbers` (or another one: `method=NAME`) on the leaves of the next state.

    Args:
        policy: actor over the network.
        objective: of the algorithm.
    """

    value_network: TensorDictModule  # TorchRL needs these annotations
    value_network_params: TensorDictParams
    target_value_network: TensorDictModule
    target_value_network_params: TensorDictParams

    def __init__(self, policy: QValueActor, objective: Objective) -> None:
        super().__init__()
        self.convert_to_functional(policy, "value_network", create_target_params=True)
        self.objective = objective
        self.leaves = [key for key in policy.in_keys if key != "action_mask"]
        self.in_keys, self.out_keys = [*policy.in_keys, "action", "next"], ["loss"]

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Entry `loss`; writes `td_error` and `priority`, float [B], into `tensordict`."""

        def online(seen: TensorDictBase, **arguments) -> Tensor:
            return self._call(self.value_network_params, seen, arguments)

        def target(seen: TensorDictBase, **arguments) -> Tensor:
            return self._call(self.target_value_network_params, seen, arguments)

        loss, td_error, priority = self.objective(online, target, tensordict)
        tensordict["td_error"], tensordict["priority"] = td_error.detach(), priority.detach()
        # Divided by the number of weights (Schaul et al. 2016, algorithm 1, line 12). Divided by their sum, as in
        # TorchRL's losses, a batch of rows that are all drawn too often would count as much as any other.
        weight = tensordict.get("priority_weight", None)
        return TensorDict(loss=(loss if weight is None else loss * weight).mean())

    def _call(self, parameters: TensorDictBase, seen: TensorDictBase, arguments: dict) -> Tensor:
        with parameters.to_module(self.value_network, preserve_module_state=False):
            network = self.value_network.module[0].module
            method = getattr(network, arguments.pop("method", "numbers"))
            return method(*[seen[leaf] for leaf in self.leaves], **arguments)


def td_error_of(batch: TensorDictBase) -> Tensor:
    """Absolute TD errors, float [B], which `ObjectiveLoss` has written."""
    return batch["td_error"]


def priority_of(batch: TensorDictBase) -> Tensor:
    """Priorities, float [B], which `ObjectiveLoss` has written."""
    return batch["priority"]
