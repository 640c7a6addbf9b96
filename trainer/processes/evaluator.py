"""The evaluator: greedy episodes on fresh environments.

Runs in: a process of its own with a lower priority; in the main process for ``sequential`` and after training.
Receives: requests (frames at which the weights were taken) through a pipe, the weights through shared memory.
Sends: returns through the pipe; the best policy so far into the run's folder.
Waits for: the next request.
Stops when: the pipe closes, which the main process's end brings about too.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import envs
from envs import EnvSpec
from trainer.acting import FrameStacks, greedy_policy
from trainer.algorithms import ALGORITHMS
from trainer.algorithms.targets import unrescale
from trainer.boards import error_text, flatten_parameters
from trainer.checkpoint import write_aside
from trainer.config import SEEDS_PER_RUN, Config
from trainer.signals import obey_parent

SEED_OFFSET = 500_000  # environments of evaluations are seeded apart from those of training
MAX_EPISODE_STEPS = 27_000  # a greedy policy may circle for ever: 108,000 Atari frames, as Machado et al. 2018 cut


@dataclass(frozen=True)
class Evaluation:
    """Result of greedy episodes.

    Args:
        frames: training frames when the weights were taken.
        returns: of each episode, unclipped.
        lengths: steps of each episode.
        seconds: wall time that it took.
        taken_at: ``time.monotonic()`` when the weights were taken.
        predicted: value of the first action of each episode, as the network saw it.
        discounted: return that came of it, discounted, with rewards as they are trained on.
        best: whether its mean is above all before.
    """

    frames: int
    returns: list[float]
    lengths: list[int]
    seconds: float
    taken_at: float
    predicted: list[float]
    discounted: list[float]
    best: bool = False

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


class Policy:
    """A network to act by, with its weights in one flat tensor.

    Args:
        config: the run.
        spec: its environment.
    """

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        self.config = config
        actor = ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec).policy
        self.flat = flatten_parameters(actor)
        self.network = actor.module[0].module

    def load(self, flat: Tensor) -> None:
        """Take weights, float32 [numel] in the board's order."""
        self.flat.copy_(flat)

    def as_return(self, values: np.ndarray) -> np.ndarray:
        """Values of the network as the returns that they stand for."""
        return unrescale(torch.from_numpy(values)).numpy() if self.config.algorithm.value_rescaling else values


@dataclass
class Episodes:
    """What greedy episodes brought, a number for each; see :class:`Evaluation`."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    discounted: list[float] = field(default_factory=list)


def evaluate(policy: Policy, vector: Any, episodes: int, seed: int) -> Episodes:
    """Play ``episodes`` greedy episodes.

    Every sub-environment plays its fixed share of the episodes, so that short ones are not counted more often.
    """
    n, gamma = vector.num_envs, policy.config.algorithm.gamma
    left = np.array([len(range(i, episodes, n)) for i in range(n)])
    observation = vector.reset(seed)
    stacks = FrameStacks(vector.spec, n)
    stacks.push(observation, np.ones(n, bool))
    ended = np.zeros(n, bool)
    total, steps, discounted, predicted = np.zeros(n), np.zeros(n, np.int64), np.zeros(n), np.zeros(n)
    played = Episodes()
    act = greedy_policy(policy.network, stacks.seen(observation), observation.get("action_mask"))
    with torch.inference_mode():
        while left.any():
            action, values = act(stacks.seen(observation), observation.get("action_mask"))
            first = (steps == 0) & ~ended
            predicted[first] = policy.as_return(values.max(1))[first]
            observation, reward, terminated, truncated = vector.step(action)
            fresh, ended = ended, terminated | truncated
            stacks.push(observation, fresh)
            total += vector.raw_reward
            discounted += gamma**steps * reward
            steps += ~fresh
            for i in np.flatnonzero((ended | (steps >= MAX_EPISODE_STEPS)) & (left > 0)):
                played.returns.append(float(total[i]))
                played.lengths.append(int(steps[i]))
                played.predicted.append(float(predicted[i]))
                played.discounted.append(float(discounted[i]))
                left[i] = left[i] - 1 if ended[i] else 0  # one that does not end has no next
            total[ended], steps[ended], discounted[ended] = 0, 0, 0
    return played


class Judge:
    """Evaluates weights on environments of its own and keeps the best policy in the run's folder.

    Args:
        config: the run.
        spec: its environment.
        run_dir: its folder.
    """

    def __init__(self, config: Config, spec: EnvSpec, run_dir: Path) -> None:
        self._config, self._path, self._best = config, run_dir / "best" / "policy.pt", -np.inf
        self._policy = Policy(config, spec)
        self._vector = envs.make(config.env, min(config.evaluator.num_envs, config.evaluator.episodes))

    def evaluate(self, weights: Tensor, frames: int, taken_at: float) -> Evaluation:
        """Greedy episodes with ``weights``, float32 [numel] in the board's order; always on the same seeds."""
        start = time.monotonic()
        self._policy.load(weights)
        seed = self._config.seed * SEEDS_PER_RUN + SEED_OFFSET
        played = evaluate(self._policy, self._vector, self._config.evaluator.episodes, seed)
        mean = float(np.mean(played.returns))
        best = mean > self._best
        if best:
            self._best = mean
            save_policy(self._path, self._policy.flat, frames, mean)
        return Evaluation(
            frames, played.returns, played.lengths, time.monotonic() - start, taken_at, played.predicted,
            played.discounted, best,
        )  # fmt: skip

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()


def save_policy(path: Path, flat: Tensor, frames: int, mean: float) -> None:
    """Keep a policy's weights with where they come from."""
    write_aside({"weights": flat.clone(), "frames": frames, "eval_return_mean": mean}, path)


def run(config: Config, spec: EnvSpec, run_dir: Path, weights: Tensor, pipe: Connection) -> None:
    """Body of the process: a request ``(frames, taken_at)`` is answered by an :class:`Evaluation` or an error text.

    Args:
        config: the run.
        spec: its environment.
        run_dir: its folder.
        weights: float32 [numel] in shared memory; the main process writes it before a request only.
        pipe: to the main process.
    """
    obey_parent()
    os.nice(config.evaluator.nice)
    torch.set_num_threads(1)
    try:
        judge = Judge(config, spec, run_dir)
        while True:
            pipe.send(judge.evaluate(weights, *pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process closed its end
    except Exception as error:
        pipe.send(error_text(error))
