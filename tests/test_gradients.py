"""Gradients whose memory lies otherwise than that of their parameters."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

from tests.test_learning import BASE, CPU, LEARNER, RATE, VECTOR, batches
from trainer.algorithms.algorithm import value_algorithm
from trainer.algorithms.dqn import td_error
from trainer.learning.feed import to_tensordict
from trainer.learning.update import Updater


class Transposed(nn.Module):
    """Values [B, 3] of numbers [B, 4]; its weight lies in memory as [4, 3], the weight's gradient as [3, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).t())

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] * self.weight).sum(-1)


@pytest.mark.parametrize("execution", ["eager", "trace"])
def test_a_gradient_that_lies_otherwise_than_its_parameter_is_applied_to_the_right_elements(execution):
    """The fused optimiser walks through memory, and only `backward` brings gradients into their parameters' order."""
    torch.manual_seed(0)
    algorithms = []
    network = Transposed()
    for _ in range(2):
        policy = QValueActor(copy.deepcopy(network), in_keys=["observation"], action_space="categorical")
        loss = DQNLoss(policy, action_space="categorical", delay_value=True)
        algorithms.append(value_algorithm(BASE, network, policy, loss, td_error, td_error))
    learner = Updater(algorithms[0], replace(LEARNER, execution=execution, max_grad_norm=None), CPU)
    assert not learner.trained[0].is_contiguous()
    (weight,) = algorithms[1].loss.value_network_params.parameters()
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(RATE).item(), fused=True)
    for _, batch in zip(range(5), batches(VECTOR, 32), strict=False):
        learner.update(batch)
        optimizer.zero_grad()
        algorithms[1].loss(to_tensordict(batch, 32))["loss"].backward()
        optimizer.step()
    assert torch.equal(learner.trained[0], weight)
