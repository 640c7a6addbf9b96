"""QR-DQN: the loss and the target against numbers worked out by hand, and that it finds a distribution's quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import Algorithm, build
from trainer.algorithms.qrdqn import bootstrap, errors, quantile_loss
from trainer.config.algorithms import QRDQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import to_tensordict

TOY = EnvSpec("toy", (Leaf("observation", (2,), "float32", "vector"),), DiscreteAction(2))
MASKED = EnvSpec("toy", TOY.leaves, DiscreteAction(2, has_mask=True))
HEAD = ("module", "0", "module", "head", "layers", "0")


def rows(mask: list[list[int]] | None = None, steps: bool = True) -> TensorDict:
    """Rewards 1, 2, -1, 0; m = 1, 1, 2, 1; the second terminated, the last one truncated."""
    terminated, truncated = torch.tensor([0, 1, 0, 0]) == 1, torch.tensor([0, 0, 0, 1]) == 1
    batch: dict[Any, Tensor] = {
        "action": torch.tensor([0, 1, 1, 0]),
        "observation": torch.ones(4, 2),
        ("next", "observation"): torch.ones(4, 2),
        ("next", "reward"): torch.tensor([[1.0], [2], [-1], [0]]),
        ("next", "terminated"): terminated[:, None],
        ("next", "truncated"): truncated[:, None],
        ("next", "done"): (terminated | truncated)[:, None],
    }
    if steps:
        batch["steps_to_next_obs"] = torch.tensor([[1], [1], [2], [1]])
    if mask is not None:
        batch["action_mask"] = torch.ones(4, 2) == 1
        batch["next", "action_mask"] = torch.tensor(mask) == 1
    return to_tensordict(batch, 4)


def toy(spec: EnvSpec = TOY, **changes: Any) -> Algorithm:
    """Two quantiles for each of two actions, whatever is seen."""
    config = QRDQNConfig(hidden_sizes=[], gamma=0.5, num_quantiles=2, **changes)
    algorithm = build(config, LearnerConfig(), spec)
    for group, quantiles in (
        (algorithm.loss.value_network_params, [[0.0, 2], [-1, 7]]),  # means 1, 3
        (algorithm.loss.target_value_network_params, [[4.0, 8], [-2, 0]]),  # means 6, -1
    ):
        group.get((*HEAD, "weight")).data.zero_()
        group.get((*HEAD, "bias")).data.copy_(torch.tensor(quantiles).flatten())
    return algorithm


# ------------------------------------------------------------------ the loss


def slow_loss(quantiles: np.ndarray, wanted: np.ndarray, fractions: np.ndarray, loss_function: str) -> np.ndarray:
    """Dabney et al. 2018b, eq. 9 and 10, term by term."""
    losses = np.zeros(len(quantiles))
    for row in range(len(quantiles)):
        for i, quantile in enumerate(quantiles[row]):
            tau = fractions[i] if fractions.ndim == 1 else fractions[row, i]
            for sample in wanted[row]:
                u = float(sample) - float(quantile)
                size = u * u / 2 if abs(u) <= 1 or loss_function == "l2" else abs(u) - 0.5
                losses[row] += abs(tau - (u < 0)) * size / len(wanted[row])
    return losses


@pytest.mark.parametrize(
    ("loss_function", "expected"),
    [
        # quantile 0, tau 0.25: u = 2, -0.5; weights 0.25, 0.75. quantile 1, tau 0.75: u = 1, -1.5; 0.75, 0.25.
        ("smooth_l1", (0.25 * 1.5 + 0.75 * 0.125) / 2 + (0.75 * 0.5 + 0.25 * 1) / 2),
        ("l2", (0.25 * 2 + 0.75 * 0.125) / 2 + (0.75 * 0.5 + 0.25 * 1.125) / 2),
    ],
)
def test_quantile_loss_by_hand(loss_function, expected):
    quantiles, wanted, fractions = torch.tensor([[0.0, 1]]), torch.tensor([[2.0, -0.5]]), torch.tensor([0.25, 0.75])
    assert quantile_loss(quantiles, wanted, fractions, loss_function).tolist() == [expected]
    assert quantile_loss(quantiles, wanted, fractions[None], loss_function).tolist() == [expected]
    assert expected == {"smooth_l1": 0.546875, "l2": 0.625}[loss_function]


@pytest.mark.parametrize("loss_function", ["smooth_l1", "l2"])
@pytest.mark.parametrize("own_fractions", [False, True])
@pytest.mark.parametrize("samples", [1, 5, 9])
def test_quantile_loss_equals_a_slow_loop(loss_function, own_fractions, samples):
    """Fractions for all rows or for each; as many samples of the target as quantiles, fewer or more."""
    rng = np.random.default_rng(samples)
    quantiles, wanted = rng.normal(0, 2, (6, 5)), rng.normal(0, 2, (6, samples))
    fractions = rng.random((6, 5) if own_fractions else 5)
    loss = quantile_loss(*map(torch.from_numpy, (quantiles, wanted, fractions)), loss_function)
    assert np.allclose(loss, slow_loss(quantiles, wanted, fractions, loss_function), atol=1e-6)


def test_the_gradient_of_quantile_loss_is_its_weight():
    """Far off, an error's slope is tau from below and 1 - tau from above, whatever its size."""
    quantiles = torch.tensor([[-50.0, 50]], requires_grad=True)
    quantile_loss(quantiles, torch.tensor([[0.0]]), torch.tensor([0.3, 0.3]), "smooth_l1").sum().backward()
    assert quantiles.grad[0].tolist() == pytest.approx([-0.3, 0.7])


