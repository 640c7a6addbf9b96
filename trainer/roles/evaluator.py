"""The evaluator: greedy episodes on fresh environments.

Runs in: a process of its own with a lower priority; in the main process for `sequential` and after training.
Receives: requests (frames at which the weights were taken) through a pipe, the weights through shared memory.
Sends: returns through the pipe; the best policy so far into the run's folder.
Waits for: the next request.
Stops when: its pulse says so, at its next step; the pipe closes; the parent's death.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer import envs
from trainer.acting.policies import Policy, greedy_policy
from trainer.acting.stacks import FrameStacks
from trainer.algorithms import make_policy
from trainer.algorithms.targets import unrescale
from trainer.config.algorithms import learns_rescaled
from trainer.config.sections import Config
from trainer.envs import EnvSpec, life
from trainer.envs.world import Observation, Step
from trainer.host import seeds
from trainer.host.errors import error_text
from trainer.memory.pulse import signs_of
from trainer.memory.weights import flatten_parameters
from trainer.roles import child
from trainer.run_folder.checkpoint import whole, write_aside
from trainer.selfplay.opponents import opponents_of_evaluation
from trainer.telemetry.trace import all_of, open_trace, save_or_say

PARTS = ("returns", "lengths", "predicted", "discounted")  # of `Episodes`


@dataclass(frozen=True)
class Evaluation:
    """Result of greedy episodes.

    Args:
        frames: training frames when the weights were taken.
        returns: of each episode, unclipped.
        lengths: steps of each episode.
        seconds: wall time that it took.
        taken_at: `time.monotonic()` when the weights were taken.
        predicted: value of the first action of each episode, as the network saw it.
        discounted: return that came of it, discounted, with rewards as they are trained on.
        best: whether no mean before was above its.
        problem: why the best policy could not be kept.
        cut: of the episodes those that had not ended at `evaluator.max_episode_steps`.
        asked: episodes that were asked for; a sub-environment whose episode is cut plays no further.
        by_agent: mean return of each, where there are several; the lists then hold one agent's episodes after the
            other's.
        pid: of the process that played them.
    """

    frames: int
    returns: list[float]
    lengths: list[int]
    seconds: float
    taken_at: float
    predicted: list[float]
    discounted: list[float]
    best: bool = False
    problem: str = ""
    cut: int = 0
    asked: int = 0
    by_agent: dict[str, float] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def overestimation(self) -> float:
        """Mean of predicted less discounted return; above 0: too much is promised (van Hasselt et al. 2016)."""
        return float(np.mean(np.subtract(self.predicted, self.discounted)))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes."""
        return float(np.std(self.returns))


class Players:
    """Networks to act by, one for each agent of a world, with their weights in one flat tensor.

    Args:
        agents: configuration and spec of each.
    """

    def __init__(self, agents: Sequence[tuple[Config, EnvSpec]]) -> None:
        self.configs, self.specs = [config for config, _ in agents], [spec for _, spec in agents]
        actors = [make_policy(config, spec) for config, spec in agents]
        self._flats = [flatten_parameters(actor) for actor in actors]
        self.networks: list[Any] = [actor.module[0].module for actor in actors]
        self._recorded: dict[Any, Policy] = {}

    @property
    def flat(self) -> Tensor:
        """All weights, float32 [sum of numel], one agent behind the other in the boards' order."""
        return torch.cat(self._flats)

    def load(self, flat: Tensor) -> None:
        """Take weights, float32 [sum of numel]."""
        for own, part in zip(self._flats, flat.split([own.numel() for own in self._flats]), strict=True):
            own.copy_(part)

    def policy(self, agent: int, seen: list[np.ndarray], mask: np.ndarray | None) -> Policy:
        """An agent's greedy policy for arrays of these shapes; recorded once, as each recording keeps its memory."""
        form = (agent, mask is None, *(array.shape for array in seen))
        if form not in self._recorded:
            self._recorded[form] = greedy_policy(self.networks[agent], seen, mask)
        return self._recorded[form]

    def as_return(self, agent: int, values: np.ndarray) -> np.ndarray:
        """Values of an agent's network as the returns that they stand for."""
        rescaled = learns_rescaled(self.configs[agent].algorithm)
        return unrescale(torch.from_numpy(values)).numpy() if rescaled else values


