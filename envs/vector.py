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
from trainer.envs.episodes import Episodes
from trainer.envs.faults import ALONE, Unfit, fault_of_step, is_its_own, is_looked_at, pair_of, words_of
from trainer.envs.observing import ObservationWriter
from trainer.envs.spaces import Field
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.state import generator_state, set_state, state_of

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


class SyncVector:
    """N sub-environments of one kind, stepped in turn."""

    def __init__(
        self, spec: EnvSpec, fields: Sequence[Field], build: Callable[[], Any], num_envs: int, autoreset: bool = True,
        clip_rewards: bool = False, mask_key: str = "action_mask",
    ) -> None:  # fmt: skip
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
        self._autoreset, self._clip = autoreset, clip_rewards
        self._episodes = Episodes(spec.id, num_envs)
        self.raw_reward = np.zeros(num_envs, np.float32)
        self._reward = np.zeros(num_envs, np.float32) if clip_rewards else self.raw_reward
        self.envs = build_all(build, num_envs, self._episodes)
        self._env_steps = [env.step for env in self.envs]
        self._bare = [env.unwrapped for env in self.envs]
        methods = [masks.method_of(env) for env in self.envs] if spec.mask_source == "method" else []
        self._writer = ObservationWriter(spec, fields, mask_key, methods, self._episodes)
        self._observation = self._writer.observation

    def reset(self, seed: int | None = None) -> Observation:
        """Reset every sub-environment, number i with `seed + i`; with None unseeded.

        Raises:
            EnvError: a sub-environment failed; the sentence says which, its seed and its step.
        """
        for index in range(self.num_envs):
            self._start(index, None if seed is None else seed + index)
        self._writer.write()
        return self._observation

    def reset_where(self, mask: NDArray[np.bool_]) -> Observation:
        """Reset the sub-environments of a bool mask [N], unseeded; the other rows stay as they are.

        Raises:
            EnvError: as in `reset`.
        """
        for index in np.flatnonzero(mask).tolist():
            self._start(index, None)
        self._writer.write()
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
        episodes, reward = self._episodes, self.raw_reward
        rows, infos, over = episodes.rows, episodes.infos, episodes.over
        terminated, truncated = episodes.terminated, episodes.truncated
        episodes.vector_step += 1
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
            here = getattr(error.__traceback__, "tb_next", error) is None  # raised here, not by its step
            words = (fault_of_step(result) if here else None) or words_of(error)
            raise episodes.failure(index, f"step with action {actions[index]}", words) from error
        episodes.over = (terminated | truncated).tolist()
        if not np.isfinite(reward).all():
            index = int(np.flatnonzero(~np.isfinite(reward))[0])
            words = f"its reward is {reward[index]}, which is no finite number of float32"
            raise episodes.failure(index, "step", words) from Unfit(words)
        closely = is_looked_at(episodes.vector_step)
        if closely and result is not None and (fault := fault_of_step(result)) is not None:
            raise episodes.failure(index, "step", fault) from Unfit(fault)
        self._writer.write(closely)
        if self._clip:
            np.sign(reward, out=self._reward)
        return self._observation, self._reward, terminated, truncated

    def info_of(self, index: int) -> Mapping[Any, Any]:
        """The `info` that sub-environment `index` returned last."""
        info = self._episodes.infos[index]
        return info if isinstance(info, Mapping) else {}

    def state(self) -> dict[str, Any] | None:
        """How the running episodes began, and the arrays; None if an episode cannot be repeated (`generator_state`)."""
        begun = self._episodes.begun
        if any(one.get("generator", one) is None for one in begun):
            return None
        return {"begun": list(begun), "own": state_of(self, self._episodes, self._writer)}

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
        for index, (begun, taken) in enumerate(zip(state["begun"], actions, strict=True)):
            if "generator" in begun:
                self._bare[index].np_random.bit_generator.state = begun["generator"]
            self._start(index, begun.get("seed"))
            self._episodes.begun[index] = begun
            self._play_again(index, list(self.spec.action.for_env(taken)))
        self._writer.write()
        shown = {name: array.copy() for name, array in self._observation.items()}
        set_state(self, state["own"], self._episodes, self._writer)
        for name, array in shown.items():
            if not np.array_equal(array, self._observation[name]):
                raise ValueError(f"{self.spec.id} showed another {name} when its episodes were played again")
        return self._observation

    def _play_again(self, index: int, actions: list[Any]) -> None:
        episodes = self._episodes
        for number, action in enumerate(actions, 1):
            if number == len(actions) and self.spec.action.has_mask:
                self._writer.write()  # its mask is used if the last step truncates the episode
            try:
                episodes.rows[index], _, terminated, truncated, episodes.infos[index] = self._env_steps[index](action)
            except BaseException as error:
                if not is_its_own(error):
                    raise
                raise episodes.failure(index, f"step with action {action}, played again", words_of(error)) from error
            episodes.terminated[index], episodes.truncated[index] = terminated, truncated
            episodes.over[index] = bool(terminated or truncated)
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
            raise self._episodes.failure(0, "render", words_of(error)) from error

    def close(self) -> None:
        """Close every sub-environment; a failure is only a warning, as nothing is lost by it."""
        close_all(self.envs, self.spec.id)

    def _restart(self, index: int) -> None:
        if not self._autoreset:
            raise Unfit("its episode is over and reset_where was not called")
        self._start(index, None)
        self.raw_reward[index] = 0.0

    def _start(self, index: int, seed: int | None) -> None:
        episodes = self._episodes
        try:
            if seed is not None:
                episodes.seeds[index] = seed
            begun = {"generator": generator_state(self._bare[index])} if seed is None else {"seed": seed}
            episodes.begun[index] = begun
            episodes.rows[index], episodes.infos[index] = pair_of(self.envs[index].reset(seed=seed))
        except BaseException as error:
            if not is_its_own(error):
                raise
            raise episodes.failure(index, "reset", words_of(error)) from error
        life.beat()
        episodes.started[index] = episodes.vector_step
        episodes.over[index] = episodes.terminated[index] = episodes.truncated[index] = False


def build_all(build: Callable[[], Any], num_envs: int, episodes: Episodes) -> list[Any]:
    """Make all sub-environments.

    Raises:
        EnvError: one could not be made; those before it are closed.
    """
    envs: list[Any] = []
    try:
        for _ in range(num_envs):
            envs.append(build())
            life.beat()
    except BaseException as error:
        close_all(envs, episodes.env_id)
        if isinstance(error, EnvError) or not is_its_own(error):
            raise
        words = words_of(error)
        alone = f"; {ALONE}" if envs and ALONE not in words else ""
        raise episodes.failure(len(envs), "its constructor", f"{words}{alone}") from error
    return envs
