"""C51: the projection against numbers worked out by hand and a slow loop; the whole against TorchRL's loss."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import DistributionalQValueActor
from torchrl.objectives import DistributionalDQNLoss

from trainer.algorithms import Algorithm, build
from trainer.algorithms.c51 import Atoms, limits, project
from trainer.config.algorithms import C51Config
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
SPEC = EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))
LOG4 = math.log(4)

# ------------------------------------------------------------------ projection


def slow_project(p: np.ndarray, position: np.ndarray, v_min: float, v_max: float) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1, as written, in float64; a position on an atom keeps its mass there."""
    batch, count = p.shape
    width = (v_max - v_min) / (count - 1)
    projected = np.zeros((batch, count))
    for row in range(batch):
        for j in range(count):
            b = (min(max(float(position[row, j]), v_min), v_max) - v_min) / width
            low, high = math.floor(b), math.ceil(b)
            if low == high:
                projected[row, min(low, count - 1)] += p[row, j]
            else:
                projected[row, low] += p[row, j] * (high - b)
                projected[row, min(high, count - 1)] += p[row, j] * (b - low)
    return projected


@pytest.mark.parametrize(
    ("p", "position", "expected"),
    [
        ([0.5, 0.25, 0.25], [-1.0, 0, 1], [0.5, 0.25, 0.25]),  # on its own atoms
        ([0.5, 0.25, 0.25], [0.0, 1, -1], [0.25, 0.5, 0.25]),  # on other atoms
        ([0.5, 0.25, 0.25], [-0.5, 0.25, 1], [0.25, 0.4375, 0.3125]),  # 0.25 + 0.25; 0.1875, 0.0625 at 1
        ([0.5, 0.25, 0.25], [-7.0, 0, 9], [0.5, 0.25, 0.25]),  # outside: to the first and the last
        ([0.5, 0.25, 0.25], [2.0, 3, 4], [0, 0, 1]),
        ([0.5, 0.25, 0.25], [-2.0, -3, -4], [1, 0, 0]),
        ([0.5, 0.25, 0.25], [0.0, 0, 0], [0, 1, 0]),
        ([0.5, 0.25, 0.25], [0.75, 0.75, 0.75], [0, 0.25, 0.75]),
    ],
)
def test_projection_by_hand(p, position, expected):
    """Atoms -1, 0, 1."""
    projected = project(torch.tensor([p]), torch.tensor([position]), -1.0, 1.0)
    assert projected.tolist() == [expected]


@pytest.mark.parametrize("count", [2, 5, 51])
@pytest.mark.parametrize(("v_min", "v_max"), [(-10.0, 10.0), (0.0, 1.0), (-3.5, 200.0)])
def test_projection_equals_a_slow_loop_and_keeps_all_mass(count, v_min, v_max):
    rng = np.random.default_rng(count)
    p = rng.dirichlet(np.ones(count), 64).astype(np.float32)
    width = v_max - v_min
    position = rng.uniform(v_min - 0.3 * width, v_max + 0.3 * width, (64, count)).astype(np.float32)
    position[:16] = np.linspace(v_min, v_max, count, dtype=np.float32)  # on the atoms
    position[16:32] = position[16:32, :1]  # all in one place, as after the end of an episode
    projected = project(torch.from_numpy(p), torch.from_numpy(position), v_min, v_max).numpy()
    assert np.allclose(projected, slow_project(p, position, v_min, v_max), atol=2e-5)
    assert np.allclose(projected.sum(-1), 1, atol=1e-5)
    inside = np.clip(position, v_min, v_max)  # a split between neighbours keeps the mean
    assert np.allclose(projected @ np.linspace(v_min, v_max, count), (p * inside).sum(-1), atol=1e-4 * width)


