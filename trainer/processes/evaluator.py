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
from dataclasses import dataclass
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
from trainer.boards import error_text, flatten_parameters
from trainer.checkpoint import write_aside
from trainer.config import Config
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
        best: whether its mean is above all before.
    """

    frames: int
    returns: list[float]
    lengths: list[int]
    seconds: float
    taken_at: float
    best: bool = False

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

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
        actor = ALGORITHMS[config.algorithm.name](config.algorithm, config.learner, spec).policy
        self.flat = flatten_parameters(actor)
        self.network = actor.module[0].module

    def load(self, flat: Tensor) -> None:
        """Take weights, float32 [numel] in the board's order."""
        self.flat.copy_(flat)


def evaluate(policy: Policy, vector: Any, episodes: int, seed: int) -> tuple[list[float], list[int]]:
    """Returns and lengths of ``episodes`` greedy episodes.

    Every sub-environment plays its fixed share of the episodes, so that short ones are not counted more often.
    """
    n = vector.num_envs
    left = np.array([len(range(i, episodes, n)) for i in range(n)])
    observation = vector.reset(seed)
    stacks = FrameStacks(vector.spec, n)
    stacks.push(observation, np.ones(n, bool))
    ended = np.zeros(n, bool)
    total, steps = np.zeros(n), np.zeros(n, np.int64)
    returns: list[float] = []
    lengths: list[int] = []
    act = greedy_policy(policy.network, stacks.seen(observation), observation.get("action_mask"))
    with torch.inference_mode():
        while left.any():
            action = act(stacks.seen(observation), observation.get("action_mask"))
            observation, _, terminated, truncated = vector.step(action)
            fresh, ended = ended, terminated | truncated
            stacks.push(observation, fresh)
            total += vector.raw_reward
            steps += ~fresh
            for i in np.flatnonzero((ended | (steps >= MAX_EPISODE_STEPS)) & (left > 0)):
                returns.append(float(total[i]))
                lengths.append(int(steps[i]))
                left[i] = left[i] - 1 if ended[i] else 0  # one that does not end has no next
            total[ended], steps[ended] = 0, 0
    return returns, lengths


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
    best = -np.inf
    try:
        policy = Policy(config, spec)
        vector = envs.make(config.env, min(config.evaluator.num_envs, config.evaluator.episodes))
        while True:
            frames, taken_at = pipe.recv()
            policy.load(weights)
            start = time.monotonic()
            seed = config.seed * 1_000_000 + SEED_OFFSET
            returns, lengths = evaluate(policy, vector, config.evaluator.episodes, seed)
            mean = float(np.mean(returns))
            if is_best := mean > best:
                best = mean
                save_policy(run_dir / "best" / "policy.pt", policy.flat, frames, mean)
            pipe.send(Evaluation(frames, returns, lengths, time.monotonic() - start, taken_at, is_best))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process closed its end
    except Exception as error:
        pipe.send(error_text(error))
