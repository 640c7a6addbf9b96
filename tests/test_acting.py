"""Acting: frame stacks against a deque, legal and rightly frequent exploration, exploration schedules."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

from trainer.acting.exploration import EpsilonGreedy, apex_ladder, linear_epsilon
from trainer.acting.policies import greedy_policy
from trainer.acting.stacks import FrameStacks
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import CollectorConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.networks.q_network import QNetwork

STACKED = EnvSpec(
    "test",
    (
        Leaf("observation.frame", (2, 2), "uint8", "image", "hw", stack=3),
        Leaf("observation.speed", (2,), "float32", "vector"),
    ),
    DiscreteAction(4),
)


def random_mask(rng: np.random.Generator, rows: int, actions: int) -> np.ndarray:
    mask = rng.random((rows, actions)) < 0.4
    mask[np.arange(rows), rng.integers(0, actions, rows)] = True
    return mask


def test_frame_stacks_agree_with_a_deque_for_each_environment():
    rng, n = np.random.default_rng(0), 5
    stacks, deques = FrameStacks(STACKED, n), [deque(maxlen=3) for _ in range(n)]
    fresh = np.ones(n, bool)
    for _ in range(200):
        observation = {
            "observation.frame": rng.integers(0, 256, (n, 2, 2), dtype=np.uint8),
            "observation.speed": rng.random((n, 2), np.float32),
        }
        stacks.push(observation, fresh)
        for i, frames in enumerate(deques):
            frame = observation["observation.frame"][i].copy()
            frames.extend([frame] * 3 if fresh[i] else [frame])
        frame_stack, speed = stacks.seen(observation)
        assert frame_stack.shape == (n, 3, 2, 2) and frame_stack.dtype == np.uint8
        assert np.array_equal(frame_stack, np.stack([np.stack(frames) for frames in deques]))
        assert speed is observation["observation.speed"]
        fresh = rng.random(n) < 0.2


class Table(torch.nn.Module):
    values = torch.tensor([[1.0, 5.0, 3.0], [4.0, -1.0, -2.0], [-9.0, 0.0, 7.0]])

    def forward(self, row):
        return self.values[row]


def test_greedy_takes_the_largest_legal_value():
    mask = np.array([[True, False, True], [False, True, True], [True, False, False]])
    rows = [np.arange(3)]
    assert greedy_policy(Table(), rows, None)(rows, None)[0].tolist() == [1, 0, 2]
    assert greedy_policy(Table(), rows, mask)(rows, mask)[0].tolist() == [2, 1, 0]


def test_a_recorded_policy_acts_as_the_network_and_follows_new_weights():
    torch.manual_seed(3)  # with these weights the network's choice differs from one draw to the next
    rng = np.random.default_rng(1)
    seen = [rng.integers(0, 256, (64, 3, 4, 4), dtype=np.uint8), rng.random((64, 2), np.float32)]
    leaves = (Leaf("a", (4, 4), "uint8", "image", "hw", stack=3), Leaf("b", (2,), "float32", "vector"))
    network = QNetwork(EnvSpec("test", leaves, DiscreteAction(4)), DQNConfig(hidden_sizes=[16, 16]))
    policy, taken = greedy_policy(network, seen, None), []
    with torch.inference_mode():
        for _ in range(3):
            taken.append(policy(seen, None)[0])
            assert np.array_equal(taken[-1], network(*map(torch.from_numpy, seen)).argmax(-1).numpy())
            for parameter in network.parameters():
                parameter.data.normal_()
    assert not np.array_equal(taken[0], taken[1])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_exploration_is_as_frequent_as_epsilon_says_and_uniform_over_legal_actions(epsilon, masked):
    n, actions, steps = 16, 5, 3_000
    rng, explorer = np.random.default_rng(2), EpsilonGreedy(n, DiscreteAction(actions), seed=[7, 3])
    mask = random_mask(rng, n, actions) if masked else np.ones((n, actions), bool)
    best = mask.argmax(1)
    counts = np.zeros((n, actions))
    for _ in range(steps):
        action = explorer(best, epsilon, mask if masked else None)
        counts[np.arange(n), action] += 1
    assert best.tolist() == mask.argmax(1).tolist()  # the caller's array is left alone
    expected = epsilon * mask / mask.sum(1, keepdims=True)
    expected[np.arange(n), best] += 1 - epsilon
    deviation = np.sqrt(expected * (1 - expected) / steps)
    assert (np.abs(counts / steps - expected) <= 4.5 * deviation).all()
    assert (counts[~mask] == 0).all()


def test_exploration_never_takes_an_illegal_action():
    n, actions = 32, 6
    rng, explorer = np.random.default_rng(3), EpsilonGreedy(n, DiscreteAction(actions), seed=0)
    for _ in range(2_000):
        mask = random_mask(rng, n, actions)
        action = explorer(mask.argmax(1), rng.random(n), mask)
        assert mask[np.arange(n), action].all()


def test_every_environment_has_its_own_epsilon():
    explorer, steps = EpsilonGreedy(3, DiscreteAction(2), seed=1), 4_000
    epsilon, other = np.array([0.0, 0.4, 1.0]), np.zeros(3)
    for _ in range(steps):
        other += explorer(np.zeros(3, np.int64), epsilon, None)
    assert other[0] == 0
    assert other[1] / steps == pytest.approx(0.2, abs=0.03) and other[2] / steps == pytest.approx(0.5, abs=0.03)


def test_exploration_is_the_same_from_the_same_seed():
    runs = []
    for seed in ([1, 0], [1, 0], [1, 1]):
        explorer = EpsilonGreedy(8, DiscreteAction(4), seed)
        runs.append([explorer(np.zeros(8, np.int64), 0.5, None).tolist() for _ in range(300)])
    assert runs[0] == runs[1] and runs[0] != runs[2]


@pytest.mark.parametrize(
    ("frames", "epsilon"), [(0, 1.0), (1, 0.999905), (2_500, 0.7625), (5_000, 0.525), (10_000, 0.05), (99_999, 0.05)]
)
def test_linear_epsilon(frames, epsilon):
    config = CollectorConfig(epsilon_start=1.0, epsilon_end=0.05, epsilon_decay_frames=10_000)
    assert linear_epsilon(config, frames) == pytest.approx(epsilon)


def test_linear_epsilon_without_a_decay_is_its_end_from_the_first_frame_on():
    config = CollectorConfig(epsilon_start=1.0, epsilon_end=0.1, epsilon_decay_frames=0)
    assert linear_epsilon(config, 1) == pytest.approx(0.1)


def test_apex_ladder_ends_and_steps():
    """Horgan et al. 2018, section 4: epsilon = 0.4, alpha = 7, so that the rates go from 0.4 to 0.4 ** 8."""
    ladder = apex_ladder(CollectorConfig(), 360)
    assert ladder[0] == pytest.approx(0.4) and ladder[-1] == pytest.approx(0.4**8)
    assert ladder[100] == pytest.approx(0.4 ** (1 + 7 * 100 / 359))
    assert np.allclose(ladder[1:] / ladder[:-1], 0.4 ** (7 / 359))  # evenly spaced on a logarithmic scale
    assert apex_ladder(CollectorConfig(), 1).tolist() == [0.4]
    assert apex_ladder(CollectorConfig(), 2).tolist() == pytest.approx([0.4, 0.4**8])
