"""Values that began in the middle of C51's support, whatever the rewards were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.algorithms import build
from trainer.algorithms.c51 import initial_log_odds
from trainer.config.algorithms import AnyAlgorithmConfig, section_of
from trainer.config.compose import load
from trainer.config.sections import LearnerConfig, group_options
from trainer.envs import DiscreteAction, EnvSpec, Leaf

SPEC = EnvSpec("test", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))
HEADS = [{}, {"dueling": True}, {"noisy": True}, {"dueling": True, "noisy": True}, {"hidden_sizes": []}]


def network(name: str, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = section_of(AnyAlgorithmConfig(**{"hidden_sizes": [64, 64], "double": False, **changes}), name)
    return build(config, LearnerConfig(), SPEC).network


def values(name: str, **changes: Any) -> torch.Tensor:
    """Of 200 observations [200, 3]."""
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    return network(name, **changes)(x).detach()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rescaling", [False, True])
@pytest.mark.parametrize(
    ("low", "high"), [(0, 100), (-100, 0), (-200, 200), (-25, 25), (-10, 100), (-25, 26), (-0.5, 3), (0, 1e6)]
)
def test_1_18_values_begin_at_0_whatever_the_support(low: float, high: float, rescaling: bool, head: Any) -> None:
    """Of every action in the mean over observations: within 2 % of the support (a random network's spread)."""
    for name in ("c51", "rainbow"):
        found = values(name, v_min=low, v_max=high, value_rescaling=rescaling, **head).mean(0)
        assert found.abs().max().item() <= 0.02 * (high - low), found


@pytest.mark.parametrize(("low", "high", "nearest"), [(5, 10, 5), (-9, -3, -3)])
def test_1_18_a_support_without_0_begins_at_its_nearer_end(low: float, high: float, nearest: float) -> None:
    assert torch.allclose(values("c51", v_min=low, v_max=high), torch.tensor(float(nearest)), atol=0.01 * (high - low))


@pytest.mark.parametrize(
    ("low", "high", "mean"),
    [(-10, 100, 0), (-100, 10, 0), (-25, 26, 0), (0, 100, 0.5), (-100, 0, -0.5), (5, 10, 5.025)],
)
@pytest.mark.parametrize("count", [2, 11, 51, 401])
def test_1_18_the_initial_distribution_has_that_mean_and_room_for_any_return(
    low: float, high: float, mean: float, count: int
) -> None:
    """A hundredth of it is uniform: at the edge that makes a mean of 0.01 * 50, and no atom is out of reach."""
    log_odds = initial_log_odds(low, high, count).double()
    p = log_odds.softmax(0)
    assert (p @ torch.linspace(low, high, count).double()).item() == pytest.approx(mean, abs=1e-3 * (high - low))
    assert p.min().item() >= 0.0099 / count


@pytest.mark.parametrize("head", HEADS)
def test_1_18_a_symmetric_support_keeps_its_bits(head: Any) -> None:
    """MinAtar's rows of docs/learning.md were made with -25 .. 25."""
    assert torch.equal(initial_log_odds(-25, 25, 51), torch.zeros(51))
    made = network("c51", v_min=-25, v_max=25, **head)
    last = (made.head if made.value_head is None else made.value_head).layers[-1]
    bias = last.bias if hasattr(last, "bias") else last.bias_mu
    inputs = (last.weight if hasattr(last, "weight") else last.weight_mu).shape[1]
    assert bias.abs().max().item() <= inputs**-0.5  # as torch draws it


@pytest.mark.parametrize("name", ["dqn", "qrdqn", "iqn", "munchausen"])
@pytest.mark.parametrize("head", HEADS)
def test_1_18_the_other_algorithms_begin_at_about_0(name: str, head: Any) -> None:
    if name == "iqn" and head == {"hidden_sizes": []}:
        head = {}
    assert values(name, **head).mean(0).abs().max().item() < 0.6


def test_1_18_the_presets_supports_hold_0() -> None:
    for preset in group_options("preset"):
        more = ["env.id=CartPole-v1"] if preset in ("generic", "atari", "continuous") else []
        config = load([f"preset={preset}", "algorithm=c51", *more]).config.algorithm
        assert (config.v_min or 0) <= 0 <= (config.v_max or 0), preset  # None: by rewards, on both sides of 0