@dataclass
class Episodes:
    """What greedy episodes brought, a number for each; see :class:`Evaluation`."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    discounted: list[float] = field(default_factory=list)
    cut: int = 0  # that had not ended at evaluator.max_episode_steps


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
        world: from :func:`trainer.envs.make_world`.
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
        own = _Place(agent, spec, n, episodes, players.configs[agent])
        own.stacks.push(observations[agent], np.ones(n, bool))
        if name in replaced:
            own.act = RandomPlayer(spec, seed + agent)
        else:
            seen, mask = own.stacks.seen(observations[agent]), observations[agent].get("action_mask")
            own.act = players.policy(agent, seen, mask)
        places.append(own)
    present = [p.copy() for p in world.present]
    with torch.inference_mode():
        while any(own.left.any() for own in places):
            actions = [own.choose(players, observations[own.agent], present[own.agent]) for own in places]
            steps = world.step(actions)
            for own, step in zip(places, steps, strict=True):
                before, now = present[own.agent], world.present[own.agent]
                own.take(step, world.raw_rewards[own.agent], before, now & ~before)
                present[own.agent] = now.copy()
            observations = [step[0] for step in steps]
            if watch is not None and not watch([own.played for own in places]):
                break
    return [own.played for own in places]


class _Place:
    """What an agent's episodes have brought so far, over all sub-environments."""

    def __init__(self, agent: int, spec: EnvSpec, n: int, episodes: int, config: Config) -> None:
        self.agent, self.stacks, self.played = agent, FrameStacks(spec, n), Episodes()
        self.gamma, self.most_steps = config.algorithm.gamma, config.evaluator.max_episode_steps or np.inf
        self.left = np.array([len(range(i, episodes, n)) for i in range(n)])
        self.total, self.steps = np.zeros(n), np.zeros(n, np.int64)
        self.discounted, self.predicted = np.zeros(n), np.zeros(n)
        self.act: Policy

    def choose(self, players: Players, observation: Observation, present: np.ndarray) -> np.ndarray:
        action, values = self.act(self.stacks.seen(observation), observation.get("action_mask"))
        first = (self.steps == 0) & present
        if first.any():
            self.predicted[first] = players.as_return(self.agent, values.max(1))[first]
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
            self.left[i] = self.left[i] - 1 if ended[i] else 0  # one that does not end has no next
            self.played.cut += not ended[i]
        self.total[ended], self.steps[ended], self.discounted[ended] = 0, 0, 0


