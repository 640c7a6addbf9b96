"""Environments that are vectors by themselves: Gymnasium's ``vector_entry_point`` and EnvPool behind our interface.

They must reset themselves on the next step (Gymnasium's ``AutoresetMode.NEXT_STEP``), and their observations are copied
into arrays of ours, so that callers may rely on what `envs.vector` promises: the same arrays in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.spaces import Field, allocate, batch_writer
from envs.spec import EnvError, EnvSpec
from envs.state import set_state, state_of
from envs.vector import Observation, Step


class BatchedVector:
    """A vector environment with Gymnasium's interface."""

    def __init__(
        self,
        spec: EnvSpec,
        fields: Sequence[Field],
        reset_env: Callable[[Any, int | None], tuple[Any, Any, dict[str, Any]]],
        num_envs: int,
        clip_rewards: bool = False,
        env: Any = None,
        plain: bool = False,
    ) -> None:
        """Makes it.

        Args:
            spec: what it shows.
            fields: the leaves, and ``action_mask`` too where the observation carries it (else ``info`` must).
            reset_env: ``(env, seed) -> (env, observation, info)``: starts every sub-environment anew; ``env`` is None
                at first and may be replaced, for EnvPool is seeded by its constructor only.
            num_envs: N.
            clip_rewards: whether ``step`` returns the reward's sign; ``raw_reward`` float32 [N] is never clipped.
            env: an environment that exists already.
            plain: whether all that it is made of are arrays, numbers and generators (`envs.state`).
        """
        self._plain = plain
        self.spec, self.num_envs = spec, num_envs
        self._reset_env, self._env, self._clip = reset_env, env, clip_rewards
        self._seed: int | None = None
        self._vector_step = 0
        self._observation = allocate(fields, num_envs)
        self._writers = [batch_writer(field, self._observation[field.leaf.name]) for field in fields]
        self._mask: NDArray[np.bool_] | None = None
        self._mask_in_info = spec.has_mask and "action_mask" not in self._observation
        if spec.has_mask:
            shape = (num_envs, spec.num_actions)
            self._mask = self._observation.setdefault("action_mask", np.ones(shape, bool))
        self.raw_reward = np.zeros(num_envs, np.float32)
        self._reward = np.zeros(num_envs, np.float32) if clip_rewards else self.raw_reward
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)

    def reset(self, seed: int | None = None) -> Observation:
        """Starts every sub-environment anew. What a seed means for sub-environment i is the environment's own affair.

        Raises:
            EnvError: the environment failed.
        """
        self._seed = self._seed if seed is None else seed
        try:
            self._env, observation, info = self._reset_env(self._env, seed)
            self._write(observation, info)
        except Exception as error:
            raise self._failure("reset", error) from error
        return self._observation

    def step(self, action: NDArray[np.int64]) -> Step:
        """As `envs.vector.SyncVector.step`.

        Raises:
            EnvError: the environment failed, or gave no finite reward.
        """
        self._vector_step += 1
        if self.spec.action_start:
            action = action + self.spec.action_start
        try:
            observation, reward, terminated, truncated, info = self._env.step(action)
            self._write(observation, info)
            self.raw_reward[:] = reward
            self._terminated[:] = terminated
            self._truncated[:] = truncated
            if not np.isfinite(self.raw_reward).all():
                raise ValueError(f"a reward is no finite number: {self.raw_reward}")
        except Exception as error:
            raise self._failure("step", error) from error
        if self._clip:
            np.sign(self.raw_reward, out=self._reward)
        return self._observation, self._reward, self._terminated, self._truncated

    def state(self) -> dict[str, Any] | None:
        """Where it stands; None where the environment cannot tell."""
        return {"own": state_of(self), "env": state_of(self._env.unwrapped)} if self._plain else None

    def set_state(self, state: dict[str, Any], actions: Any) -> None:
        """Stand where another one stood."""
        set_state(self._env.unwrapped, state["env"])
        set_state(self, state["own"])

    def close(self) -> None:
        """Closes the environment."""
        if self._env is not None:
            self._env.close()

    def _write(self, observation: Any, info: dict[str, Any]) -> None:
        for write in self._writers:
            write(observation)
        if self._mask is not None:
            if self._mask_in_info:
                self._mask[:] = info["action_mask"]
            legal = self._mask.any(1)
            if not legal.all():
                self._mask[~legal] = True

    def _failure(self, doing: str, error: Exception) -> EnvError:
        seed = "unseeded" if self._seed is None else f"seed {self._seed}"
        return EnvError(
            f"{self.spec.id}: its {self.num_envs} sub-environments ({seed}) failed in {doing}, step "
            f"{self._vector_step}: {type(error).__name__}: {error}"
        )
