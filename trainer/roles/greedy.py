"""Greedy episodes: the networks of a world's agents play, and what their episodes bring is counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.acting.acting import acting_of
from trainer.acting.policies import Policy, greedy_policy
from trainer.acting.stacks import FrameStacks
from trainer.algorithms import make_policy
from trainer.config.sections import Config
from trainer.envs import EnvSpec, life
from trainer.envs.info import scalars_of
from trainer.envs.world import Observation, Step
from trainer.host import seeds
from trainer.memory.weights import flatten_parameters
from trainer.networks.encoders import RETURN_SCALE


class Players:
    """Networks to act by, one for each agent of a world, with their weights in one flat tensor.

    Args:
        agents: configuration and spec of each.
    """

    def __init__(self, agents: Sequence[tuple[Config, EnvSpec]]) -> None:
        self.configs, self.specs = [config for config, _ in agents], [spec for _, spec in agents]
        self.actors = [make_policy(config, spec) for config, spec in agents]
        self._flats = [flatten_parameters(actor) for actor in self.actors]
        self.networks: list[Any] = [actor.module[0].module for actor in self.actors]
        self.acting = [acting_of(actor) for actor in self.actors]
        self._recorded: dict[Any, Policy] = {}

    @property
    def flat(self) -> Tensor:
        """All weights, float32 [sum of numel], one agent behind the other in the boards' order."""
        return torch.cat(self._flats)

    def load(self, flat: Tensor) -> None:
        """Take weights, float32 [sum of numel]."""
        for weights, part in zip(self._flats, flat.split([weights.numel() for weights in self._flats]), strict=True):
            weights.copy_(part)

    def policy(self, agent: int, seen: list[np.ndarray], mask: np.ndarray | None) -> Policy:
        """An agent's greedy policy for arrays of these shapes; recorded once, as each recording keeps its memory."""
        form = (agent, mask is None, *(array.shape for array in seen))
        if form not in self._recorded:
            self._recorded[form] = greedy_policy(self.networks[agent], seen, mask, acting=self.acting[agent])
        return self._recorded[form]

    def as_return(self, agent: int, values: np.ndarray) -> np.ndarray:
        """Values of an agent's network as the returns that they stand for."""
        returns: np.ndarray = self.acting[agent].to_returns(torch.from_numpy(values)).numpy()
        scale = getattr(getattr(self.networks[agent], "encoders", None), RETURN_SCALE, None)
        return returns if scale is None else returns / float(scale)


@dataclass(frozen=True)
class Beginning:
    """How an episode began, for critics that the player does not have.

    Args:
        agent: its number.
        seen: leaves of the first observation, [...] each.
        action: the first one, [*shape].
    """

    agent: int
    seen: list[np.ndarray]
    action: np.ndarray


@dataclass
class Episodes:
    """What greedy episodes brought, a number for each; see `trainer.roles.evaluator.Evaluation`."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    discounted: list[float] = field(default_factory=list)
    begun: list[Beginning | None] = field(default_factory=list)  # of agents whose networks predict nothing
    info: dict[str, list[float]] = field(default_factory=dict)  # scalars of `info` at the ends, by name
    cut: int = 0  # that had not ended at evaluator.max_episode_steps


def info_means(played: Sequence[Episodes]) -> dict[str, float]:
    """Mean of each scalar of `info` over the episodes of all agents that have it."""
    names = dict.fromkeys(name for episodes in played for name in episodes.info)
    return {
        name: float(np.mean([value for episodes in played for value in episodes.info.get(name, [])])) for name in names
    }


class RandomPlayer:
    """Uniformly random legal actions, in place of an agent's network.

    Args:
        spec: what it does.
        seed: of its draws.
    """

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self._action, self._rng = spec.action, np.random.default_rng(seed)

    def __call__(self, seen: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Actions [N, *shape], and values [N, 1] that say nothing."""
        count = len(seen[0])
        return self._action.random(self._rng, count, mask), np.zeros((count, 1), np.float32)