def test_after_the_end_all_mass_is_at_the_reward():
    """Atoms 0, 1, .., 4: R = 3 is an atom, R = 1.25 lies between two, R = -2 and 9 outside."""
    p = torch.softmax(torch.randn(4, 5, generator=torch.manual_seed(0)), -1)
    projected = project(p, torch.tensor([[3.0], [1.25], [-2], [9]]).expand(4, 5), 0.0, 4.0)
    expected = [[0, 0, 0, 1.0, 0], [0, 0.75, 0.25, 0, 0], [1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]]
    assert torch.allclose(projected, torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("num_atoms", "v_min", "v_max", "value_rescaling"),
    [(51, -10.0, 10.0, False), (51, -10.0, 10.0, True), (21, -300.0, 300.0, False), (21, 0.0, 200.0, True)],
)
def test_no_mass_is_negative_and_none_is_lost_beyond_the_last_atom(num_atoms, v_min, v_max, value_rescaling):
    """Rounding in float32 must not put a return beyond the last atom: the logarithm of its share would be NaN."""
    config = C51Config(num_atoms=num_atoms, v_min=v_min, v_max=v_max, value_rescaling=value_rescaling)
    p = torch.full((2, num_atoms), 1 / num_atoms)
    projected = project(p, torch.tensor([[1e6], [-1e6]]).expand(2, num_atoms), *limits(config))
    assert (projected >= 0).all()
    assert projected[0, -1].item() == pytest.approx(1) and projected[1, 0].item() == pytest.approx(1)


# ------------------------------------------------------------------ values and limits


def test_a_value_is_the_mean_of_the_atoms():
    numbers = torch.tensor([[[0.0, 0, 0], [math.log(2), 0, 0]]])  # p = 1/3 each; 1/2, 1/4, 1/4
    assert torch.allclose(Atoms(torch.tensor([0.0, 4, 8]))(numbers), torch.tensor([[4.0, 3]]))


def test_the_limits_are_rescaled_if_the_values_are():
    assert limits(C51Config(v_min=-3, v_max=8)) == (-3, 8)
    rescaled = limits(C51Config(v_min=-3, v_max=8, value_rescaling=True))
    assert rescaled == (pytest.approx(-1.003), pytest.approx(2.008))


@pytest.mark.parametrize(("value_rescaling", "low", "high"), [(False, -3, 8), (True, -1.003, 2.008)])
def test_the_networks_atoms_lie_evenly_between_the_limits(value_rescaling, low, high):
    config = C51Config(num_atoms=5, v_min=-3, v_max=8, value_rescaling=value_rescaling)
    atoms = build(config, LearnerConfig(), SPEC).network.values.atoms
    assert torch.allclose(atoms, torch.linspace(low, high, 5), atol=1e-6)


# ------------------------------------------------------------------ the objective by hand

ONLINE = [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]  # of three atoms -1, 0, 1: means -0.25 and 0.25
TARGET = [[0.0, 0.0, 1.0], [0.5, 0.25, 0.25]]  # means 1 and -0.25


def toy(**changes: Any) -> Algorithm:
    """Distributions that do not depend on what is seen."""
    config = C51Config(hidden_sizes=[], gamma=0.5, num_atoms=3, **{"v_min": -1.0, "v_max": 1.0, **changes})
    algorithm = build(config, LearnerConfig(), TOY)
    for group, p in (
        (algorithm.loss.value_network_params, ONLINE),
        (algorithm.loss.target_value_network_params, TARGET),
    ):
        head = group.get(("module", "0", "module", "head", "layers", "0"))
        head.get("weight").data.zero_()
        head.get("bias").data.copy_(torch.tensor(p).clamp(min=1e-30).log().flatten())
    return algorithm


def one_row(action: int, reward: float, terminated: bool = False, **more: Tensor) -> TensorDict:
    end = torch.tensor([[terminated]])
    batch = {
        "action": torch.tensor([action]),
        "observation": torch.ones(1, 2),
        ("next", "observation"): torch.ones(1, 2),
        ("next", "reward"): torch.tensor([[reward]]),
        ("next", "terminated"): end,
        ("next", "done"): end,
        **more,
    }
    return to_tensordict(batch, 1)


def test_double_the_online_network_chooses():
    """It takes action 1, of target distribution (1/2, 1/4, 1/4) at 0.5 + 0.5 z = 0, 0.5, 1.

    The middle one is split: projected (0, 5/8, 3/8), of mean 3/8. Action 0 was taken, of p = (1/2, 1/4, 1/4).
    """
    algorithm, sample = toy(), one_row(0, 0.5)
    assert algorithm.loss(sample)["loss"].item() == pytest.approx(LOG4)
    assert sample["td_error"].tolist() == pytest.approx([0.375 + 0.25])
    entropy = -(0.625 * math.log(0.625) + 0.375 * math.log(0.375))
    assert sample["priority"].tolist() == pytest.approx([LOG4 - entropy], rel=1e-5)


