"""TQC's truncation and loss by hand, and against TorchRL's TQCLoss on the same weights and batch."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import TQCLoss

from tests.algorithms.test_sac import SPEC, Critic, Gaussian, batch_of, groups
from trainer.algorithms import build
from trainer.algorithms.tqc import errors, truncated
from trainer.config.algorithms import TQCConfig
from trainer.config.sections import LearnerConfig
from trainer.learning.feed import to_tensordict

CONFIG = TQCConfig(hidden_sizes=[16, 12], gamma=0.9, num_critics=3, critic_quantiles=5, dropped_quantiles=2)


def test_the_largest_quantiles_of_all_critics_are_dropped_together():
    """Of 1 5 9 and 2 3 4 one each is dropped: 9 and 5."""
    outputs = torch.tensor([[[1.0, 5, 9]], [[2.0, 4, 3]]])
    assert truncated(outputs, 1).tolist() == [[1, 2, 3, 4]]


def test_the_loss_of_one_quantile_pair_by_hand():
    """Quantiles 0 and 1 at 1/4 and 3/4, target 2: errors 2 and 1, Huber 1.5 and 0.5, mean of 0.25 * 1.5, 0.75 * 0.5."""
    loss, td_error = errors(torch.tensor([[[0.0, 1]]]), torch.tensor([[2.0]]))
    assert loss.item() == pytest.approx((0.25 * 1.5 + 0.75 * 0.5) / 2) and td_error.item() == 1.5


def test_losses_equal_torchrls():
    torch.manual_seed(0)
    algorithm = build(CONFIG, LearnerConfig(), SPEC)
    actor = ProbabilisticActor(
        TensorDictModule(Gaussian(algorithm.network), ["observation"], ["loc", "scale"]), in_keys=["loc", "scale"],
        spec=Bounded(-torch.ones(2), torch.ones(2)), distribution_class=TanhNormal, return_log_prob=True,
    )  # fmt: skip
    critics = algorithm.loss.qvalue_network.module
    values = [TensorDictModule(Critic(critics, i), ["observation", "action"], ["state_action_value"]) for i in range(3)]
    twin = TQCLoss(actor, values, num_qvalue_nets=3, top_quantiles_to_drop_per_net=2, target_entropy=-2.0)
    twin.make_value_estimator(gamma=0.9)
    batch = to_tensordict(batch_of(32), 32)
    torch.manual_seed(5)
    noise = [torch.randn(32, 2) for _ in range(2)]
    torch.manual_seed(5)
    theirs = twin(batch.clone())
    of_critics, of_actor = algorithm.phases[0].parts
    q = of_critics.evaluate(groups(algorithm), batch, noise[0]).loss
    policy = of_actor.evaluate(groups(algorithm), batch, noise[1]).loss
    assert q.item() == pytest.approx(theirs["loss_qvalue"].item(), rel=1e-5)
    assert policy.item() == pytest.approx((theirs["loss_actor"] + theirs["loss_alpha"]).item(), rel=1e-5)
