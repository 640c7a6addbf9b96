"""Backend `envpool` (an optional extra): EnvPool's environments in C++, stepped by one thread of this process.

EnvPool resets itself on the next step, as Gymnasium's NEXT_STEP. Only its constructor takes a seed, so `reset(seed)`
makes a new pool, in which sub-environment i has `seed + i`. Ids are those of EnvPool (`Pong-v5`, not `ALE/Pong-v5`).

It differs from the `gymnasium` backend in two ways. Where an episode terminates in the step of its time limit, EnvPool
reports only a truncation. Its Atari games have no sticky actions unless
`env.kwargs={repeat_action_probability: 0.25}`, press FIRE at reset (`use_fire_reset`) and stop after 27,000 steps.
`preprocessing="atari"` sets the rest to the usual values and returns one grey frame of 84 x 84 in each step, as
`trainer.envs.gymnasium`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import numpy as np
from gymnasium import spaces

from trainer.envs import masks
from trainer.envs.batched import BatchedVector
from trainer.envs.faults import words_of
from trainer.envs.spaces import Field, action_of, fields_of, mask_field
from trainer.envs.spec import EnvError, EnvSpec

ATARI = {
    "stack_num": 1,  # frames are stacked by the caller
    "frame_skip": 4,
    "noop_max": 30,
    "gray_scale": True,
    "episodic_life": False,
    "reward_clip": False,
}


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> BatchedVector:
    """A vector of `num_envs` sub-environments; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: EnvPool is missing or has no such id, or training on the environment is not possible.
    """
    if not autoreset or render_mode is not None:
        raise EnvError(f"{env.id}: env.backend=envpool resets by itself and draws nothing; use env.backend=gymnasium.")
    pool = _pool(env, num_envs, 0)
    try:
        space = pool.observation_space
        if env.preprocessing == "atari" and space.shape[0] == 1:
            space = spaces.Box(0, 255, space.shape[1:], space.dtype.type)
        action = action_of(pool.action_space, env.id)
        fields: tuple[Field, ...] = fields_of(space, env.frame_stack, env.id, env.mask_key)
        leaves = tuple(field.leaf for field in fields)
        mask = mask_field(space, action, env.id, env.mask_key)
        info = pool.reset()[1]
        rows = {name: value[0] for name, value in info.items() if np.ndim(value) == 2 or name == env.mask_key}
        action, source, notes = masks.masked(action, mask is not None, rows, space, None, env.mask_key)
        limit = pool.config.get("max_episode_steps")
    finally:
        pool.close()
    spec = EnvSpec(env.id, leaves, action, limit, source, notes)

    def reset_env(pool: Any, seed: int | None) -> tuple[Any, Any, dict[str, Any]]:
        if pool is None or seed is not None:
            if pool is not None:
                pool.close()
            pool = _pool(env, num_envs, 0 if seed is None else seed)
        return pool, *pool.reset()

    fields = fields if mask is None else (*fields, mask)
    return BatchedVector(spec, fields, reset_env, num_envs, env.clip_rewards, mask_key=env.mask_key)


def _pool(env: Any, num_envs: int, seed: int) -> Any:
    try:
        envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise EnvError(
            f"{env.id}: env.backend=envpool needs the package envpool; install it with `pip install -e '.[envpool]'`."
        ) from error
    known = envpool.list_all_envs()
    if env.id not in known:
        near = difflib.get_close_matches(env.id.rpartition("/")[2], known, n=3, cutoff=0.5)
        nearest = f"the nearest are {', '.join(near)}" if near else "none is similar"
        raise EnvError(f"{env.id}: EnvPool knows no environment of that id ({nearest}).")
    atari = {**ATARI, "img_height": env.screen_size, "img_width": env.screen_size}
    options = {**(atari if env.preprocessing == "atari" else {}), **env.kwargs}
    if env.max_episode_steps is not None:
        options["max_episode_steps"] = env.max_episode_steps
    try:
        return envpool.make(env.id, env_type="gymnasium", num_envs=num_envs, seed=seed, num_threads=1, **options)
    except Exception as error:
        raise EnvError(f"{env.id}: EnvPool refused env.kwargs={env.kwargs}: {words_of(error)}") from error