def descend(samples: Tensor, fractions: Tensor, loss_function: str, rate: float, steps: int) -> list[float]:
    quantiles = torch.full((1, len(fractions)), samples.mean().item(), requires_grad=True)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(quantile_loss(quantiles, samples[None], fractions, loss_function), quantiles)
        quantiles = (quantiles - rate * gradient).detach().requires_grad_(True)
    return quantiles[0].tolist()


def test_descent_finds_the_quantiles_of_a_uniform_distribution():
    """On 0 .. 100 the Huber loss's rounding at the bottom moves q of tau by (1 - 2 tau) / 2: to 0.5 + 99 tau."""
    fractions = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    found = descend(torch.linspace(0, 100, 2001), fractions, "smooth_l1", rate=50, steps=60)
    assert found == pytest.approx([10.4, 30.2, 50, 69.8, 89.6], abs=0.1)


def test_descent_finds_the_quantiles_of_two_points():
    """0 with probability 3/4, else 100: tau below 3/4 goes to the one, above to the other.

    At the bottom of tau = 0.5, 0.5 * 1/4 * 1 = 0.5 * 3/4 * q, so q = 1/3; of 0.9, 0.9 * 1/4 * (100 - q) = 0.1 * 3/4.
    """
    found = descend(torch.tensor([0.0, 0, 0, 100]), torch.tensor([0.5, 0.9]), "smooth_l1", rate=2, steps=500)
    assert found == pytest.approx([1 / 3, 100 - 1 / 3], abs=1e-3)


def test_descent_with_the_square_finds_expectiles():
    """Of which that of 1/2 is the mean, 25, and 0.9 * 1/4 * (100 - q) = 0.1 * 3/4 * q, so q = 75."""
    found = descend(torch.tensor([0.0, 0, 0, 100]), torch.tensor([0.5, 0.9]), "l2", rate=1, steps=200)
    assert found == pytest.approx([25, 75], abs=1e-2)


# ------------------------------------------------------------------ the target


def test_bootstrap_by_hand():
    """The judge's means choose, the following's quantiles are taken: y = R + 0.5^m (1 - terminated) z."""
    following = torch.tensor([[[4.0, 8], [-2, 0]]]).expand(4, 2, 2)
    judge = torch.tensor([[[0.0, 2], [-1, 7]]]).expand(4, 2, 2)  # means 1, 3
    config = QRDQNConfig(gamma=0.5, num_quantiles=2)
    double = [[0.0, 1], [2, 2], [-1.5, -1], [-1, 0]]  # -2, 0 of action 1
    single = [[3.0, 5], [2, 2], [0, 1], [2, 4]]  # 4, 8 of action 0
    assert bootstrap(following, judge, rows(), config).tolist() == double
    assert bootstrap(following, following, rows(), config).tolist() == single
    masked = rows(mask=[[1, 0], [1, 0], [0, 1], [1, 1]])
    assert bootstrap(following, judge, masked, config).tolist() == [single[0], [2, 2], double[2], double[3]]
    assert bootstrap(following, following, masked, config).tolist() == [single[0], [2, 2], double[2], single[3]]
    assert bootstrap(following, judge, rows(steps=False), config)[2].tolist() == [-2, -1]


