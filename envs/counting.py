"""Backend `counting`: an environment for tests, each transition of which can be checked by arithmetic.

Sub-environment i of a vector reset with `seed` is stream `seed + i`. Its observation is float32 [4]: (stream,
episode, step in the episode, last action or -1 after a reset), exact below 2**24; with `image=True` the same four
numbers in a uint8 frame (`decode_image`). Episode e of stream s has `episode_length` steps, ends by truncation if
`is_truncation` says so, and its k-th step (k from 1) has the reward `expected_reward`. With `with_mask=True` only
`legal_actions` are accepted: any other is an `EnvError`. All of it is NumPy on [N]; a step costs about 40 us.

`env.kwargs` (all optional): `num_actions` (2), `min_length` (1), `max_length` (20), `truncated_share`
(0.25), `step_seconds` (0.0, slept per vector step), `with_mask`, `image` (False), `image_size` (84, the
frame's side), and faults in the n-th vector step (from 1): `raise_at_step`, `kill_at_step` (SIGKILL to this
process), `hang_at_step`, `nan_at_step` (the reward, which raises `EnvError`), `nan_observation_at_step` (returned as it
is). `fault_stream` restricts faults to the vector with that stream. `fault_once` is the path of a file that is made at
the first fault; while it exists there is no other fault, so a restarted worker goes on.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainer.envs.actions import DiscreteAction
from trainer.envs.spec import EnvError, EnvSpec, Leaf
from trainer.envs.state import set_state, state_of
from trainer.envs.vector import Observation, Step

PRIME = 1_000_003
FAULTS = ("raise", "kill", "hang", "nan", "nan_observation")
LIMIT = 2**24  # float32 has all integers up to it


@dataclass(frozen=True)
class Settings:
    """The keys of `env.kwargs`, see the beginning of this file."""

    num_actions: int = 2
    min_length: int = 1
    max_length: int = 20
    truncated_share: float = 0.25
    step_seconds: float = 0.0
    with_mask: bool = False
    image: bool = False
    image_size: int = 84
    raise_at_step: int | None = None
    kill_at_step: int | None = None
    hang_at_step: int | None = None
    nan_at_step: int | None = None
    nan_observation_at_step: int | None = None
    fault_stream: int | None = None
    fault_once: str | None = None


def episode_length(
    stream: ArrayLike, episode: ArrayLike, min_length: int = 1, max_length: int = 20
) -> NDArray[np.int64]:
    """Number of steps of an episode, min_length .. max_length; broadcasts."""
    return min_length + _mixed(stream, episode, 1) % (max_length - min_length + 1)


def is_truncation(stream: ArrayLike, episode: ArrayLike, truncated_share: float = 0.25) -> NDArray[np.bool_]:
    """Whether an episode ends by truncation (that share of all do), not by termination; broadcasts."""
    return _mixed(stream, episode, 2) % 1000 < round(1000 * truncated_share)


def expected_reward(stream: ArrayLike, episode: ArrayLike, step: ArrayLike) -> NDArray[np.float32]:
    """Reward of an episode's step, counted from 1: a multiple of 1/8 from -16 to 16; broadcasts."""
    stream, episode, step = (np.asarray(x, np.int64) for x in (stream, episode, step))
    return (((31 * stream + 17 * episode + 7 * step) % 257 - 128) / 8).astype(np.float32)


def legal_actions(stream: ArrayLike, episode: ArrayLike, step: ArrayLike, num_actions: int) -> NDArray[np.bool_]:
    """Legal actions after a step (0: after the reset), bool [..., num_actions]; at least one, about half of them."""
    stream, episode, step = (np.asarray(x, np.int64)[..., None] for x in (stream, episode, step))
    actions = np.arange(num_actions)
    always = (stream + episode + step) % num_actions
    return (actions == always) | (_mixed(stream + step, episode, 3 + actions) % 2 == 1)


