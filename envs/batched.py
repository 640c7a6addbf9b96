"""Environments that are vectors already: Gymnasium's `vector_entry_point` and EnvPool, with the trainer's interface.

They must reset themselves on the next step (Gymnasium's `AutoresetMode.NEXT_STEP`). Their observations are copied, so
that every step returns the same arrays, as `trainer.envs.vector` promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs import info as infos
from trainer.envs import masks
from trainer.envs.closing import close_all
from trainer.envs.faults import Unfit, is_its_own, is_looked_at, warn, words_of
from trainer.envs.spaces import Field
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.state import set_state, state_of
from trainer.envs.vector import Observation, Step
from trainer.envs.writing import allocate, batch_writer, fault_of_batch, outside


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
        mask_key: str = "action_mask",
    ) -> None:
        """Create it.

        Args:
            spec: its observations and actions.
            fields: the leaves, and `action_mask` if the observation has it (else `info` must).
            reset_env: `(env, seed) -> (env, observation, info)`: resets every sub-environment. `env` is None at first,
                and may be replaced, as EnvPool takes a seed only in its constructor.
            num_envs: N.
            clip_rewards: whether `step` returns the reward's sign; `raw_reward` float32 [N] is never clipped.
            env: an environment that exists already.
            plain: whether its state consists of arrays, numbers and generators, see `trainer.envs.state`.
            mask_key: name of the mask in `info`.
        """
        self._plain = plain
        self.spec, self.num_envs = spec, num_envs
        self._reset_env, self._env, self._clip = reset_env, env, clip_rewards
        self._seed: int | None = None
        self._vector_step = 0
        self._fields, self._mask_key = fields, mask_key
        self._said: set[str] = set()  # warnings that were given
        self._observation = allocate(fields, num_envs)
        self._writers = [batch_writer(field, self._observation[field.leaf.name]) for field in fields]
        self._mask: NDArray[np.bool_] | None = None
        self._mask_in_info = spec.action.has_mask and "action_mask" not in self._observation
        if spec.action.has_mask:
            shape = (num_envs, spec.num_actions)
            self._mask = self._observation.setdefault("action_mask", np.ones(shape, bool))
            self._mask_before = np.ones(shape, bool)
        self.raw_reward = np.zeros(num_envs, np.float32)
        self._reward = np.zeros(num_envs, np.float32) if clip_rewards else self.raw_reward
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)

    def reset(self, seed: int | None = None) -> Observation:
        """Reset every sub-environment. The environment decides how the seed is used for sub-environment i.

        Raises:
            EnvError: the environment failed.
        """
        self._seed = self._seed if seed is None else seed
        self._terminated[:], self._truncated[:] = False, False
        try:
            self._env, observation, info = self._reset_env(self._env, seed)
        except BaseException as error:
            raise self._failure("reset", error) from error
        self._write(observation, info)
        return self._observation

    def step(self, action: NDArray[Any]) -> Step:
        """As `trainer.envs.vector.SyncVector.step`.

        Raises:
            EnvError: the environment failed, or gave no finite reward or observation.
        """
        self._vector_step += 1
        try:
            observation, reward, terminated, truncated, info = self._env.step(self.spec.action.for_env(action))
            self.raw_reward[:] = reward
            self._terminated[:] = terminated
            self._truncated[:] = truncated
        except BaseException as error:
            raise self._failure("step", error) from error
        if not np.isfinite(self.raw_reward).all():
            index = int(np.flatnonzero(~np.isfinite(self.raw_reward))[0])
            text = f"the reward of sub-environment {index} is {self.raw_reward[index]}, which is no finite number"
            raise self._failure("step", Unfit(text))
        self._write(observation, info)
        if self._clip:
            np.sign(self.raw_reward, out=self._reward)
        return self._observation, self._reward, self._terminated, self._truncated

    def info_of(self, index: int) -> dict[str, Any]:
        """The `info` that sub-environment `index` returned last."""
        return infos.at(self._info, index, self.num_envs)

    def state(self) -> dict[str, Any] | None:
        """Where it stands; None where the environment cannot tell."""
        return {"own": state_of(self), "env": state_of(self._env.unwrapped)} if self._plain else None

    def set_state(self, state: dict[str, Any], actions: Any) -> Observation:
        """Restore the `state` of another one, and return the observation there."""
        set_state(self._env.unwrapped, state["env"])
        set_state(self, state["own"])
        return self._observation

    def close(self) -> None:
        """Close the environment; a failure is only a warning, as nothing is lost by it."""
        if self._env is not None:
            close_all([self._env], self.spec.id)

    def _write(self, observation: Any, info: dict[str, Any]) -> None:
        self._info = info
        if self._mask is not None:
            np.copyto(self._mask_before, self._mask)
        try:
            for write in self._writers:
                write(observation)
            if self._mask is not None:
                if self._mask_in_info:
                    self._read_mask(self._mask, info)
                stuck = masks.complete(self._mask, self._mask_before, self._terminated, self._truncated)
                if stuck is not None:
                    self._warn("mask", f"sub-environment {stuck}: {masks.NOTHING_LEGAL}")
        except Exception as error:
            found = fault_of_batch(self._fields, observation, self.num_envs)
            fault = error if found is None else Unfit(f"of sub-environment {found[0]}, {found[1]}")
            raise self._failure("step", fault) from error
        if is_looked_at(self._vector_step):
            self._look_closely(info)

    def _read_mask(self, out: NDArray[np.bool_], info: dict[str, Any]) -> None:
        """As Gymnasium's vectors give it: rows of sub-environments without one are zero, `_key` says which have."""
        key, over = self._mask_key, self._terminated | self._truncated
        given = np.asarray(info.get(f"_{key}", np.full(self.num_envs, key in info)), bool)
        missing = ~given & ~over
        if missing.any():
            raise Unfit(f"info[{key!r}] of sub-environment {int(np.flatnonzero(missing)[0])} is missing")
        out[:] = False  # what `masks.complete` takes for missing
        if given.any():
            out[given] = np.asarray(info[key])[given]

    def _look_closely(self, info: dict[str, Any]) -> None:
        """Warn, once for each, of what the environment may mean in another way."""
        told = {}
        for field in self._fields:
            if (found := outside(field, self._observation[field.leaf.name])) is not None:
                told[field.leaf.name] = f"sub-environment {found[0]}: {found[1]}"
        if self._mask is None:
            first = {name: value[0] for name, value in info.items() if np.ndim(value) == 2 and not name.startswith("_")}
            told |= {like: like for like in masks.look_alikes(first, self.spec.action)}
        for key, text in told.items():
            self._warn(key, text)

    def _warn(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            warn(f"{self.spec.id}: {text}")

    def _failure(self, doing: str, error: BaseException) -> EnvError:
        if not is_its_own(error):
            raise error
        seed = "unseeded" if self._seed is None else f"seed {self._seed}"
        return EnvError(
            f"{self.spec.id}: its {self.num_envs} sub-environments ({seed}) failed in {doing}, step "
            f"{self._vector_step}: {words_of(error)}"
        )
