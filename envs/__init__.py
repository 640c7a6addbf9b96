"""Environments for the trainer: `make` gives a vector, `describe` says what it shows, `ENVS` lists the backends.

`env` is anything with the attributes of `trainer.config.sections.EnvConfig`; nothing else of the trainer is imported.

A vector has `spec`, `num_envs`, `reset(seed) -> observation`, `step(action) -> (observation, reward, terminated,
truncated)`, `raw_reward` and `close()`. Its observation is a dict: leaf name -> [num_envs, *leaf.shape], one frame
each, and `action_mask` bool [num_envs, num_actions] where
`spec.action.has_mask`. It hands out the same dict and arrays in
every call and overwrites them in the next one. `trainer.envs.vector` says how episodes end.

A new backend is one file with a `make` as below and one line in `ENVS`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from trainer.envs import counting, envpool, grids, gymnasium, pettingzoo, selfplay
from trainer.envs.actions import Action, BoxAction, DiscreteAction
from trainer.envs.faults import is_its_own, words_of
from trainer.envs.gymnasium import make_single
from trainer.envs.modules import import_modules
from trainer.envs.selfplay import against_opponents
from trainer.envs.spec import EnvError, EnvSpec, Leaf
from trainer.envs.world import Solo

__all__ = [
    "ENVS",
    "WORLDS",
    "Action",
    "BoxAction",
    "DiscreteAction",
    "EnvError",
    "EnvSpec",
    "Leaf",
    "against_opponents",
    "describe",
    "describe_world",
    "make",
    "make_single",
    "make_world",
]

ENVS: dict[str, Callable[..., Any]] = {
    "gymnasium": gymnasium.make,
    "envpool": envpool.make,
    "counting": counting.make,
}

# Backends whose environments have several agents: `make(env, num_envs, render_mode) -> world`.
WORLDS: dict[str, Callable[..., Any]] = {
    "counting_agents": counting.make_world,
    "grid": grids.make,
    "pettingzoo": pettingzoo.make,
    "game": selfplay.make,
    "openspiel": selfplay.make,
}

_CHOICES = {
    "backend": (*ENVS, *WORLDS),
    "preprocessing": ("none", "atari"),
    "vectorization": ("auto", "sync", "native"),
}

_SCREEN_SIZE = 84  # pixels square, of Atari's frames where nothing else is asked for

# What only some backends heed, its plain value and theirs: a key that does nothing misleads whoever set it.
_HEEDED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "preprocessing": ("none", ("gymnasium", "envpool"), "leave it out"),
    "vectorization": ("auto", ("gymnasium",), "leave it out"),
    "max_episode_steps": (
        None, ("gymnasium", "envpool"),
        "leave it out: grid has env.kwargs.max_turns, counting max_length, PettingZoo's mostly max_cycles",
    ),
    "mask_key": ("action_mask", ("gymnasium", "envpool", "pettingzoo"), "leave it out"),
    "clip_rewards": (False, tuple(backend for backend in (*ENVS, *WORLDS) if backend != "grid"), "leave it out"),
}  # fmt: skip


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> Any:
    """A vector of `num_envs` sub-environments.

    Args:
        env: anything with the attributes of EnvConfig.
        num_envs: at least 1.
        autoreset: False leaves ended sub-environments to the caller, who calls `vector.reset_where(mask)`.
        render_mode: Gymnasium's; with it, `vector.render()` gives sub-environment 0's picture.

    Raises:
        EnvError: in one sentence, why the environment cannot be made or trained on, and what to do.
    """
    _check(env, num_envs)
    import_modules(env)  # of every backend: a module may put a world or a game of its own beside ours
    if env.backend in WORLDS:
        raise EnvError(f"{env.id}: env.backend={env.backend} has several agents; it is made by make_world.")
    return _made(env, partial(ENVS[env.backend], env, num_envs, autoreset=autoreset, render_mode=render_mode))


def make_world(env: Any, num_envs: int, render_mode: str | None = None) -> Any:
    """Any environment as a world (see `trainer.envs.world`): of the agents that it has, or of one.

    Raises:
        EnvError: as `make`.
    """
    _check(env, num_envs)
    import_modules(env)
    if against_opponents(env):
        return _made(env, partial(selfplay.make, env, num_envs, render_mode=render_mode))
    if env.backend in WORLDS:
        return _made(env, partial(WORLDS[env.backend], env, num_envs, render_mode=render_mode))
    return Solo(make(env, num_envs, render_mode=render_mode))


def _made(env: Any, maker: Callable[[], Any]) -> Any:
    """What a backend makes; whatever it raises of values that it did not think of is a sentence."""
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
    for key, (plain, backends, advice) in _HEEDED.items():
        value = getattr(env, key)
        if value != plain and env.backend not in backends:
            raise EnvError(f"{env.id}: env.backend={env.backend} does not heed env.{key}={value}; {advice}.")
    if env.screen_size != _SCREEN_SIZE and env.preprocessing != "atari":
        raise EnvError(
            f"{env.id}: env.screen_size={env.screen_size} is heeded by env.preprocessing=atari alone; leave it out."
        )
    if env.frame_stack < 1 or num_envs < 1:
        raise EnvError(f"{env.id}: env.frame_stack={env.frame_stack} and num_envs={num_envs} must be at least 1.")


def describe(env: Any) -> EnvSpec:
    """What an environment of one agent shows, found by making one and closing it again.

    Raises:
        EnvError: as `make`.
    """
    return describe_world(env)[0][1]


def describe_world(env: Any) -> list[tuple[str, EnvSpec]]:
    """Agents, and what each of them sees and does, found by making one world and closing it again.

    Raises:
        EnvError: as `make`.
    """
    world = make_world(env, 1)
    found = list(zip(world.agents, world.specs, strict=True))
    world.close()
    return found