def encode_image(numbers: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Frames, uint8 [N, size, size], of (stream, episode, step, last action), int64 [N, 4].

    The first 16 bytes are the four numbers as int32; all others are their sum modulo 256, to detect a torn frame.
    """
    frames = np.empty((len(numbers), size * size), np.uint8)
    frames[:] = (numbers.sum(1) % 256).astype(np.uint8)[:, None]
    frames[:, :16] = np.ascontiguousarray(numbers, "<i4").view(np.uint8)
    return frames.reshape(-1, size, size)


def decode_image(frames: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(stream, episode, step, last action), int64 [..., 4], of frames, uint8 [..., size, size].

    Raises:
        ValueError: a frame is torn: its other bytes do not fit its numbers.
    """
    flat = np.ascontiguousarray(frames).reshape(*frames.shape[:-2], -1)
    numbers = np.ascontiguousarray(flat[..., :16]).view("<i4").astype(np.int64)
    if (flat[..., 16:] != (numbers.sum(-1) % 256).astype(np.uint8)[..., None]).any():
        raise ValueError("a frame is torn: its rest does not fit the numbers that it encodes")
    return numbers


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> CountingVector:
    """A counting vector; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: `env.kwargs` has an unknown key or an impossible value.
    """
    unknown = sorted(set(env.kwargs) - set(Settings.__dataclass_fields__))
    if unknown:
        known = ", ".join(Settings.__dataclass_fields__)
        raise EnvError(f"{env.id}: counting knows no env.kwargs.{unknown[0]}; it has {known}.")
    settings = Settings(**env.kwargs)
    if render_mode is not None:
        raise EnvError(f"{env.id}: counting draws nothing.")
    wrong = [name for name, value in env.kwargs.items() if not _fits(value, getattr(Settings, name))]
    if wrong:
        raise EnvError(f"{env.id}: env.kwargs.{wrong[0]}={env.kwargs[wrong[0]]} is of another kind than counting's.")
    if not 1 <= settings.min_length <= settings.max_length or settings.num_actions < 1 or settings.image_size < 4:
        raise EnvError(f"{env.id}: counting needs 1 <= min_length <= max_length, num_actions >= 1 and image_size >= 4.")
    return CountingVector(settings, env.id, num_envs, env.frame_stack, autoreset, env.clip_rewards)


def _fits(value: Any, plain: Any) -> bool:
    """Whether a value of `env.kwargs` is of the kind of its default; None stands for a number or a path."""
    if plain is None or isinstance(plain, bool):
        return isinstance(value, bool) if plain is not None else value is None or isinstance(value, int | str)
    return isinstance(value, int | float) and not isinstance(value, bool)


class CountingVector:
    """N counting sub-environments with the interface of `trainer.envs.vector`; see the beginning of this file."""

    def __init__(
        self, settings: Settings, env_id: str, num_envs: int, frame_stack: int, autoreset: bool, clip_rewards: bool
    ) -> None:
        """Create it; `make` describes the arguments."""
        self._settings, self._autoreset, self._clip = settings, autoreset, clip_rewards
        self.num_envs = num_envs
        if settings.image:
            side = settings.image_size
            leaf = Leaf("observation", (side, side), "uint8", "image", "hw", stack=frame_stack)
        else:
            leaf = Leaf("observation", (4,), "float32", "vector", stack=frame_stack)
        self.spec = EnvSpec(
            env_id,
            (leaf,),
            DiscreteAction(settings.num_actions, has_mask=settings.with_mask),
            max_episode_steps=settings.max_length,
        )
        self._observation: Observation = {"observation": np.zeros((num_envs, *leaf.shape), leaf.dtype)}
        if settings.with_mask:
            self._observation["action_mask"] = np.ones((num_envs, settings.num_actions), bool)
        self._numbers = np.zeros((num_envs, 4), np.int64)
        self._stream, self._episode, self._step, self._last_action = self._numbers.T  # views
        self._length = np.zeros(num_envs, np.int64)
        self._ends_truncated = np.zeros(num_envs, bool)
        self._over = np.zeros(num_envs, bool)
        self._started = False
        self._vector_step = 0
        self._faults = {getattr(settings, f"{fault}_at_step"): fault for fault in FAULTS}  # step -> fault
        self.raw_reward = np.zeros(num_envs, np.float32)
        self._reward = np.zeros(num_envs, np.float32) if clip_rewards else self.raw_reward
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)

    def reset(self, seed: int | None = None) -> Observation:
        """Start stream `seed + i` in sub-environment i with episode 0; with None start each stream's next episode.

        Raises:
            EnvError: float32 does not hold the number of a stream.
        """
        if seed is None and self._started:
            return self.reset_where(np.ones(self.num_envs, bool))
        first = 0 if seed is None else seed
        if not 0 <= first <= LIMIT - self.num_envs:
            last = LIMIT - self.num_envs
            raise EnvError(f"{self.spec.id}: counting is exact for seeds from 0 to {last}, not {seed}.")
        self._stream[:] = first + np.arange(self.num_envs)
        self._episode[:] = -1
        self._started = True
        return self.reset_where(np.ones(self.num_envs, bool))

    def reset_where(self, mask: NDArray[np.bool_]) -> Observation:
        """Begin the next episode of the streams of a bool mask [N]."""
        self._start(mask)
        self._show()
        return self._observation

    def step(self, action: NDArray[np.int64]) -> Step:
        """As `trainer.envs.vector.SyncVector.step`.

        Raises:
            EnvError: an action does not exist or is not legal, an episode was stepped past its end with
                `autoreset=False`, or a fault of `env.kwargs` is due.
        """
        self._vector_step += 1
        if self._settings.step_seconds:
            time.sleep(self._settings.step_seconds)
        self._refuse(action)
        resets = self._over.copy()
        self._step += 1
        self._last_action[:] = action
        if resets.any():
            self._start(resets)
        self.raw_reward[:] = expected_reward(self._stream, self._episode, self._step)
        self.raw_reward[resets] = 0.0
        np.equal(self._step, self._length, out=self._over)
        np.logical_and(self._over, self._ends_truncated, out=self._truncated)
        np.greater(self._over, self._truncated, out=self._terminated)
        self._show()
        if self._vector_step in self._faults:
            self._fail(self._faults[self._vector_step])
        if self._clip:
            np.sign(self.raw_reward, out=self._reward)
        return self._observation, self._reward, self._terminated, self._truncated

    def state(self) -> dict[str, Any]:
        """The state of all streams, as tensors and plain values."""
        return state_of(self)

    def set_state(self, state: dict[str, Any], actions: Any) -> Observation:
        """Restore the `state` of another one, and return the observation there."""
        set_state(self, state)
        return self._observation

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _start(self, mask: NDArray[np.bool_]) -> None:
        settings = self._settings
        self._episode[mask] += 1
        self._step[mask] = 0
        self._last_action[mask] = -1
        stream, episode = self._stream[mask], self._episode[mask]
        self._length[mask] = episode_length(stream, episode, settings.min_length, settings.max_length)
        self._ends_truncated[mask] = is_truncation(stream, episode, settings.truncated_share)
        self._over[mask] = False

    def _show(self) -> None:
        if self._settings.image:
            self._observation["observation"][:] = encode_image(self._numbers, self._settings.image_size)
        else:
            self._observation["observation"][:] = self._numbers
        if self._settings.with_mask:
            self._observation["action_mask"][:] = legal_actions(
                self._stream, self._episode, self._step, self._settings.num_actions
            )

    def _refuse(self, action: NDArray[np.int64]) -> None:
        if not self._started:
            raise EnvError(f"{self.spec.id}: reset comes before the first step.")
        if not self._autoreset and self._over.any():
            raise EnvError(f"{self.spec.id}: an episode is over and reset_where was not called.")
        wrong = (action < 0) | (action >= self._settings.num_actions)
        if self._settings.with_mask and not wrong.any():
            wrong = ~self._observation["action_mask"][np.arange(self.num_envs), action] & ~self._over
        if wrong.any():
            index = int(np.flatnonzero(wrong)[0])
            raise EnvError(
                f"{self.spec.id}: sub-environment {index} (seed {self._stream[index]}) was given the illegal action "
                f"{action[index]} after step {self._step[index]} of episode {self._episode[index]}."
            )

    def _fail(self, fault: str) -> None:
        settings = self._settings
        if settings.fault_stream is not None and settings.fault_stream not in self._stream:
            return
        if settings.fault_once is not None:
            if Path(settings.fault_once).exists():
                return
            Path(settings.fault_once).touch()
        where = f"{self.spec.id}: sub-environment 0 (seed {self._stream[0]}) failed in step {self._vector_step} of all"
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while fault == "hang":
            time.sleep(1)
        if fault == "nan_observation":
            self._observation["observation"][0] = np.nan
        if fault == "nan":
            self.raw_reward[0] = np.nan
            raise EnvError(f"{where}: its reward is nan, which is no finite number")
        if fault == "raise":
            raise EnvError(f"{where}: RuntimeError: asked for by raise_at_step") from RuntimeError("raise_at_step")


def _mixed(stream: ArrayLike, episode: ArrayLike, salt: ArrayLike) -> NDArray[np.int64]:
    """Numbers 0 .. PRIME - 1 that look random: squares of a linear combination, modulo a prime."""
    stream, episode, salt = (np.asarray(x, np.int64) for x in (stream, episode, salt))
    mixed = (7_919 * stream + 104_729 * episode + 350_377 * salt + 12_345) % PRIME
    return mixed * mixed % PRIME
