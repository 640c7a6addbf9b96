"""Masks of legal actions: an episode that is cut off is bootstrapped from by the last mask that is known.

One state, -1 a step, cut off after 5, action 1 never legal: whatever the last mask says, Q(0) = -1 / (1 - 0.9) = -10.
With all actions allowed at the cut, Q(1), which is never trained, takes part in the maximum: -7.45 was seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import hurting_worlds  # noqa: F401  (registers)
import numpy as np
import pytest
import torch

from trainer import envs
from trainer.api.sources import of_run
from trainer.config.sections import EnvConfig as config

LEARNS = [
    "env.id=Hurting/Masked-v0", "env.import_modules=[hurting_worlds]", "algorithm.gamma=0.9", "budget_frames=4000",
    "schedule=sequential", "schedule.frames_per_update=1", "schedule.frames_per_round=16", "learner.warmup_frames=64",
    "learner.learning_rate=0.01", "algorithm.target_update_every_updates=20",
]  # fmt: skip


def cut_mask(vector: Any) -> list[list[bool]]:
    """The mask with which a vector of `Masked` shows the observation at which it is cut off."""
    vector.reset(3)
    for _ in range(5):
        observation, _, terminated, truncated = vector.step(np.zeros(vector.num_envs, np.int64))
    assert truncated.all() and not terminated.any()
    return observation["action_mask"].tolist()


@pytest.mark.parametrize(
    "arguments",
    [
        ["env.kwargs={last: zero}"],
        pytest.param(["env.kwargs={convention: method, last: zero}"], marks=pytest.mark.slow),
    ],
)
def test_the_value_of_a_state_behind_a_cut_is_right_whatever_the_last_mask_says(run, arguments):
    ended = run(*LEARNS, *arguments)
    assert ended.code == 0, ended.said
    where = "action_masks()" if "method" in arguments[0] else "info['action_mask']"
    assert f"legal actions are read from {where}" in ended.said
    players = of_run(ended.run_dir, "last").players()
    with torch.no_grad():
        value = players.networks[0](torch.zeros(1, 2))[0, 0].item()
    assert value == pytest.approx(-10, abs=0.05)


@pytest.mark.parametrize("convention", ["info", "observation", "method"])
@pytest.mark.parametrize("last", ["whole", "zero", "none"])
def test_every_convention_is_found_and_the_last_mask_known_holds_at_a_cut(convention, last):
    if (convention, last) == ("observation", "none"):
        last = "zero"  # a part of an observation cannot be missing
    vector = envs.make(config("Hurting/Masked-v0", kwargs={"convention": convention, "last": last}), 2)
    assert vector.spec.mask_source == convention
    assert cut_mask(vector) == [[True, False]] * 2
    observation, *_ = vector.step(np.zeros(2, np.int64))  # of the next episode
    assert observation["action_mask"].tolist() == [[True, False]] * 2


def test_a_vector_goes_on_from_where_another_one_was_cut_off():
    env = config("Hurting/Masked-v0", kwargs={"last": "none"})
    vector, other = envs.make(env, 2), envs.make(env, 2)
    assert cut_mask(vector) == [[True, False]] * 2
    other.reset(99)
    shown = other.set_state(vector.state(), [np.zeros(5, np.int64)] * 2)
    assert shown["action_mask"].tolist() == [[True, False]] * 2


@pytest.mark.parametrize("name", ["valid_mask", "legal_actions"])
def test_what_only_looks_like_a_mask_is_named_and_can_be_used(name):
    env = config("Hurting/Masked-v0", kwargs={"convention": name})
    (note,) = envs.describe(env).notes
    assert note == (
        f"warning: info['{name}'] looks like a mask of legal actions and is not used: set env.mask_key={name} to "
        "choose among legal actions alone"
    )
    env = replace(env, mask_key=name)
    vector = envs.make(env, 2)
    assert vector.spec.notes == (f"legal actions are read from info['{name}']",)
    assert cut_mask(vector) == [[True, False]] * 2


def test_a_mask_that_forbids_everything_while_the_episode_goes_on_is_said_once(capsys):
    vector = envs.make(config("Hurting/Masked-v0"), 2)
    for env in vector.envs:
        env.unwrapped.mask = lambda env=env: np.array([env.unwrapped.t != 2, 0], np.int8)
    vector.reset(3)
    shown = [vector.step(np.zeros(2, np.int64))[0]["action_mask"][0].tolist() for _ in range(10)]
    assert shown[:3] == [[True, False], [True, True], [True, False]]
    assert capsys.readouterr().err == (
        "warning: Hurting/Masked-v0: sub-environment 0 (seed 3): its mask allows no action while its episode goes on, "
        "and so every action is taken for legal there\n"
    )


def test_a_mask_deep_in_an_observation_is_named():
    parts = {"deep": gym.spaces.Dict({"legal_moves": gym.spaces.MultiBinary(2)}), "x": gym.spaces.Discrete(2)}
    values = [{"deep": {"legal_moves": np.array([1, 0], np.int8)}, "x": 0}]
    env = config("Hurting/Shows-v0", kwargs={"space": gym.spaces.Dict(parts), "values": values})
    assert envs.describe(env).notes == (
        "warning: the observation's deep.legal_moves looks like a mask of legal actions and is not used: have it at "
        "the top of the observation",
    )


def test_a_mask_of_another_kind_is_refused():
    for mask, words in [([2, 3], "must hold a 0 or 1"), ([1], "has shape (1,), not (2,)"), (None, "is missing")]:
        vector = envs.make(config("Hurting/Masked-v0"), 1)
        vector.envs[0].unwrapped.mask = lambda mask=mask: mask
        with pytest.raises(envs.EnvError) as caught:
            vector.reset(0)
        assert f"info['action_mask'] {words}" in str(caught.value) or words in str(caught.value)


def test_a_mask_that_comes_with_steps_alone_is_refused():
    vector = envs.make(config("Hurting/Plain-v0"), 1)
    vector.reset(0)
    step = vector.envs[0].unwrapped.step
    vector._env_steps[0] = lambda action: (*step(action)[:4], {"action_mask": [1, 0]})
    with pytest.raises(envs.EnvError, match=r"info\['action_mask'\] came with a step and not with reset"):
        vector.step(np.zeros(1, np.int64))


class Native(gym.vector.VectorEnv):
    """`Masked` twice, as a vector of its own; info as Gymnasium's vectors give it."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, last: str) -> None:
        self.num_envs, self.last, self.t = 2, last, 0
        self.single_observation_space = gym.spaces.Box(-1, 1, (2,))
        self.single_action_space = gym.spaces.Discrete(2)

    def info(self):
        if self.t < 5 or self.last == "whole":
            return {"action_mask": np.array([[1, 0]] * 2), "_action_mask": np.ones(2, bool)}
        return {} if self.last == "none" else {"action_mask": np.zeros((2, 2)), "_action_mask": np.ones(2, bool)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros((2, 2), np.float32), self.info()

    def step(self, action):
        self.t = self.t % 5 + 1
        ends = np.full(2, self.t == 5)
        return np.zeros((2, 2), np.float32), np.ones(2), np.zeros(2, bool), ends, self.info()


@pytest.mark.parametrize("last", ["whole", "zero", "none"])
def test_the_same_of_an_environment_that_is_a_vector_by_itself(last):
    from trainer.envs.batched import BatchedVector
    from trainer.envs.spaces import fields_of
    from trainer.envs.spec import EnvSpec

    env = Native(last)
    fields = fields_of(env.single_observation_space, 1, "Native")
    spec = EnvSpec(
        "Native", tuple(field.leaf for field in fields), envs.DiscreteAction(2, has_mask=True), mask_source="info"
    )
    vector = BatchedVector(spec, fields, lambda env, seed: (env, *env.reset(seed=seed)), 2, env=env)
    assert cut_mask(vector) == [[True, False]] * 2


class Parallel:
    """Two agents of `Masked`, cut off together."""

    def __init__(self, last: str) -> None:
        self.last, self.possible_agents, self.agents = last, ["a", "b"], ["a", "b"]

    def observation_space(self, agent):
        return gym.spaces.Box(-1, 1, (2,))

    def action_space(self, agent):
        return gym.spaces.Discrete(2)

    def infos(self):
        over = self.t >= 5
        mask = {} if over and self.last == "none" else {"action_mask": [int(not over or self.last == "whole"), 0]}
        return {agent: dict(mask) for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return dict.fromkeys(self.agents, np.zeros(2, np.float32)), self.infos()

    def step(self, actions):
        self.t += 1
        agents = self.agents
        self.agents = [] if self.t >= 5 else agents
        every = dict.fromkeys
        seen, cut = np.zeros(2, np.float32), self.t >= 5
        return every(agents, seen), every(agents, -1.0), every(agents, False), every(agents, cut), self.infos()


@pytest.mark.parametrize("last", ["whole", "zero", "none"])
def test_the_same_of_a_world_of_several_agents(last):
    from trainer.envs.pettingzoo import PettingZooVector

    made = [Parallel(last)]
    _, infos = made[0].reset(0)
    world = PettingZooVector(made, "Parallel", 1, False, infos=infos)
    assert [spec.mask_source for spec in world.specs] == ["info", "info"]
    world.reset(0)
    for _ in range(5):
        steps = world.step([np.zeros(1, np.int64)] * 2)
    for observation, _, _, truncated in steps:
        assert truncated.all() and observation["action_mask"].tolist() == [[True, False]]


def test_the_same_of_a_game_that_is_cut_off():
    """Tic-tac-toe cut off after three moves: the first seat has moved twice, and may take what was free before that."""
    from trainer.envs.games import GAMES
    from trainer.envs.games.players import random_player
    from trainer.envs.selfplay import Opponents, SelfPlay

    class Cut(GAMES["tictactoe"]):  # type: ignore[misc]
        def step(self, action, where=None):
            super().step(action, where)
            self.truncated = np.repeat((self.length >= 3)[:, None] & ~self.over[:, None], 2, 1)
            self.over |= self.length >= 3

    world = SelfPlay(Cut(1), Opponents([random_player], np.ones(1)))
    (seen,) = world.reset(4)
    for _ in range(2):
        free = seen["action_mask"].copy()
        assert not world._cut.any()
        ((seen, _, terminated, truncated),) = world.step([free.argmax(1)])
    assert truncated.all() and not terminated.any()
    assert seen["action_mask"].tolist() == free.tolist() and not free.all()
    copy = SelfPlay(Cut(1), Opponents([random_player], np.ones(1)))
    copy.reset(0)
    assert copy.set_state(world.state(), None)[0]["action_mask"].tolist() == free.tolist()
