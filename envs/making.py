"""Make environments of any backend, and describe them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from trainer.envs import selfplay
from trainer.envs.backends import BACKENDS, PREPROCESSING, SCREEN_SIZE, VECTORIZATION, Backend, backend_of
from trainer.envs.faults import is_its_own, words_of
from trainer.envs.import_paths import NoPart, is_path, part_at
from trainer.envs.modules import import_modules
from trainer.envs.selfplay import against_opponents
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.world import Solo

_CHOICES = {"preprocessing": PREPROCESSING, "vectorization": VECTORIZATION}

# What vectors and worlds have, for messages about those of a user's backend.
OF_VECTOR = ("spec", "num_envs", "reset", "step", "raw_reward", "close")
OF_WORLD = ("agents", "specs", "num_envs", "reset", "step", "present", "raw_rewards", "close")

# Keys that only some backends use, with the default and the advice of the error where another one is set.
_HEEDED: dict[str, tuple[Any, str]] = {
    "preprocessing": ("none", "leave it out"),
    "vectorization": ("auto", "leave it out"),
    "max_episode_steps": (
        None, "leave it out: grid has env.kwargs.max_turns, counting max_length, PettingZoo's mostly max_cycles",
    ),
    "mask_key": ("action_mask", "leave it out"),
    "clip_rewards": (False, "leave it out"),
    "wrappers": ([], "leave it out"),
    "instance_key": (None, "leave it out"),
}  # fmt: skip


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> Any:
    """A vector of `num_envs` sub-environments.

    Args:
        env: anything with the attributes of EnvConfig.
        num_envs: at least 1.
        autoreset: whether ended sub-environments are reset; else the caller calls `vector.reset_where(mask)`.
        render_mode: as in Gymnasium; with it, `vector.render()` returns the picture of sub-environment 0.

    Raises:
        EnvError: the environment could not be made, or training on it is not possible; the sentence says why and what
            to do.
    """
    _check(env, num_envs)
    import_modules(env)  # for every backend, as a module may register a world or a game
    backend = _backend(env)
    if backend.is_world:
        raise EnvError(f"{env.id}: env.backend={env.backend} has several agents; it is made by make_world.")
    maker = part_at(backend.make)
    vector = _made(env, partial(maker, env, num_envs, autoreset=autoreset, render_mode=render_mode))
    return _complete(env, vector, OF_VECTOR)


def make_world(env: Any, num_envs: int, render_mode: str | None = None) -> Any:
    """A world, see `trainer.envs.world`, of any environment, with one agent or several.

    Raises:
        EnvError: as in `make`.
    """
    _check(env, num_envs)
    import_modules(env)
    if against_opponents(env):
        return _made(env, partial(selfplay.make, env, num_envs, render_mode=render_mode))
    backend = _backend(env)
    if backend.is_world:
        world = _made(env, partial(part_at(backend.make), env, num_envs, render_mode=render_mode))
        return _complete(env, world, OF_WORLD)
    return Solo(make(env, num_envs, render_mode=render_mode))


def _backend(env: Any) -> Backend:
    try:
        return backend_of(env.backend)
    except NoPart as error:
        raise EnvError(f"{env.id}: env.backend={error}.") from error


def _complete(env: Any, made: Any, parts: tuple[str, ...]) -> Any:
    """What a backend has made, if it has all that the trainer uses."""
    missing = [part for part in parts if not hasattr(made, part)]
    if missing:
        raise EnvError(
            f"{env.id}: env.backend={env.backend} made {type(made).__name__}, which has no {', '.join(missing)}; "
            "trainer/envs/__init__.py and trainer/envs/world.py say what it must have."
        )
    return made


def _made(env: Any, maker: Callable[[], Any]) -> Any:
    """Call a backend, and turn any error into an `EnvError` with one sentence."""
    try:
        return maker()
    except EnvError:
        raise
    except BaseException as error:
        if not is_its_own(error):
            raise
        raise EnvError(f"{env.id}: it could not be made with env.kwargs={env.kwargs}: {words_of(error)}") from error


def _check(env: Any, num_envs: int) -> None:
    for key, choices in _CHOICES.items():
        value = getattr(env, key)
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise EnvError(f"{env.id}: env.{key}={value} is none of {', '.join(choices)}{hint}")
    if not is_path(env.backend) and env.backend not in BACKENDS:
        near = difflib.get_close_matches(str(env.backend), BACKENDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise EnvError(f"{env.id}: env.backend={env.backend} is none of {', '.join(BACKENDS)}{hint}")
    backend = _backend(env)
    for key, (plain, advice) in _HEEDED.items():
        value = getattr(env, key)
        if value != plain and key not in backend.heeds:
            advice = backend.instead.get(key, advice)
            raise EnvError(f"{env.id}: env.backend={env.backend} does not heed env.{key}={value}; {advice}.")
    if env.screen_size != SCREEN_SIZE and env.preprocessing != "atari":
        raise EnvError(
            f"{env.id}: env.screen_size={env.screen_size} is heeded by env.preprocessing=atari alone; leave it out."
        )
    if env.frame_stack < 1 or num_envs < 1:
        raise EnvError(f"{env.id}: env.frame_stack={env.frame_stack} and num_envs={num_envs} must be at least 1.")


def describe(env: Any) -> EnvSpec:
    """The spec of an environment of one agent, found by making one and closing it.

    Raises:
        EnvError: as in `make`.
    """
    return describe_world(env)[0][1]


def describe_world(env: Any) -> list[tuple[str, EnvSpec]]:
    """Name and spec of each agent, found by making one world and closing it.

    Raises:
        EnvError: as in `make`.
    """
    world = make_world(env, 1)
    found = list(zip(world.agents, world.specs, strict=True))
    world.close()
    return found