def test_single_the_target_network_chooses():
    """It takes action 0, which is 1 for certain: 0.5 + 0.5 = 1."""
    algorithm, sample = toy(double=False), one_row(1, 0.5)
    assert algorithm.loss(sample)["loss"].item() == pytest.approx(math.log(2))  # p(1) = 1/2 of action 1
    assert sample["td_error"].tolist() == pytest.approx([0.75])
    assert sample["priority"].tolist() == pytest.approx([math.log(2)])


def test_an_illegal_action_is_no_successor():
    """The only legal one is 0, 1 for certain."""
    algorithm, sample = toy(), one_row(0, 0.0)
    sample["next", "action_mask"] = torch.tensor([[True, False]])
    algorithm.loss(sample)
    assert sample["td_error"].tolist() == pytest.approx([0.5 + 0.25])  # 0 + 0.5 * 1


def test_n_steps_and_the_end():
    """After two steps 0.25 z of action 1's (1/2, 1/4, 1/4), mean -1/16; after the end nothing but the reward."""
    algorithm, sample = toy(), one_row(0, 0.5, steps_to_next_obs=torch.tensor([[2]]))
    algorithm.loss(sample)
    assert sample["td_error"].tolist() == pytest.approx([0.5 - 0.0625 + 0.25])
    ended = one_row(0, 1.0, terminated=True)
    assert algorithm.loss(ended)["loss"].item() == pytest.approx(LOG4)  # all at 1, of probability 1/4
    assert ended["td_error"].tolist() == pytest.approx([1.25])


def test_rescaled_values_by_hand():
    """Atoms -h(3), 0, h(3) and reward 3 at the end: all mass on the last atom, whose value is 1.003."""
    algorithm, sample = toy(v_min=-3.0, v_max=3.0, value_rescaling=True), one_row(0, 3.0, terminated=True)
    assert algorithm.loss(sample)["loss"].item() == pytest.approx(LOG4, rel=1e-4)
    assert sample["td_error"].tolist() == pytest.approx([1.003 * 1.25], rel=1e-4)


def test_the_gradient_is_the_cross_entropys():
    """d/dlogit of the taken action is p - projected, and nothing of the other action nor of the target."""
    algorithm = toy()
    algorithm.loss(one_row(0, 0.5))["loss"].backward()
    bias = algorithm.loss.value_network_params.get(("module", "0", "module", "head", "layers", "0", "bias")).grad
    assert bias.tolist() == pytest.approx([0.5, 0.25 - 0.625, 0.25 - 0.375, 0, 0, 0], abs=1e-6)
    assert not any(p.requires_grad for p in algorithm.loss.target_value_network_params.values(True, True))


@pytest.mark.parametrize("reward", [50.0, -50.0, 10.0, -10.0])
@pytest.mark.parametrize("value_rescaling", [False, True])
def test_priorities_of_extreme_returns_are_finite(value_rescaling, reward):
    """The default 51 atoms on -10 .. 10."""
    algorithm = build(C51Config(value_rescaling=value_rescaling), LearnerConfig(), TOY)
    sample = one_row(0, reward, terminated=True)
    loss = algorithm.loss(sample)["loss"]
    assert torch.isfinite(sample["priority"]).all()
    assert sample["priority"].item() == pytest.approx(loss.item(), abs=1e-3)  # one atom has no entropy


# ------------------------------------------------------------------ TorchRL's loss


class AtomsFirst(nn.Module):
    """The numbers of our network in TorchRL's order [B, atoms, A]; its actor takes the log-softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor) -> Tensor:
        return self.network.numbers(observation).transpose(1, 2)


def by_name(parameters: Any) -> dict[str, Tensor]:
    """Tensors by their name within the network, whatever is around it."""
    found = {}
    for key, tensor in parameters.items(True, True):
        name = ".".join(key) if isinstance(key, tuple) else key
        layer = next((part for part in ("trunk.", "head.") if part in name), None)
        if layer is not None:
            found[name[name.index(layer) :]] = tensor
    return found


def torchrls(algorithm: Algorithm, config: C51Config) -> DistributionalDQNLoss:
    """TorchRL's loss with the same weights and delayed weights."""
    policy = DistributionalQValueActor(
        AtomsFirst(copy.deepcopy(algorithm.network)),
        support=torch.linspace(config.v_min, config.v_max, config.num_atoms),
        action_space="categorical",
    )
    loss = DistributionalDQNLoss(policy, gamma=config.gamma, delay_value=True)
    for ours, theirs in (
        (algorithm.loss.value_network_params, loss.value_network_params),
        (algorithm.loss.target_value_network_params, loss.target_value_network_params),
    ):
        mine, copies = by_name(ours), by_name(theirs)
        assert set(mine) == set(copies) and len(mine) == 6
        for name, tensor in copies.items():
            tensor.data.copy_(mine[name].data)
    return loss


