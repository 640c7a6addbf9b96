"""Sub-environments stepped one after the other inside this process: the vector for every environment without its own.

The way of one step: actions -> ``env.step`` of each sub-environment -> one list of observations -> one NumPy call per
leaf into preallocated arrays. Everything that `SyncVector.reset` and `SyncVector.step` return, and ``raw_reward``, is
overwritten by the next call, always in the same arrays and the same dict: callers copy, and may keep views of them.

Episodes end as in Gymnasium's ``AutoresetMode.NEXT_STEP``: the step that ends an episode returns its true final
observation; the following step ignores that sub-environment's action, resets it and returns its first observation with
reward 0 and both flags False. With ``autoreset=False`` the caller calls `SyncVector.reset_where` instead.

Action masks: a row without any legal action (a final observation's, mostly) becomes all True: nothing is said to be
legal there, and a policy must not be left without a maximum. A mask in ``info`` may be missing where an episode ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs import life
from envs.spaces import Field, allocate, fault_of, row_writer
from envs.spec import EnvError, EnvSpec
from envs.state import set_state, state_of

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


class SyncVector:
    """N sub-environments of one kind, stepped in turn."""

    def __init__(
        self,
        spec: EnvSpec,
        fields: Sequence[Field],
        build: Callable[[], Any],
        num_envs: int,
        autoreset: bool = True,
        clip_rewards: bool = False,
    ) -> None:
        """Makes it.

        Args:
            spec: what they show; ``spec.has_mask`` adds ``action_mask`` bool [N, num_actions] to the observation.
            fields: the leaves, and ``action_mask`` too where the observation carries it (else ``info`` must).
            build: makes one sub-environment (a ``gymnasium.Env``).
            num_envs: N.
            autoreset: whether ended episodes are started anew by the next step.
            clip_rewards: whether ``step`` returns the reward's sign; ``raw_reward`` float32 [N] is never clipped.

        Raises:
            EnvError: a sub-environment could not be made; it names which one.
        """
        self.spec, self.num_envs = spec, num_envs
        self._fields, self._autoreset, self._clip = fields, autoreset, clip_rewards
        self._seeds: list[int | None] = [None] * num_envs
        self._vector_step = 0
        self._started = [-1] * num_envs  # vector step at which the episode began; -1 before the first reset
        self._observation = allocate(fields, num_envs)
        self._writers = [row_writer(field, self._observation[field.leaf.name]) for field in fields]
        self._mask: NDArray[np.bool_] | None = None
        self._mask_in_info = spec.has_mask and "action_mask" not in self._observation
        if spec.has_mask:
            shape = (num_envs, spec.num_actions)
            self._mask = self._observation.setdefault("action_mask", np.ones(shape, bool))
        self.raw_reward = np.zeros(num_envs, np.float32)
        self._reward = np.zeros(num_envs, np.float32) if clip_rewards else self.raw_reward
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)
        self._over = [False] * num_envs  # episodes that ended and were not started anew yet
        self._rows: list[Any] = [None] * num_envs
        self._infos: list[Any] = [None] * num_envs
        self._build_all(build)
        self._env_steps = [env.step for env in self.envs]
        self._bare = [env.unwrapped for env in self.envs]
        self._begun: list[dict[str, Any]] = [{} for _ in range(num_envs)]  # how each episode's reset can be repeated

    def _build_all(self, build: Callable[[], Any]) -> None:
        self.envs: list[Any] = []
        with ExitStack() as built:
            for index in range(self.num_envs):
                try:
                    self.envs.append(build())
                except EnvError:
                    raise
                except Exception as error:
                    raise self._failure(index, "its constructor", error) from error
                built.callback(life.beat)  # after the next line's, for they are called in reverse
                built.callback(self.envs[-1].close)
                life.beat()
            self._closing = built.pop_all()

    def reset(self, seed: int | None = None) -> Observation:
        """Starts every sub-environment anew, i with ``seed + i``; with None from where its generator stands.

        Raises:
            EnvError: a sub-environment failed; it names which one, its seed and its step.
        """
        for index in range(self.num_envs):
            if seed is not None:
                self._seeds[index] = seed + index
            self._start(index, self._seeds[index] if seed is not None else None)
        self._write_observation()
        return self._observation

    def reset_where(self, mask: NDArray[np.bool_]) -> Observation:
        """Starts the sub-environments of a bool mask [N] anew, unseeded; the other rows stay as they are.

        Raises:
            EnvError: as in `reset`.
        """
        for index in np.flatnonzero(mask).tolist():
            self._start(index, None)
        self._write_observation()
        return self._observation

    def step(self, action: NDArray[np.int64]) -> Step:
        """One step of every sub-environment.

        Args:
            action: int64 [N], counted from 0.

        Returns:
            (observation, reward float32 [N], terminated bool [N], truncated bool [N]); an ended episode's observation
            is its true last one.

        Raises:
            EnvError: a sub-environment raised, changed its observation's shape, left a discrete space, gave no finite
                reward, or was stepped past its end with ``autoreset=False``; it names which one, its seed and its step.
        """
        # Elements stay np.int64, as action_space.sample() gives them: what environments are tested with.
        actions = list(action + self.spec.action_start if self.spec.action_start else action)
        rows, infos, over = self._rows, self._infos, self._over
        reward, terminated, truncated = self.raw_reward, self._terminated, self._truncated
        self._vector_step += 1
        index, beat = 0, life.watcher()
        try:
            for index, env_step in enumerate(self._env_steps):
                if over[index]:
                    self._start_anew(index)
                else:
                    rows[index], reward[index], terminated[index], truncated[index], infos[index] = env_step(
                        actions[index]
                    )
                beat()
        except EnvError:
            raise
        except Exception as error:
            raise self._failure(index, f"step with action {actions[index]}", error) from error
        self._over = (terminated | truncated).tolist()
        if not np.isfinite(reward).all():
            index = int(np.flatnonzero(~np.isfinite(reward))[0])
            not_finite = ValueError(f"its reward is {reward[index]}, which is no finite number")
            raise self._failure(index, "step", not_finite) from not_finite
        self._write_observation()
        if self._clip:
            np.sign(reward, out=self._reward)
        return self._observation, self._reward, terminated, truncated

    def state(self) -> dict[str, Any]:
        """Where it stands: how the running episodes began, and what they show."""
        return {"begun": list(self._begun), "own": state_of(self)}

    def set_state(self, state: dict[str, Any], actions: list[NDArray[np.int64]]) -> Observation:
        """Play up to where another one stood; ``actions[i]`` int64 [steps] are sub-environment i's since its reset.

        Returns:
            What is observed there, [N, ...].

        Raises:
            EnvError: as in `step`.
            ValueError: it shows something else than was seen there: the environment is not fully seeded.
        """
        for index, (begun, own) in enumerate(zip(state["begun"], actions, strict=True)):
            if "generator" in begun:
                self._bare[index].np_random.bit_generator.state = begun["generator"]
            self._start(index, begun.get("seed"))
            self._begun[index] = begun
            for action in list(own + self.spec.action_start):
                try:
                    self._rows[index], *_, self._infos[index] = self._env_steps[index](action)
                except Exception as error:
                    raise self._failure(index, f"step with action {action}, played again", error) from error
                life.beat()
        self._write_observation()
        shown = {name: array.copy() for name, array in self._observation.items()}
        set_state(self, state["own"])
        for name, array in shown.items():
            if not np.array_equal(array, self._observation[name]):
                raise ValueError(f"{self.spec.id} showed another {name} when its episodes were played again")
        return self._observation

    def render(self) -> Any:
        """The picture of sub-environment 0, in the render mode that it was made with."""
        return self.envs[0].render()

    def close(self) -> None:
        """Closes every sub-environment."""
        self._closing.close()

    def _start_anew(self, index: int) -> None:
        if not self._autoreset:
            raise ValueError("its episode is over and reset_where was not called")
        self._start(index, None)
        self.raw_reward[index] = 0.0

    def _start(self, index: int, seed: int | None) -> None:
        try:
            if seed is None:
                self._begun[index] = {"generator": self._bare[index].np_random.bit_generator.state}
            else:
                self._begun[index] = {"seed": seed}
            self._rows[index], self._infos[index] = self.envs[index].reset(seed=seed)
        except Exception as error:
            raise self._failure(index, "reset", error) from error
        life.beat()
        self._started[index] = self._vector_step
        self._over[index] = self._terminated[index] = self._truncated[index] = False

    def _write_observation(self) -> None:
        try:
            for write in self._writers:
                write(self._rows)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            faults = [(index, fault_of(self._fields, row)) for index, row in enumerate(self._rows)]
            index, fault = next(((i, f) for i, f in faults if f is not None), (0, str(error)))
            raise self._failure(index, "step", ValueError(fault)) from error
        if self._mask is not None:
            if self._mask_in_info:
                self._read_masks(self._mask)
            legal = self._mask.any(1)
            if not legal.all():
                self._mask[~legal] = True

    def _read_masks(self, out: NDArray[np.bool_]) -> None:
        for index, info in enumerate(self._infos):
            mask = info.get("action_mask")
            if mask is None and self._over[index]:
                out[index] = True
            elif np.shape(mask) != out.shape[1:]:
                text = f"info['action_mask'] has shape {np.shape(mask)}, not {out.shape[1:]}"
                text = "info['action_mask'] is missing" if mask is None else text
                error = ValueError(text)
                raise self._failure(index, "step", error) from error
            else:
                out[index] = mask

    def _failure(self, index: int, doing: str, error: Exception) -> EnvError:
        seed = self._seeds[index]
        when = "before its first reset"
        if self._started[index] >= 0:
            when = f"in step {self._vector_step - self._started[index]} of its episode, step {self._vector_step} of all"
        return EnvError(
            f"{self.spec.id}: sub-environment {index} ({'unseeded' if seed is None else f'seed {seed}'}) failed in "
            f"{doing}, {when}: {type(error).__name__}: {error}"
        )