class Judge:
    """Evaluates weights on environments of its own and keeps the best policy in the run's folder.

    Args:
        config: the run.
        agents: configuration and spec of each agent.
        run_dir: the run's folder; what is the best so far stands there.
        watch: as :func:`evaluate` takes it.
    """

    def __init__(
        self, config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path,
        watch: Callable[[list[Episodes]], bool] | None = None,
    ) -> None:  # fmt: skip
        self._config, self._path, self._watch = config, run_dir / "best" / "policy.pt", watch
        self._players, self._best = Players(agents), -np.inf
        self._kept: Tensor | None = None  # what another process has found the best, until it is played here
        kept = whole(self._path, print, "weights", "eval_return_mean")
        if kept is not None:
            evaluated = not np.isnan(kept["eval_return_mean"])  # else any is better
            self._kept = kept["weights"] if evaluated else None
        self._world = world_of(config, min(config.evaluator.num_envs, config.evaluator.episodes))
        self.agents = all_of(self._world.agents)

    def evaluate(self, weights: Tensor, frames: int, taken_at: float) -> Evaluation | None:
        """Greedy episodes with `weights`, float32 [sum of numel]; always on the same seeds.

        The best policy so far that another process had found is played here first: the figure that it was kept with is
        of that one's environments, and they may draw a problem when they are made.

        Returns:
            what they brought; None where `watch` said that the rest is not to be played.
        """
        start = time.monotonic()
        if self._kept is not None:
            again = self._play(self._kept)
            if again is None:
                return None
            self._kept, self._best = None, float(np.mean([value for own in again for value in own.returns]))
        played = self._play(weights)
        if played is None:
            return None
        joint = [list(chain.from_iterable(getattr(own, part) for own in played)) for part in PARTS]
        mean = float(np.mean(joint[0]))
        best, problem = mean >= self._best, ""  # of equally good ones the newest, which has learned longest
        if best:
            self._best = mean
            try:
                save_policy(self._path, self._players.flat, frames, mean)
            except OSError as error:
                problem = str(error)
        by_agent = dict(zip(self._world.agents, (float(np.mean(own.returns)) for own in played), strict=True))
        returns, lengths, predicted, discounted = joint
        return Evaluation(
            frames, returns, lengths, time.monotonic() - start, taken_at, predicted, discounted, best,
            problem, sum(own.cut for own in played), self._config.evaluator.episodes * len(played),
            by_agent if len(played) > 1 else {},
        )  # fmt: skip

    def _play(self, weights: Tensor) -> list[Episodes] | None:
        """All of the episodes, or None."""
        self._players.load(weights)
        going_on = True

        def watch(played: list[Episodes]) -> bool:
            nonlocal going_on
            going_on = self._watch is None or self._watch(played)
            return going_on

        seed = seeds.of_evaluation(self._config.seed)
        played = evaluate(self._players, self._world, self._config.evaluator.episodes, seed, watch=watch)
        return played if going_on else None

    def close(self) -> None:
        """Close the environments."""
        self._world.close()


def world_of(config: Config, num_envs: int, render_mode: str | None = None) -> Any:
    """The environments of an evaluation; a game's opponents are `opponents.evaluate_against`."""
    seeds.seed_globals(config.seed, "evaluator")  # what constructors draw: the same world in every evaluation
    world = envs.make_world(config.env, num_envs, render_mode=render_mode)
    if envs.against_opponents(config.env):
        world.opponents = opponents_of_evaluation(config)
    return world


def save_policy(path: Path, flat: Tensor, frames: int, mean: float, **more: Any) -> None:
    """Keep a policy's weights with where they come from."""
    write_aside({"weights": flat.clone(), "frames": frames, "eval_return_mean": mean, **more}, path)


def run(
    config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path, weights: Tensor, pulse: Tensor,
    pipe: Connection,
) -> None:  # fmt: skip
    """Body of the process: a request `(frames, taken_at)` is answered by an :class:`Evaluation` or an error text.

    Args:
        config: the run.
        agents: configuration and spec of each agent.
        run_dir: the run's folder.
        weights: float32 [sum of numel] in shared memory; the main process writes it before a request only.
        pulse: of this process (`trainer.memory.pulse`).
        pipe: to the main process.
    """
    child.begin(config, "evaluator")
    os.nice(config.evaluator.nice)
    beat, ending = signs_of(pulse)

    life.tell(beat)

    def watch(_: object) -> bool:
        beat()
        return not ending()

    try:
        judge, trace = Judge(config, agents, run_dir, watch), open_trace(config, "evaluator")
        with closing(judge):
            trace.follow(judge, "evaluate", "evaluate", judge.agents)
            while (evaluation := judge.evaluate(weights, *pipe.recv())) is not None:
                save_or_say(trace)  # now, for this process may be ended from without
                pipe.send(evaluation)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process closed its end
    except BaseException as error:  # what a user's environment raises, SystemExit too
        child.tell(pipe, error_text(error))
