"""Environments that do what Gymnasium does not foresee, of the kinds that use has found; each changes one thing."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from hurting import Plain


class Masked(Plain):
    """Action 1 is never legal; a step pays -1, cut off after 5. With gamma 0.9 the value of the one state is -10.

    `convention` says where the mask stands, `last` what it is when the episode is cut off: whole, zero or none.
    """

    def __init__(self, convention: str = "info", last: str = "whole") -> None:
        self.convention, self.last = convention, last
        if convention == "observation":
            parts = {"seen": gym.spaces.Box(-1, 1, (2,)), "action_mask": gym.spaces.MultiBinary(2)}
            self.observation_space = gym.spaces.Dict(parts)
        if convention == "method":
            self.action_masks = self.mask

    def mask(self) -> Any:
        over = self.t >= self.length
        return None if over and self.last == "none" else np.array([not (over and self.last == "zero"), 0], np.int8)

    def observe(self) -> Any:
        seen = np.zeros(2, np.float32)
        return {"seen": seen, "action_mask": self.mask()} if self.convention == "observation" else seen

    def info(self) -> dict[str, Any]:
        name = {"info": "action_mask"}.get(self.convention, self.convention)
        mask = self.mask()
        return {} if mask is None or self.convention in ("method", "observation") else {name: mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, self.info()

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert action == 0 or self.convention in ("valid_mask", "legal_actions"), "illegal action"
        self.t += 1
        return self.observe(), -1.0, False, self.t >= self.length, self.info()


class Shows(Plain):
    """Shows `values[k]` of `space` in its k-th step, the first one before and after; a step pays 1."""

    def __init__(self, space: Any = None, values: Any = None, length: int = 5) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (8,), np.uint8) if space is None else space
        self.values = [np.full(8, 50, np.uint8)] if values is None else values
        self.length = length

    def observe(self) -> Any:
        return self.values[self.t if self.t < len(self.values) else 0]


class Huge(Plain):
    """One observation in 90 is 1e39, which float32 makes infinite."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    shown = 0

    def observe(self) -> Any:
        self.shown += 1
        return np.array([1e39, 0.0]) if self.shown % 90 == 0 else np.zeros(2)


class OldGenerator(Plain):
    """`np_random` is one of Python's, of NumPy's old ones, or nothing, as in old gym."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.RandomState(seed % 2**32) if seed % 2 else random.Random(seed)
        self.t = 0
        return self.observe(), {}


class Exits(Plain):
    """The simulator ends the process in its third step."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.t == 2:
            sys.exit("the simulator lost its licence")
        return super().step(action)


class Gives(Plain):
    """One part of Gymnasium's interface, `what`, gives `value`, what it makes of the observation, or raises it."""

    def __init__(self, what: str, value: Any = None) -> None:
        self.what, self.value = what, value
        if what == "constructor":
            raise value
        if what in ("action_space", "observation_space"):
            setattr(self, what, value)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        if self.what == "spaces":
            self.observation_space = gym.spaces.Box(-1, 1, (3,))
        if self.what == "reset":
            return self.given(observation)
        return observation, info

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.what == "step":
            return self.given(observation)
        named = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
        if self.what in named:
            named[self.what] = self.given(observation)
        return observation, *named.values()

    def given(self, observation: Any) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value(observation) if callable(self.value) else self.value

    def close(self) -> None:
        if self.what == "close":
            self.given(None)


class Panic(BaseException):
    """What a library in Rust raises, which is no Exception."""


class OldSignature(Plain):
    """As in gym before 0.26: no seed and no options."""

    def reset(self) -> Any:  # type: ignore[override]
        self.t = 0
        return self.observe(), {}


class Single(Plain):
    """An emulator of which a process can hold one."""

    held = 0

    def __init__(self) -> None:
        if Single.held:
            raise RuntimeError("could not start")
        Single.held += 1

    def close(self) -> None:
        Single.held -= 1


class Seeded(Plain):
    """Cannot be reset without ever having been seeded."""

    random: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.random.integers(2)
        return super().reset(seed=seed)


class Picture(Plain):
    """What render gives, step by step: `pictures[t]`, or raises it."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, kind: str = "none") -> None:
        self.render_mode, self.kind = render_mode, kind

    def render(self) -> Any:
        grey = np.full((60, 80, 3), 0.5, np.float32)
        return {
            "none": lambda: None, "raise": lambda: 1 / 0, "exit": lambda: sys.exit("no display"), "float": lambda: grey,
            "lists": lambda: [[[0, 128, 255]] * 6] * 4, "frames": lambda: [np.zeros((8, 8, 3), np.uint8)] * 2,
            "growing": lambda: np.zeros((60 + 10 * self.t, 81, 3), np.uint8), "grey": lambda: np.eye(9, dtype=bool),
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "text": lambda: "a line\nanother", "alpha": lambda: np.full((6, 6, 4), 200, np.uint8),
            "object": lambda: object(), "nan": lambda: grey * np.nan, "empty": lambda: np.zeros((0, 5, 3), np.uint8),
        }[self.kind]()  # fmt: skip


for kind in (Masked, Shows, Huge, OldGenerator, Exits, Picture, Gives, OldSignature, Single, Seeded):
    gym.register(f"Hurting/{kind.__name__}-v0", kind)