def evaluate(
    players: Players, world: Any, episodes: int, seed: int, replaced: Collection[str] = (),
    watch: Callable[[list[Episodes]], bool] | None = None,
) -> list[Episodes]:  # fmt: skip
    """Play `episodes` greedy episodes; what they brought each agent.

    Every sub-environment plays its fixed share of the episodes, so that short ones are not counted more often. One
    whose episode is cut at `evaluator.max_episode_steps` plays no further.

    Args:
        players: networks of all agents.
        world: from `trainer.envs.make_world`.
        episodes: how many.
        seed: of the sub-environments, and of the process's global generators.
        replaced: agents whose place a random player takes.
        watch: called after every step with what they have brought so far; the rest is not played once it says False.
    """
    n = world.num_envs
    seeds.seed_globals(seed, "evaluator", stage=1)
    observations = world.reset(seed)
    places = []
    for agent, (name, spec) in enumerate(zip(world.agents, world.specs, strict=True)):
        place = _AgentEpisodes(agent, spec, n, episodes, players.configs[agent])
        place.stacks.push(observations[agent], np.ones(n, bool))
        if hasattr(world, "info_of"):
            place.info_of = partial(world.info_of, agent)
        if name in replaced:
            place.act = RandomPlayer(spec, seeds.of_random_player(seed, agent))
        else:
            seen, mask = place.stacks.seen(observations[agent]), observations[agent].get("action_mask")
            place.act = players.policy(agent, seen, mask)
        places.append(place)
    present = [p.copy() for p in world.present]
    with torch.inference_mode():
        while any(place.left.any() for place in places):
            actions = [place.choose(players, observations[place.agent], present[place.agent]) for place in places]
            steps = world.step(actions)
            life.leave_if_forked()
            for place, step in zip(places, steps, strict=True):
                before, now = present[place.agent], world.present[place.agent]
                place.take(step, world.raw_rewards[place.agent], before, now & ~before)
                present[place.agent] = now.copy()
            observations = [step[0] for step in steps]
            if watch is not None and not watch([place.played for place in places]):
                break
    return [place.played for place in places]


class _AgentEpisodes:
    """What an agent's episodes have brought so far, over all sub-environments."""

    def __init__(self, agent: int, spec: EnvSpec, n: int, episodes: int, config: Config) -> None:
        self.agent, self.stacks, self.played = agent, FrameStacks(spec, n), Episodes()
        self.gamma, self.most_steps = config.algorithm.gamma, config.evaluator.max_episode_steps or np.inf
        self.info_keys = config.logger.info_keys
        self.info_of: Callable[[int], Mapping[Any, Any]] = lambda index: {}
        self.left = np.array([len(range(i, episodes, n)) for i in range(n)])
        self.total, self.steps = np.zeros(n), np.zeros(n, np.int64)
        self.discounted, self.predicted = np.zeros(n), np.zeros(n)
        self.begun: list[Beginning | None] = [None] * n
        self.act: Policy

    def choose(self, players: Players, observation: Observation, present: np.ndarray) -> np.ndarray:
        seen = self.stacks.seen(observation)
        action, values = self.act(seen, observation.get("action_mask"))
        first = (self.steps == 0) & present
        if first.any():
            self.predicted[first] = players.as_return(self.agent, values.max(1))[first]
            for i in np.flatnonzero(first & np.isnan(self.predicted)):
                self.begun[i] = Beginning(self.agent, [leaf[i].copy() for leaf in seen], action[i].copy())
        return action

    def take(self, step: Step, raw_reward: np.ndarray, acted: np.ndarray, fresh: np.ndarray) -> None:
        observation, reward, terminated, truncated = step
        ended = terminated | truncated
        self.stacks.push(observation, fresh)
        self.total += raw_reward
        self.discounted += self.gamma**self.steps * reward
        self.steps += acted
        for i in np.flatnonzero((ended | (self.steps >= self.most_steps)) & (self.left > 0)):
            self.played.returns.append(float(self.total[i]))
            self.played.lengths.append(int(self.steps[i]))
            self.played.predicted.append(float(self.predicted[i]))
            self.played.discounted.append(float(self.discounted[i]))
            self.played.begun.append(self.begun[i])
            for name, value in scalars_of(self.info_of(int(i)), self.info_keys).items():
                self.played.info.setdefault(name, []).append(value)
            self.left[i] = self.left[i] - 1 if ended[i] else 0  # one that does not end has no next
            self.played.cut += not ended[i]
        self.total[ended], self.steps[ended], self.discounted[ended] = 0, 0, 0
