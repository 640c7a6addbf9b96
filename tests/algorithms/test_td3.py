"""TD3 by hand on three transitions, against TorchRL's TD3Loss, and its delayed actor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.modules import ValueOperator
from torchrl.objectives import TD3Loss

from tests.algorithms.test_sac import SPEC, Critic, assert_gradients_equal, batch_of, groups
from trainer.acting.exploration import Explored
from trainer.algorithms import Algorithm, build
from trainer.algorithms.actor_critic import ACTOR, CRITICS
from trainer.config.algorithms import TD3Config
from trainer.config.sections import CollectorConfig, LearnerConfig
from trainer.envs import BoxAction
from trainer.learning.feed import to_tensordict
from trainer.learning.update import Updater

CONFIG = TD3Config(hidden_sizes=[16, 12], gamma=0.9, target_tau=0.1)


def made(config: TD3Config = CONFIG, seed: int = 0) -> Algorithm:
    torch.manual_seed(seed)
    return build(config, LearnerConfig(), SPEC)


def test_targets_of_three_transitions_by_hand():
    """Critics without weights have their biases as values: 4 and 7 now, 2 and 3 in the target network, of any action.

    At gamma = 0.9 the targets are 1 + 0.9 * 2 = 2.8, 5 (terminated) and, two steps later, -1 + 0.81 * 2 = 0.62.
    """
    algorithm = made(replace(CONFIG, n_step=2))
    last = ("module", "layers", "2")
    for name, values in ((CRITICS, [4.0, 7]), (f"target_{CRITICS}", [2.0, 3])):
        group = getattr(algorithm.loss, name)
        group.get((*last, "weight")).data.zero_()
        group.get((*last, "bias")).data.copy_(torch.tensor(values).view(2, 1, 1))
    batch = batch_of(3)
    batch["next", "reward"] = torch.tensor([[1.0], [5], [-1]])
    batch["next", "terminated"] = torch.tensor([[False], [True], [False]])
    batch["steps_to_next_obs"] = torch.tensor([[1], [1], [2]])
    part = algorithm.phases[0].parts[0]
    found = part.evaluate(groups(algorithm), to_tensordict(batch, 3), torch.zeros(3, 2))
    targets = torch.tensor([2.8, 5, 0.62])
    assert found.loss.item() == pytest.approx(((4 - targets) ** 2 + (7 - targets) ** 2).mean().item())
    assert torch.allclose(found.priority, ((4 - targets).abs() + (7 - targets).abs()) / 2)


class Deterministic(nn.Module):
    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[part for layer in actor.trunk.layers for part in (layer, nn.ReLU())], actor.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).tanh()


def test_losses_and_gradients_equal_torchrls():
    """TorchRL multiplies and clips the noise of the next action as here; its target actor is a copy of the actor."""
    algorithm = made()
    actor = TensorDictModule(Deterministic(algorithm.network), ["observation"], ["action"])
    critics = algorithm.loss.qvalue_network.module
    values = [ValueOperator(Critic(critics, i), in_keys=["observation", "action"]) for i in range(2)]
    spec = Bounded(-torch.ones(2), torch.ones(2))
    twin = TD3Loss(actor, values, action_spec=spec, num_qvalue_nets=2, loss_function="l2")
    twin.make_value_estimator(gamma=0.9)
    batch = to_tensordict(batch_of(64), 64)
    torch.manual_seed(5)
    noise = torch.randn(64, 2)
    torch.manual_seed(5)
    q_theirs, _ = twin.value_loss(batch.clone())
    actor_theirs, _ = twin.actor_loss(batch.clone())
    mine, (of_critics, of_actor) = groups(algorithm), (phase.parts[0] for phase in algorithm.phases)
    q, policy = of_critics.evaluate(mine, batch, noise).loss, of_actor.evaluate(mine, batch).loss
    assert q.item() == pytest.approx(q_theirs.item(), rel=1e-5)
    assert policy.item() == pytest.approx(actor_theirs.item(), rel=1e-5)
    (q_theirs + actor_theirs).backward()
    assert_gradients_equal(mine, q, policy, twin)


def test_actor_and_targets_move_in_every_second_update():
    updater = Updater(made(), LearnerConfig(batch_size=8, max_grad_norm=None), torch.device("cpu"))
    of = {one.group.name: one for one in updater.of_groups}
    for number in range(1, 5):
        before = {name: [w.clone() for w in (*one.weights, *one.targets)] for name, one in of.items()}
        updater.update(batch_of(8, seed=number))
        moved = {
            name: [not torch.equal(a, b) for a, b in zip(before[name], (*one.weights, *one.targets), strict=True)]
            for name, one in of.items()
        }
        count = {name: len(one.weights) for name, one in of.items()}
        assert all(moved[CRITICS][: count[CRITICS]])
        assert all(moved[ACTOR]) == any(moved[ACTOR]) == (number % 2 == 0)
        assert any(moved[CRITICS][count[CRITICS] :]) == (number % 2 == 0)
    found = updater.metrics()
    assert {"loss", "td_error", "grad_norm", "actor_loss", "actor_grad_norm"} == set(found)


def test_ddpg_has_one_critic_no_delay_and_no_noise_in_its_target():
    algorithm = made(replace(CONFIG, num_critics=1, policy_delay=1, target_noise=0.0))
    assert [phase.every for phase in algorithm.phases] == [1, 1] and algorithm.target_updates.every == 1
    assert algorithm.phases[0].parts[0].noise == ()


@pytest.mark.parametrize(("theta", "correlation"), [(None, 0.0), (0.15, 0.85)])
def test_exploration_adds_normal_noise_within_the_bounds(theta, correlation):
    """Sigma is 0.1 of half the width, 1 and 5 here: of a stationary process 0.1 / sqrt(1 - 0.85^2) = 0.19."""
    box = BoxAction((2,), (-1.0, 0.0), (1.0, 10.0))
    acting = made(replace(CONFIG, action_noise_theta=theta)).acting
    explorer = acting.explorer(Explored(CollectorConfig(), box, 500, slice(0, 500), 3))
    middle, steps = np.tile(np.float32([0, 5]), (500, 1)), []
    for _ in range(60):
        action, _ = explorer(middle, None, 0)
        assert (action >= [-1, 0]).all() and (action <= [1, 10]).all()
        steps.append((action - middle) / [1, 5])
    late = np.stack(steps[30:])
    assert late.std() == pytest.approx(0.1 / np.sqrt(1 - correlation**2), rel=0.05)
    assert np.corrcoef(late[:-1].ravel(), late[1:].ravel())[0, 1] == pytest.approx(correlation, abs=0.03)
    again = acting.explorer(Explored(CollectorConfig(), box, 500, slice(0, 500), 9))
    again.load_state_dict(explorer.state_dict())
    assert np.array_equal(again(middle, None, 0)[0], explorer(middle, None, 0)[0])


def test_a_ladder_gives_each_environment_a_noise_of_its_own():
    """0.4 ** (1 + 3 i / 3) for environments i = 0 .. 3 of two workers: 0.4, 0.16, 0.064 and 0.0256; a share of 1e3."""
    box, config = BoxAction((50,), (-1e3,) * 50, (1e3,) * 50), CollectorConfig(exploration="apex", apex_alpha=3.0)
    acting, found = made(replace(CONFIG, action_noise_theta=0.5)).acting, []
    for streams in (slice(0, 2), slice(2, 4)):
        explorer = acting.explorer(Explored(config, box, 4, streams, 3))
        drawn = np.stack([explorer(np.zeros((2, 50), np.float32), None, 0)[0] for _ in range(400)])[20:]
        found += (drawn.std((0, 2)) * np.sqrt(1 - 0.5**2)).tolist()  # an Ornstein-Uhlenbeck process is stronger so much
    assert found == pytest.approx([400, 160, 64, 25.6], rel=0.04)