def random_batch(size: int, n_step: int, seed: int) -> TensorDict:
    rng = torch.Generator().manual_seed(seed)
    ends = torch.rand(size, 1, generator=rng)
    batch: dict[Any, Tensor] = {
        "action": torch.randint(SPEC.num_actions, (size,), generator=rng),
        "observation": torch.randn(size, 4, generator=rng),
        ("next", "observation"): torch.randn(size, 4, generator=rng),
        ("next", "reward"): torch.randint(-12, 13, (size, 1), generator=rng) / 4,  # on atoms, between them, outside
        ("next", "terminated"): ends < 0.3,
        ("next", "truncated"): ends > 0.8,
        ("next", "done"): (ends < 0.3) | (ends > 0.8),
    }
    if n_step > 1:
        batch["steps_to_next_obs"] = torch.randint(1, n_step + 1, (size, 1), generator=rng)
    return to_tensordict(batch, size)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_equal_torchrls(n_step, seed):
    """Its target network judges what its online network chooses, so ours is double too."""
    torch.manual_seed(seed)
    config = C51Config(hidden_sizes=[16, 16], gamma=0.9, num_atoms=21, v_min=-2.0, v_max=2.0)
    algorithm = build(config, LearnerConfig(), SPEC)
    for delayed in by_name(algorithm.loss.target_value_network_params).values():
        delayed.data.add_(0.2 * torch.randn_like(delayed))
    for trained in by_name(algorithm.loss.value_network_params).values():
        trained.data.mul_(2)
    reference = torchrls(algorithm, config)
    sample, twin = random_batch(64, n_step, seed), random_batch(64, n_step, seed)
    ours, theirs = algorithm.loss(sample)["loss"], reference(twin)["loss"]
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    ours.backward()
    theirs.backward()
    mine, others = by_name(algorithm.loss.value_network_params), by_name(reference.value_network_params)
    for name, tensor in mine.items():
        assert tensor.grad.abs().max() > 1e-4
        assert torch.allclose(tensor.grad, others[name].grad, rtol=1e-4, atol=1e-6), name
    # TorchRL's priority is each row's cross-entropy, ours plus the target's entropy, which one atom has none of.
    priority, cross_entropy = sample["priority"], twin["td_error"].squeeze(-1)
    one_atom = ends_on_an_atom(sample)
    assert one_atom.sum() > 3 and (priority <= cross_entropy + 1e-5).all()
    assert torch.allclose(priority[one_atom], cross_entropy[one_atom], atol=1e-3)


def ends_on_an_atom(sample: TensorDict) -> Tensor:
    """Rows whose target is one of the atoms -2, -1.8 .. 2: after the end, a whole reward or one outside."""
    reward = sample["next", "reward"].squeeze(-1)
    return sample["next", "terminated"].squeeze(-1) & ((reward % 1 == 0) | (reward.abs() > 2))


def test_single_differs_from_torchrls_where_the_networks_disagree():
    torch.manual_seed(0)
    config = C51Config(hidden_sizes=[16, 16], gamma=0.9, num_atoms=21, v_min=-2.0, v_max=2.0, double=False)
    algorithm = build(config, LearnerConfig(), SPEC)
    for delayed in by_name(algorithm.loss.target_value_network_params).values():
        delayed.data.add_(0.3 * torch.randn_like(delayed))
    theirs = torchrls(algorithm, config)(random_batch(64, 1, 0))["loss"].item()
    assert abs(algorithm.loss(random_batch(64, 1, 0))["loss"].item() - theirs) > 1e-3
