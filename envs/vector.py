"""A vector of sub-environments that are stepped one after another in this process.

A step: actions -> `env.step` of each sub-environment -> a list of observations -> one NumPy call for each leaf into
preallocated arrays. `SyncVector.reset` and `SyncVector.step` return the same dict and arrays in every call, and so is
`raw_reward`: the next call overwrites them.

Episodes end as in Gymnasium's `AutoresetMode.NEXT_STEP`: the step that ends an episode returns its final observation;
the next step ignores the action of that sub-environment, resets it, and returns its first observation with reward 0 and
both flags False. With `autoreset=False` the caller calls `SyncVector.reset_where` instead.

`trainer.envs.masks` describes action masks; a mask may be missing where an episode has ended. `trainer.envs.writing`
refuses observations whose values would change when stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs import life, masks
from trainer.envs.closing import close_all
from trainer.envs.faults import ALONE, Unfit, fault_of_step, is_its_own, is_looked_at, pair_of, warn, words_of
from trainer.envs.spaces import Field
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.state import generator_state, set_state, state_of
from trainer.envs.writing import allocate, fault_of, outside, row_writer

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
        mask_key: str = "action_mask",
    ) -> None:
        """Create it.

        Args:
            spec: observations and actions. With `spec.action.has_mask` the observation has `action_mask`, bool
                [N, num_actions], from `spec.mask_source`.
            fields: the leaves, and `action_mask` if the environment's observation has it.
            build: makes one sub-environment (a `gymnasium.Env`).
            num_envs: N.
            autoreset: whether a step resets the sub-environments whose episodes ended in the step before.
            clip_rewards: whether `step` returns the reward's sign; `raw_reward` float32 [N] is never clipped.
            mask_key: name of the mask in `info`.

        Raises:
            EnvError: a sub-environment could not be made; the sentence says which.
        """
        self.spec, self.num_envs = spec, num_envs
        self._fields, self._autoreset, self._clip = fields, autoreset, clip_rewards
        self._seeds: list[int | None] = [None] * num_envs
        self._vector_step = 0
        self._started = [-1] * num_envs  # vector step at which the episode began; -1 before the first reset
        self._observation = allocate(fields, num_envs)
        self._writers = [row_writer(field, self._observation[field.leaf.name]) for field in fields]
        self._mask: NDArray[np.bool_] | None = None
        self._mask_key, self._mask_field = mask_key, [f for f in fields if f.leaf.name == "action_mask"]
        if spec.action.has_mask:
            shape = (num_envs, spec.num_actions)
            self._mask = self._observation.setdefault("action_mask", np.ones(shape, bool))
            self._mask_before = np.ones(shape, bool)
        self.raw_reward = np.zeros(num_envs, np.float32)
        self._reward = np.zeros(num_envs, np.float32) if clip_rewards else self.raw_reward
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)
        self._over = [False] * num_envs  # whether the episode has ended
        self._rows: list[Any] = [None] * num_envs
        self._infos: list[Any] = [None] * num_envs
        self._build_all(build)
        self._env_steps = [env.step for env in self.envs]
        self._bare = [env.unwrapped for env in self.envs]
        self._mask_methods = [masks.method_of(env) for env in self.envs] if spec.mask_source == "method" else []
        self._said: set[str] = set()  # warnings that were given
        self._begun: list[dict[str, Any]] = [
            {} for _ in range(num_envs)
        ]  # seed or generator's state at each episode's reset

    def _build_all(self, build: Callable[[], Any]) -> None:
        self.envs: list[Any] = []
        try:
            for _ in range(self.num_envs):
                self.envs.append(build())
                life.beat()
        except BaseException as error:
            index = len(self.envs)
            close_all(self.envs, self.spec.id)
            if isinstance(error, EnvError) or not is_its_own(error):
                raise
            words = words_of(error)
            alone = f"; {ALONE}" if index and ALONE not in words else ""
            raise self._failure(index, "its constructor", f"{words}{alone}") from error

    def reset(self, seed: int | None = None) -> Observation:
        """Reset every sub-environment, number i with `seed + i`; with None unseeded.

        Raises:
            EnvError: a sub-environment failed; the sentence says which, its seed and its step.
        """
        for index in range(self.num_envs):
            if seed is not None:
                self._seeds[index] = seed + index
            self._start(index, self._seeds[index] if seed is not None else None)
        self._write_observation()
        return self._observation

    def reset_where(self, mask: NDArray[np.bool_]) -> Observation:
        """Reset the sub-environments of a bool mask [N], unseeded; the other rows stay as they are.

        Raises:
            EnvError: as in `reset`.
        """
        for index in np.flatnonzero(mask).tolist():
            self._start(index, None)
        self._write_observation()
        return self._observation

    def step(self, action: NDArray[Any]) -> Step:
        """Step every sub-environment.

        Args:
            action: [N, *spec.action.shape] of `spec.action.dtype`; numbered actions count from 0.

        Returns:
            (observation, reward float32 [N], terminated bool [N], truncated bool [N]); where an episode has ended, the
            observation is its final one.

        Raises:
            EnvError: a sub-environment raised, changed its observation's shape, left a discrete space, returned no
                finite reward, or was stepped past its end with `autoreset=False`; the sentence says which, its seed and
                its step.
        """
        # The elements are np.int64, as those of action_space.sample(), with which environments are tested.
        actions = list(self.spec.action.for_env(action))
        rows, infos, over = self._rows, self._infos, self._over
        reward, terminated, truncated = self.raw_reward, self._terminated, self._truncated
        self._vector_step += 1
        index, result, beat = 0, None, life.watcher()
        try:
            for index, env_step in enumerate(self._env_steps):
                if over[index]:
                    self._restart(index)
                else:
                    result = env_step(actions[index])
                    rows[index], reward[index], terminated[index], truncated[index], infos[index] = result
                beat()
        except EnvError:
            raise
        except BaseException as error:
            if not is_its_own(error):
                raise
            ours = (
                error.__traceback__ is not None and error.__traceback__.tb_next is None
            )  # raised here, not by its step
            words = (fault_of_step(result) if ours else None) or words_of(error)
            raise self._failure(index, f"step with action {actions[index]}", words) from error
        self._over = (terminated | truncated).tolist()
        if not np.isfinite(reward).all():
            index = int(np.flatnonzero(~np.isfinite(reward))[0])
            words = f"its reward is {reward[index]}, which is no finite number of float32"
            raise self._failure(index, "step", words) from Unfit(words)
        closely = is_looked_at(self._vector_step)
        if closely and result is not None and (fault := fault_of_step(result)) is not None:
            raise self._failure(index, "step", fault) from Unfit(fault)
        self._write_observation(closely)
        if self._clip:
            np.sign(reward, out=self._reward)
        return self._observation, self._reward, terminated, truncated

    def info_of(self, index: int) -> Mapping[Any, Any]:
        """The `info` that sub-environment `index` returned last."""
        info = self._infos[index]
        return info if isinstance(info, Mapping) else {}

    def state(self) -> dict[str, Any] | None:
        """How the running episodes began, and the arrays; None if an episode cannot be repeated (`generator_state`)."""
        if any(begun.get("generator", begun) is None for begun in self._begun):
            return None
        return {"begun": list(self._begun), "own": state_of(self)}

    def set_state(self, state: dict[str, Any], actions: list[NDArray[Any]]) -> Observation:
        """Restore the `state` of another vector, by playing its running episodes again.

        Args:
            state: of the other vector.
            actions: `actions[i]`, [steps, *shape], are those of sub-environment i since its reset.

        Returns:
            The observation there, [N, ...].

        Raises:
            EnvError: as in `step`.
            ValueError: the observation is another one than before: the environment is not fully seeded.
        """
        for index, (begun, own) in enumerate(zip(state["begun"], actions, strict=True)):
            if "generator" in begun:
                self._bare[index].np_random.bit_generator.state = begun["generator"]
            self._start(index, begun.get("seed"))
            self._begun[index] = begun
            self._play_again(index, list(self.spec.action.for_env(own)))
        self._write_observation()
        shown = {name: array.copy() for name, array in self._observation.items()}
        set_state(self, state["own"])
        for name, array in shown.items():
            if not np.array_equal(array, self._observation[name]):
                raise ValueError(f"{self.spec.id} showed another {name} when its episodes were played again")
        return self._observation

    def _play_again(self, index: int, actions: list[Any]) -> None:
        for number, action in enumerate(actions, 1):
            if number == len(actions) and self._mask is not None:
                self._write_observation()  # its mask is used if the last step truncates the episode
            try:
                self._rows[index], _, terminated, truncated, self._infos[index] = self._env_steps[index](action)
            except BaseException as error:
                if not is_its_own(error):
                    raise
                raise self._failure(index, f"step with action {action}, played again", words_of(error)) from error
            self._terminated[index], self._truncated[index] = terminated, truncated
            self._over[index] = bool(terminated or truncated)
            life.beat()

    def render(self) -> Any:
        """What sub-environment 0 renders, in the render mode that it was made with.

        Raises:
            EnvError: rendering failed.
        """
        try:
            return self.envs[0].render()
        except BaseException as error:
            if not is_its_own(error):
                raise
            raise self._failure(0, "render", words_of(error)) from error

    def close(self) -> None:
        """Close every sub-environment; a failure is only a warning, as nothing is lost by it."""
        close_all(self.envs, self.spec.id)

    def _restart(self, index: int) -> None:
        if not self._autoreset:
            raise Unfit("its episode is over and reset_where was not called")
        self._start(index, None)
        self.raw_reward[index] = 0.0

    def _start(self, index: int, seed: int | None) -> None:
        try:
            if seed is None:
                self._begun[index] = {"generator": generator_state(self._bare[index])}
            else:
                self._begun[index] = {"seed": seed}
            self._rows[index], self._infos[index] = pair_of(self.envs[index].reset(seed=seed))
        except BaseException as error:
            if not is_its_own(error):
                raise
            raise self._failure(index, "reset", words_of(error)) from error
        life.beat()
        self._started[index] = self._vector_step
        self._over[index] = self._terminated[index] = self._truncated[index] = False

    def _write_observation(self, closely: bool = True) -> None:
        if self._mask is not None:
            np.copyto(self._mask_before, self._mask)
        try:
            for write in self._writers:
                write(self._rows)
        except Exception as error:
            faults = [(index, fault_of(self._fields, row)) for index, row in enumerate(self._rows)]
            index, fault = next(((i, f) for i, f in faults if f is not None), (0, words_of(error)))
            raise self._failure(index, "step", fault) from error
        if self._mask is not None:
            if not self._mask_field:
                self._read_masks(self._mask, closely)
            stuck = masks.complete(self._mask, self._mask_before, self._terminated, self._truncated)
            if stuck is not None:
                self._warn("mask", f"sub-environment {stuck} (seed {self._seeds[stuck]}): {masks.NOTHING_LEGAL}")
        if closely:
            self._look_closely()

    def _read_masks(self, out: NDArray[np.bool_], closely: bool) -> None:
        key, methods = self._mask_key, self._mask_methods
        for index, info in enumerate(self._infos):
            if self._over[index] and self._terminated[index]:
                out[index] = True  # no action is chosen there, and no value bootstrapped from
                continue
            try:
                mask = methods[index]() if methods else info.get(key) if info else None
                if mask is not None or not self._over[index]:  # else the mask of the step before stays
                    masks.take(mask, out[index], "action_masks()" if methods else f"info[{key!r}]", closely)
            except BaseException as error:
                if not is_its_own(error):
                    raise
                raise self._failure(index, "step", words_of(error)) from error

    def _look_closely(self) -> None:
        """Warn, once for each, of what the environment may mean in another way."""
        for field in self._fields:
            if (told := outside(field, self._observation[field.leaf.name])) is not None:
                self._warn(field.leaf.name, f"sub-environment {told[0]} (seed {self._seeds[told[0]]}): {told[1]}")
        for index, row in enumerate(self._rows if self._mask_field else []):
            if (fault := fault_of(self._mask_field, row)) is not None:
                raise self._failure(index, "step", fault) from Unfit(fault)
        if self._mask is not None:
            return
        for index, info in enumerate(self._infos):
            if info and self._mask_key in info:
                raise self._failure(
                    index, "step", f"info[{self._mask_key!r}] came with a step and not with reset: give it with both"
                )
            for like in masks.look_alikes(info or {}, self.spec.action):
                self._warn(like, like)

    def _warn(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            warn(f"{self.spec.id}: {text}")

    def _failure(self, index: int, doing: str, words: str) -> EnvError:
        seed = self._seeds[index]
        when = "before its first reset"
        if self._started[index] >= 0:
            when = f"in step {self._vector_step - self._started[index]} of its episode, step {self._vector_step} of all"
        return EnvError(
            f"{self.spec.id}: sub-environment {index} ({'unseeded' if seed is None else f'seed {seed}'}) failed in "
            f"{doing}, {when}: {words}"
        )
