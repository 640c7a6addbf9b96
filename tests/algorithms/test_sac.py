"""SAC by hand on three transitions, and against TorchRL's SACLoss on the same weights and batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss

from trainer.algorithms import Algorithm, build
from trainer.algorithms.actor_critic import ACTOR, CRITICS, TEMPERATURE
from trainer.algorithms.sac import draw
from trainer.config.algorithms import SACConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import BoxAction, EnvSpec, Leaf
from trainer.learning.feed import Batch, to_tensordict
from trainer.networks.continuous import Critics

LEAF = Leaf("observation", (3,), "float32", "vector")
SPEC = EnvSpec("box", (LEAF,), BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)))
CONFIG = SACConfig(hidden_sizes=[16, 12], gamma=0.9, target_tau=0.005)


def batch_of(size: int, seed: int = 0) -> Batch:
    """A random batch [size] of `SPEC`, of the form that the replay gives."""
    g = torch.Generator().manual_seed(seed)
    ended = torch.rand(size, 1, generator=g)
    return {
        "action": torch.rand(size, 2, generator=g) * 2 - 1,
        "observation": torch.randn(size, 3, generator=g),
        ("next", "observation"): torch.randn(size, 3, generator=g),
        ("next", "reward"): torch.randn(size, 1, generator=g),
        ("next", "terminated"): ended < 0.2,
        ("next", "truncated"): ended > 0.9,
        ("next", "done"): (ended < 0.2) | (ended > 0.9),
    }


def made(config: SACConfig = CONFIG, seed: int = 0) -> Algorithm:
    torch.manual_seed(seed)
    return build(config, LearnerConfig(), SPEC)


def groups(algorithm: Algorithm) -> dict[str, Any]:
    names = [group.name for group in algorithm.groups]
    return {name: getattr(algorithm.loss, name) for name in (*names, *algorithm.targets.values())}


# ------------------------------------------------------------------ by hand


def test_the_density_of_a_squashed_draw():
    """A standard normal draw of 0.5 has the density 0.3521 and the derivative of tanh there is 0.7864."""
    action, log_density = draw((torch.zeros(1, 1), torch.zeros(1, 1)), torch.tensor([[0.5]]))
    assert action.item() == pytest.approx(math.tanh(0.5))
    assert log_density.item() == pytest.approx(math.log(0.352065 / 0.786448), abs=1e-5)
    far, log_density = draw((torch.tensor([[30.0]]), torch.zeros(1, 1)), torch.zeros(1, 1))
    assert far.item() == 1 and math.isfinite(log_density.item())


def test_targets_of_three_transitions_by_hand():
    """Critics without weights have their biases as values: 4 and 7 now, 2 and 3 in the target network.

    The policy is standard normal, drawn at 0: the density of the action 0 is 0.3989 in each of 2 dimensions, its
    logarithm -1.8379. With alpha = 0.5 the next state is worth 2 + 0.5 * 1.8379 = 2.9189. At gamma = 0.9 the targets
    are 1 + 0.9 * 2.9189 = 3.6270, 5 (terminated) and, two steps later, -1 + 0.81 * 2.9189 = 1.3643.
    """
    algorithm = made(replace(CONFIG, temperature=0.5, n_step=2))
    with torch.no_grad():
        for group in groups(algorithm).values():
            for leaf in group.values(True, True):
                if isinstance(leaf, nn.Parameter) or leaf.ndim > 1:
                    leaf.data.zero_()
    last = ("module", "layers", "2", "bias")
    algorithm.loss.qvalue_network_params.get(last).data.copy_(torch.tensor([4.0, 7]).view(2, 1, 1))
    algorithm.loss.target_qvalue_network_params.get(last).data.copy_(torch.tensor([2.0, 3]).view(2, 1, 1))
    algorithm.loss.temperature_params.get("log_alpha").data.fill_(math.log(0.5))
    batch = batch_of(3)
    batch["next", "reward"] = torch.tensor([[1.0], [5], [-1]])
    batch["next", "terminated"] = torch.tensor([[False], [True], [False]])
    batch["steps_to_next_obs"] = torch.tensor([[1], [1], [2]])
    of_critics, of_actor = algorithm.phases[0].parts
    found = of_critics.evaluate(groups(algorithm), to_tensordict(batch, 3), torch.zeros(3, 2))
    targets = torch.tensor([3.62705, 5.0, 1.36434])
    assert found.loss.item() == pytest.approx(((4 - targets) ** 2 + (7 - targets) ** 2).mean().item(), rel=1e-4)
    assert torch.allclose(found.priority, ((4 - targets).abs() + (7 - targets).abs()) / 2, rtol=1e-4)
    # The actor: 0.5 * -1.8379 - 4; the temperature: -ln 0.5 * (-1.8379 - 2).
    found = of_actor.evaluate(groups(algorithm), to_tensordict(batch, 3), torch.zeros(3, 2))
    assert found.loss.item() == pytest.approx(0.5 * -1.837877 - 4 - math.log(0.5) * (-1.837877 - 2), rel=1e-5)
    assert found.metrics["entropy"].item() == pytest.approx(1.837877, rel=1e-5)
    assert found.metrics["temperature"].item() == pytest.approx(0.5)


def test_importance_weights_scale_the_critics_loss():
    algorithm, batch = made(), batch_of(4)
    noise, part = torch.zeros(4, 2), algorithm.phases[0].parts[0]
    plain = part.evaluate(groups(algorithm), to_tensordict(batch, 4), noise).loss
    halved = part.evaluate(
        groups(algorithm), to_tensordict({**batch, "priority_weight": torch.full((4,), 0.5)}, 4), noise
    ).loss
    assert halved.item() == pytest.approx(plain.item() / 2)


def test_a_fixed_temperature_has_no_group():
    algorithm = made(replace(CONFIG, learn_temperature=False, temperature=0.2))
    assert [group.name for group in algorithm.groups] == [ACTOR, CRITICS]
    found = algorithm.phases[0].parts[1].evaluate(groups(algorithm), to_tensordict(batch_of(3), 3), torch.zeros(3, 2))
    assert found.metrics["temperature"].item() == pytest.approx(0.2)


def test_a_target_takes_the_critics_that_are_drawn():
    """Of 5 critics with values 0 .. 4 those with the largest numbers, 4 and 2, make the target: their minimum 2."""
    config = replace(CONFIG, num_critics=5, critics_in_target=2, learn_temperature=False, temperature=1e-8)
    algorithm = made(config)
    last = ("module", "layers", "2")
    target = algorithm.loss.target_qvalue_network_params
    target.get((*last, "weight")).data.zero_()
    target.get((*last, "bias")).data.copy_(torch.arange(5.0).view(5, 1, 1))
    batch = batch_of(2)
    batch["next", "reward"], batch["next", "terminated"] = torch.zeros(2, 1), torch.zeros(2, 1) > 0
    part = algorithm.phases[0].parts[0]
    assert part.noise == ((2,), (5,))
    chosen = torch.tensor([[0.0, 1, 5, 2, 9]]).expand(2, 5)
    found = part.evaluate(groups(algorithm), to_tensordict(batch, 2), torch.zeros(2, 2), chosen)
    with torch.no_grad():
        q = algorithm.loss.q(algorithm.loss.qvalue_network_params, to_tensordict(batch, 2), batch["action"])
    assert found.loss.item() == pytest.approx((q.squeeze(-1) - 0.9 * 2).square().sum(0).mean().item(), rel=1e-5)


def test_dropout_leaves_out_units_by_their_numbers():
    """Two units of 3 and 5; with a share of 1/2 the one with a negative number is left out, and the other doubled."""
    critics = Critics(SPEC, replace(CONFIG, hidden_sizes=[2]), True, 1, 1, dropout=0.5)
    with torch.no_grad():
        critics.layers[0].weight.zero_()
        critics.layers[0].bias.copy_(torch.tensor([[[3.0, 5]]]))
        critics.layers[1].weight.fill_(1)
        critics.layers[1].bias.zero_()
    seen, action = torch.zeros(2, 3), torch.zeros(2, 2)
    noise = torch.tensor([[[0.1, -0.1]], [[-2.0, 3]]])
    assert critics.noise == ((1, 2),)
    assert critics(seen, action=action, noise=(noise,)).flatten().tolist() == [6, 10]
    assert critics(seen, action=action).flatten().tolist() == [8, 8]


def test_layer_normalisation_is_torchs():
    critics = Critics(SPEC, replace(CONFIG, hidden_sizes=[8]), True, 2, 1, layer_norm=True)
    x = torch.randn(2, 5, 8)
    assert torch.equal(critics.norms[0](x), nn.functional.layer_norm(x, (8,)))


# ------------------------------------------------------------------ against TorchRL


class Gaussian(nn.Module):
    """The actor's hidden layers and head as a module of torch's; gives mean and standard deviation."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[part for layer in actor.trunk.layers for part in (layer, nn.ReLU())], actor.head)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.layers(x).chunk(2, -1)
        return mean, log_std.clamp(-20, 2).exp()


