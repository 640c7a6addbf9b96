"""Where the episodes of a vector's sub-environments stand: to say which one failed, and to repeat them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.envs.faults import warn
from trainer.envs.spec import EnvError


class Episodes:
    """The running episodes of N sub-environments.

    Args:
        env_id: for sentences.
        num_envs: N.

    Attributes:
        vector_step: number of vector steps.
        seeds: of each sub-environment's last reset with a seed; None before the first.
        started: vector step at which each episode began; -1 before the first reset.
        begun: seed, or state of the generator, at each episode's reset.
        over: whether each episode has ended.
        terminated: bool [N], how it ended.
        truncated: bool [N].
        rows: the observation that each gave last.
        infos: the info that each gave last.
    """

    def __init__(self, env_id: str, num_envs: int) -> None:
        self.env_id, self.vector_step = env_id, 0
        self.seeds: list[int | None] = [None] * num_envs
        self.started = [-1] * num_envs
        self.begun: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self.over = [False] * num_envs
        self.terminated = np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)
        self.rows: list[Any] = [None] * num_envs
        self.infos: list[Any] = [None] * num_envs
        self._said: set[str] = set()  # warnings that were given

    def failure(self, index: int, doing: str, words: str) -> EnvError:
        """The error that sub-environment `index` has failed in `doing`, with its seed and its step."""
        seed = self.seeds[index]
        when = "before its first reset"
        if self.started[index] >= 0:
            when = f"in step {self.vector_step - self.started[index]} of its episode, step {self.vector_step} of all"
        return EnvError(
            f"{self.env_id}: sub-environment {index} ({'unseeded' if seed is None else f'seed {seed}'}) failed in "
            f"{doing}, {when}: {words}"
        )

    def warn(self, key: str, text: str) -> None:
        """Print a warning, once for each key."""
        if key not in self._said:
            self._said.add(key)
            warn(f"{self.env_id}: {text}")

    def warn_of(self, index: int, key: str, text: str) -> None:
        """Print a warning about sub-environment `index`, once for each key."""
        self.warn(key, f"sub-environment {index} (seed {self.seeds[index]}): {text}")
