"""CrossQ: batch renormalisation by hand, one pass for both states, and statistics that updates write."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.algorithms.test_sac import SPEC, batch_of, groups
from trainer.algorithms import build
from trainer.algorithms.actor_critic import CRITICS
from trainer.config.algorithms import CrossQConfig
from trainer.config.sections import LearnerConfig
from trainer.learning.feed import to_tensordict
from trainer.learning.update import Updater
from trainer.networks.renorm import EPS, BatchRenorm

CONFIG = CrossQConfig(hidden_sizes=[16, 12], gamma=0.9, renorm_warmup_updates=2)


def test_batch_renormalisation_by_hand():
    """The batch 1, 5 has mean 3 and deviation 2. With averages 0 and 1: r = 2, d = 3, so y = (x - 3) / 2 * 2 + 3 = x.

    During the warm-up it is batch normalisation, -1 and 1. With a deviation of 0.5 r is clipped to 3, and d = 6 to 5.
    """
    layer, x = BatchRenorm(1, 1, replace(CONFIG, renorm_momentum=0.5)), torch.tensor([[[1.0], [5]]])
    layer.var.fill_(1 - EPS)
    new: list[torch.Tensor] = []
    assert torch.allclose(layer(x, new).flatten(), torch.tensor([-1.0, 1]), atol=1e-3)
    assert [value.item() for value in new] == [1.5, pytest.approx(2.5, abs=1e-3), 1]
    layer.updates.fill_(2)
    assert torch.allclose(layer(x, []).flatten(), torch.tensor([1.0, 5]), atol=1e-3)
    layer.var.fill_(0.25 - EPS)
    assert torch.allclose(layer(x, []).flatten(), torch.tensor([-3.0 + 5, 3 + 5]), atol=2e-3)
    assert layer(x, None).flatten().tolist() == pytest.approx([2, 10])


def test_both_states_are_normalised_together_and_no_target_network_is_there():
    torch.manual_seed(0)
    algorithm = build(CONFIG, LearnerConfig(), SPEC)
    assert algorithm.targets == {}
    batch, seen = to_tensordict(batch_of(16), 16), []
    norm = algorithm.loss.qvalue_network.module.norms[0]
    norm.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0].shape[1]))
    algorithm.phases[0].parts[0].evaluate(groups(algorithm), batch, torch.zeros(16, 2))
    assert seen == [32]


@pytest.mark.parametrize("execution", ["eager", "trace"])
def test_updates_write_the_running_statistics_of_the_critics(execution):
    torch.manual_seed(0)
    algorithm = build(CONFIG, LearnerConfig(), SPEC)
    updater = Updater(algorithm, LearnerConfig(batch_size=16, execution=execution), torch.device("cpu"))
    updater.prepare(batch_of(16))
    mean = updater.groups[CRITICS].get(("module", "norms", "0", "mean"))
    count = updater.groups[CRITICS].get(("module", "norms", "0", "updates"))
    assert count.item() == 0 and not mean.any()
    for seed in range(3):
        updater.update(batch_of(16, seed))
    assert count.item() == 3 and mean.abs().min() > 0
    assert updater.state_dict()["loss"][f"{CRITICS}.module.norms.0.updates"].item() == 3