class Critic(nn.Module):
    """One critic of an ensemble as a module of torch's."""

    def __init__(self, critics: Any, number: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for own in critics.layers:
            layer = nn.Linear(own.weight.shape[1], own.weight.shape[2])
            layer.weight.data.copy_(own.weight[number].t())
            layer.bias.data.copy_(own.bias[number, 0])
            parts += [layer, nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, seen: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([seen, action], -1))


def torchrl_twin(algorithm: Algorithm, config: SACConfig) -> SACLoss:
    """TorchRL's loss with the same weights."""
    actor = ProbabilisticActor(
        TensorDictModule(Gaussian(algorithm.network), ["observation"], ["loc", "scale"]), in_keys=["loc", "scale"],
        spec=Bounded(-torch.ones(2), torch.ones(2)), distribution_class=TanhNormal, return_log_prob=True,
    )  # fmt: skip
    critics = algorithm.loss.qvalue_network.module
    values = [ValueOperator(Critic(critics, i), in_keys=["observation", "action"]) for i in range(config.num_critics)]
    loss = SACLoss(
        actor, values, num_qvalue_nets=config.num_critics, loss_function="l2", target_entropy=-2.0,
        alpha_init=config.temperature,
    )  # fmt: skip
    loss.make_value_estimator(gamma=config.gamma)
    return loss


def assert_gradients_equal(mine: dict[str, Any], of_critics: Tensor, of_actor: Tensor, twin: nn.Module) -> None:
    """Those of the two losses in the actor's last layer and the critics' first, and TorchRL's after `backward`."""
    head = mine[ACTOR].get(("module", "0", "module", "head", "weight"))
    expected = [p.grad for n, p in twin.named_parameters() if n.startswith("actor") and p.shape == head.shape]
    assert torch.allclose(torch.autograd.grad(of_actor, head)[0], expected[0], rtol=1e-4, atol=1e-6)
    first = mine[CRITICS].get(("module", "layers", "0", "weight"))
    expected = [p.grad for n, p in twin.named_parameters() if n.startswith("qvalue") and p.shape == (2, 16, 5)]
    assert torch.allclose(torch.autograd.grad(of_critics, first)[0], expected[0].transpose(1, 2), rtol=1e-4, atol=1e-6)


def test_losses_and_gradients_equal_torchrls():
    """With the same noise: TorchRL draws that of the next action first."""
    config = replace(CONFIG, temperature=0.3)
    algorithm = made(config)
    twin, batch = torchrl_twin(algorithm, config), to_tensordict(batch_of(64), 64)
    torch.manual_seed(5)
    noise = [torch.randn(64, 2) for _ in range(2)]
    torch.manual_seed(5)
    theirs = twin(batch.clone())
    of_critics, of_actor = algorithm.phases[0].parts
    mine = groups(algorithm)
    q, actor = of_critics.evaluate(mine, batch, noise[0]).loss, of_actor.evaluate(mine, batch, noise[1]).loss
    assert q.item() == pytest.approx(theirs["loss_qvalue"].item(), rel=1e-5)
    assert actor.item() == pytest.approx((theirs["loss_actor"] + theirs["loss_alpha"]).item(), rel=1e-5)
    (theirs["loss_actor"] + theirs["loss_qvalue"] + theirs["loss_alpha"]).backward()
    alpha = mine[TEMPERATURE].get("log_alpha")
    assert torch.autograd.grad(actor, alpha, retain_graph=True)[0].item() == pytest.approx(
        twin.log_alpha.grad.item(), rel=1e-5
    )
    assert_gradients_equal(mine, q, actor, twin)


def test_the_loss_module_gives_the_losses_of_its_parts():
    algorithm, batch = made(), to_tensordict(batch_of(8), 8)
    torch.manual_seed(3)
    found = algorithm.loss(batch)
    torch.manual_seed(3)
    noise = [torch.randn(8, 2) for _ in range(2)]
    of_critics, of_actor = algorithm.phases[0].parts
    assert found["loss_qvalue"].item() == of_critics.evaluate(groups(algorithm), batch, noise[0]).loss.item()
    assert found["loss_actor"].item() == of_actor.evaluate(groups(algorithm), batch, noise[1]).loss.item()
