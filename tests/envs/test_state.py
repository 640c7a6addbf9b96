"""Worlds that go on elsewhere: another one that was put where the first stood does the same from there on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer import envs
from trainer.config.compose import load

WORLDS = {
    "CartPole, native": ["env.id=CartPole-v1"],
    "CartPole, played again": ["env.id=CartPole-v1", "env.vectorization=sync"],
    "LunarLander": ["env.id=LunarLander-v3"],
    "FrozenLake": ["env.id=FrozenLake-v1"],
    "Blackjack": ["env.id=Blackjack-v1"],
    "counting": ["env.id=Counting", "env.backend=counting"],
    "treasurehunt": ["preset=treasurehunt"],
    "cleanup": ["preset=cleanup"],
    "tag": ["preset=tag"],
    "iowa": ["preset=iowa"],
}
STEPS, AFTER = 230, 150


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_goes_on_where_another_one_stood(name: str, tmp_path: Path) -> None:
    config = load(WORLDS[name], cores=3).config
    first, second = envs.make_world(config.env, 3), envs.make_world(config.env, 3)
    first.reset(7)
    rng = np.random.default_rng(1)
    played: list[list[list[int]]] = [[[] for _ in range(3)] for _ in first.agents]  # actions of the running episodes
    present = [p.copy() for p in first.present]
    for _ in range(STEPS):
        actions = [rng.integers(0, spec.num_actions, 3) for spec in first.specs]
        seen = first.step(actions)
        for a, own in enumerate(played):
            for i in range(3):
                own[i] = [*own[i], int(actions[a][i])] if present[a][i] else []  # else it was reset
        present = [p.copy() for p in first.present]
    torch.save(first.state(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)  # plain values only
    second.reset(99)
    observed = second.set_state(state, [[np.array(i, np.int64) for i in own] for own in played])
    for a, observation in enumerate(observed):
        for leaf, array in observation.items():
            assert np.array_equal(array, seen[a][0][leaf])
    episodes = 0
    for _ in range(AFTER):
        actions = [rng.integers(0, spec.num_actions, 3) for spec in first.specs]
        one, other = first.step(actions), second.step(actions)
        for mine, its in zip(one, other, strict=True):
            for leaf, array in mine[0].items():
                assert np.array_equal(array, its[0][leaf])
            assert all(np.array_equal(x, y) for x, y in zip(mine[1:], its[1:], strict=True))
        assert all(np.array_equal(x, y) for x, y in zip(first.raw_rewards, second.raw_rewards, strict=True))
        episodes += int((one[0][2] | one[0][3]).sum())
    assert episodes > 0
    first.close()
    second.close()


def test_an_environment_with_a_generator_of_its_own_says_so() -> None:
    config = load(["env.id=MinAtar/Breakout-v1"], cores=3).config
    first, second = envs.make_world(config.env, 1), envs.make_world(config.env, 1)
    first.reset(7)
    for _ in range(30):
        first.step([np.zeros(1, np.int64)])
    second.reset(9)
    text = "MinAtar/Breakout-v1 showed another observation when its episodes were played again"
    with pytest.raises(ValueError, match=text):
        second.set_state(first.state(), [[np.zeros(30, np.int64)]])
