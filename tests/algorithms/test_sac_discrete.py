"""Discrete SAC by hand, with masks, and against TorchRL's DiscreteSACLoss on the same weights and batch."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor
from torchrl.modules.distributions import OneHotCategorical
from torchrl.objectives import DiscreteSACLoss

from tests.algorithms.test_sac import batch_of, groups
from trainer.algorithms import build
from trainer.algorithms.actor_critic import CRITICS
from trainer.config.algorithms import EntropyConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict

SPEC = EnvSpec("numbered", (Leaf("observation", (3,), "float32", "vector"),), DiscreteAction(4))
MASKED = EnvSpec("numbered", SPEC.leaves, DiscreteAction(4, has_mask=True))
CONFIG = EntropyConfig(hidden_sizes=[16, 12], gamma=0.9, target_tau=0.005, temperature=0.5)


class Critic(nn.Module):
    def __init__(self, critics: nn.Module, number: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for own in critics.layers:  # type: ignore[union-attr]
            layer = nn.Linear(own.weight.shape[1], own.weight.shape[2])
            layer.weight.data.copy_(own.weight[number].t())
            layer.bias.data.copy_(own.bias[number, 0])
            parts += [layer, nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, seen: Tensor) -> Tensor:
        return self.layers(seen)


def test_targets_by_hand():
    """Both legal actions have the probability 1/2; values 2 and 4, so the soft value is 3 + 0.5 ln 2 = 3.3466.

    At gamma = 0.9 the target of a reward of 1 is 4.0119; the critics' biases say 5 for the action that was taken.
    """
    torch.manual_seed(0)
    algorithm = build(CONFIG, LearnerConfig(), MASKED)
    algorithm.loss.actor_network_params.get(("module", "0", "module", "head", "weight")).data.zero_()
    algorithm.loss.actor_network_params.get(("module", "0", "module", "head", "bias")).data.zero_()
    for name, values in ((CRITICS, [9.0, 5, 9, 9]), (f"target_{CRITICS}", [2.0, 4, -99, 99])):
        last = ("module", "layers", "2")
        group = getattr(algorithm.loss, name)
        group.get((*last, "weight")).data.zero_()
        group.get((*last, "bias")).data.copy_(torch.tensor(values).expand(2, 1, 4))
    batch = batch_of(1)
    batch["action"] = torch.tensor([1])
    batch["action_mask"] = batch["next", "action_mask"] = torch.tensor([[True, True, False, False]])
    batch["next", "reward"], batch["next", "terminated"] = torch.tensor([[1.0]]), torch.tensor([[False]])
    of_critics, of_actor = algorithm.phases[0].parts
    found = of_critics.evaluate(groups(algorithm), to_tensordict(batch, 1))
    assert found.priority.item() == pytest.approx(5 - 4.01192, rel=1e-4)
    assert found.loss.item() == pytest.approx(2 * (5 - 4.01192) ** 2, rel=1e-3)
    # The actor: 0.5 * -ln 2 - (9 + 5) / 2; the temperature: -ln 0.5 * (0.98 ln 2 - ln 2).
    found = of_actor.evaluate(groups(algorithm), to_tensordict(batch, 1))
    expected = -0.5 * math.log(2) - 7 - math.log(0.5) * (0.98 - 1) * math.log(2)
    assert found.loss.item() == pytest.approx(expected, rel=1e-5)
    assert found.metrics["entropy"].item() == pytest.approx(math.log(2))


def test_losses_equal_torchrls():
    torch.manual_seed(0)
    algorithm = build(CONFIG, LearnerConfig(), SPEC)
    actor = ProbabilisticActor(
        TensorDictModule(algorithm.network, ["observation"], ["logits"]), in_keys=["logits"], out_keys=["action"],
        distribution_class=OneHotCategorical, return_log_prob=False,
    )  # fmt: skip
    critics = algorithm.loss.qvalue_network.module
    values = [TensorDictModule(Critic(critics, i), ["observation"], ["action_value"]) for i in range(2)]
    twin = DiscreteSACLoss(
        actor, values, action_space="categorical", num_actions=4, num_qvalue_nets=2, loss_function="l2", alpha_init=0.5,
    )  # fmt: skip
    twin.make_value_estimator(gamma=0.9)
    raw = batch_of(32)
    raw["action"] = torch.randint(4, (32,), generator=torch.Generator().manual_seed(1))
    batch = to_tensordict(raw, 32)
    theirs = twin(batch.clone())
    of_critics, of_actor = algorithm.phases[0].parts
    q, policy = (part.evaluate(groups(algorithm), batch).loss.item() for part in (of_critics, of_actor))
    assert q == pytest.approx(theirs["loss_qvalue"].item(), rel=1e-5)
    assert policy == pytest.approx((theirs["loss_actor"] + theirs["loss_alpha"]).item(), rel=1e-5)