def test_errors_are_the_distances_of_the_means():
    quantiles, wanted = torch.tensor([[0.0, 2], [-1, 7]]), torch.tensor([[4.0, 8], [-2, 0]])
    fractions, config = torch.tensor([0.25, 0.75]), QRDQNConfig(num_quantiles=2)
    loss, td_error, priority = errors(quantiles, wanted, fractions, config.loss_function)
    assert torch.equal(loss, quantile_loss(quantiles, wanted, fractions, "smooth_l1"))
    assert td_error.tolist() == priority.tolist() == [5, 4]


# ------------------------------------------------------------------ the whole

CHOSEN = np.array([[0.0, 2], [-1, 7], [-1, 7], [0, 2]])  # of the rows' actions 0, 1, 1, 0
DOUBLE = np.array([[0.0, 1], [2, 2], [-1.5, -1], [-1, 0]])
SINGLE = np.array([[3.0, 5], [2, 2], [0, 1], [2, 4]])
FRACTIONS = np.array([0.25, 0.75])  # the middles of two halves


@pytest.mark.parametrize(("double", "wanted"), [(True, DOUBLE), (False, SINGLE)])
@pytest.mark.parametrize("loss_function", ["smooth_l1", "l2"])
def test_the_objective_is_what_comes_out_by_hand(double, wanted, loss_function):
    algorithm, sample = toy(double=double, loss_function=loss_function), rows()
    loss = algorithm.loss(sample)["loss"].item()
    assert loss == pytest.approx(slow_loss(CHOSEN, wanted, FRACTIONS, loss_function).mean())
    by_hand = [0.5, 1, 4.25, 1.5] if double else [3, 1, 2.5, 2]
    assert sample["td_error"].tolist() == by_hand
    assert sample["priority"].tolist() == by_hand


def test_one_row_of_the_objective_in_numbers():
    """The second row: quantiles -1 and 7 of taus 1/4 and 3/4, target 2 and 2: u = 3 and -5, 1/4 * 2.5 + 1/4 * 4.5."""
    algorithm = toy()
    assert algorithm.loss(rows()[1:2])["loss"].item() == 1.75


def test_an_illegal_action_is_no_successor():
    algorithm, sample = toy(MASKED), rows(mask=[[1, 0], [1, 0], [0, 1], [1, 0]])
    algorithm.loss(sample)
    assert sample["td_error"].tolist() == [3, 1, 4.25, 2]


def test_rescaled_values_by_hand():
    """After the end, reward 3: h(3) = 1.003, for every quantile."""
    algorithm, sample = toy(value_rescaling=True), rows()[1:2]
    sample["next", "reward"] = torch.tensor([[3.0]])
    algorithm.loss(sample)
    assert sample["td_error"].tolist() == pytest.approx([3 - 1.003])


def test_the_gradient_reaches_the_taken_action_of_the_online_network_only():
    """d/dquantile = -mean_j |tau - [u < 0]| clip(u): of -1, -1/4 * 1; of 7, 1/4 * 1."""
    algorithm = toy()
    algorithm.loss(rows()[1:2])["loss"].backward()
    assert algorithm.loss.value_network_params.get((*HEAD, "bias")).grad.tolist() == [0, 0, -0.25, 0.25]
    assert not any(p.requires_grad for p in algorithm.loss.target_value_network_params.values(True, True))


def test_acting_takes_the_best_mean():
    algorithm = toy()
    assert algorithm.network(torch.zeros(3, 2)).tolist() == [[1, 3]] * 3
    assert algorithm.policy(TensorDict({"observation": torch.zeros(3, 2)}, 3))["action"].tolist() == [1, 1, 1]
