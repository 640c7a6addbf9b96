"""Backend `gymnasium`: any registered Gymnasium 1.x environment with a Discrete action space.

Ids: `CartPole-v1`; `ALE/Pong-v5` (ale-py is imported automatically); `module:Some-v0` as in Gymnasium; ids that a
package of `import_modules` registers; ids of packages that declare Gymnasium's entry point for their namespace
(`MinAtar/Breakout-v1`); and `package.module:function`, a class or function that makes an environment.

`preprocessing="atari"` is the usual one: no frame skip in the emulator, 1 to 30 no-ops at reset, 4 frames in each step
with the maximum over the last two, grey, `screen_size` pixels square (84); episodes end with the game, not with a life.
`max_episode_steps` then counts steps of 4 frames. Sticky actions are as the id has them (0.25 for `ALE/...-v5`).

`vectorization`: `sync` is `trainer.envs.vector`. `native` is the environment's `vector_entry_point`; it must declare
next-step autoreset and have the same spaces as the single environment. It is seeded as a whole: sub-environments do
not have the seeds that they have in `sync`. `auto` is `native` for the ids in `NATIVE`, else `sync`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import itertools
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium as gym

from trainer.envs import life, masks
from trainer.envs.batched import BatchedVector
from trainer.envs.closing import close_all
from trainer.envs.faults import SHIMMY, is_its_own, one_line, pair_of, refuse, words_of
from trainer.envs.import_paths import is_path
from trainer.envs.modules import import_modules
from trainer.envs.spaces import Field, action_of, fields_of, mask_field, short
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.vector import SyncVector
from trainer.envs.wrapping import arguments, maker_of, wrapped
from trainer.envs.writing import fault_of

# tests/envs/test_native.py checks each of them: from given states its transitions equal the single environment's within
# float32, the final observation is returned, the time limit truncates, the next step resets, its state can be restored.
NATIVE = frozenset({"CartPole-v1"})

# Name of a missing package in messages of Python and Gymnasium -> extra of this project that installs it.
EXTRAS = {"box2d": "box2d", "ale_py": "atari", "ale-py": "atari", "cv2": "atari", "opencv": "atari", "mujoco": "mujoco"}


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> SyncVector | BatchedVector:
    """A vector of `num_envs` sub-environments; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: it could not be made, or training on it is not possible; the sentence says why and what to do.
    """
    alike = not env.wrappers and env.instance_key is None
    possible = autoreset and render_mode is None and env.preprocessing == "none" and alike
    if env.vectorization == "native" and not possible:
        raise EnvError(
            f"{env.id}: env.vectorization=native knows neither pictures, preprocessing, wrappers nor numbers of "
            "instances, nor resets by hand; use sync."
        )
    native = env.vectorization == "native" or (
        possible and env.vectorization == "auto" and env.id in NATIVE and not env.kwargs
    )
    first = [make_single(env, render_mode)]  # inspected, then used: some environments can exist only once
    numbers = itertools.count(1)  # of the others
    with ExitStack() as unused:
        unused.callback(close_all, first, env.id)
        spec, fields = _inspect(first[0], env)
        life.beat()
        if native:
            return _native(env, num_envs, spec, fields, first[0])

        def build() -> gym.Env[Any, Any]:
            return first.pop() if first else _build(env, next(numbers), render_mode)

        return SyncVector(spec, fields, build, num_envs, autoreset, env.clip_rewards, env.mask_key)


def make_single(env: Any, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One environment with the same wrappers as the vector's sub-environments, for videos and inspection.

    Args:
        env: anything with the attributes of EnvConfig.
        render_mode: of Gymnasium, as `rgb_array`; None for training.

    Raises:
        EnvError: the id is unknown, a package is missing, or the constructor fails.
    """
    prepare(env)
    try:
        return _build(env, 0, render_mode)
    except EnvError:
        raise
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise _unregistered(env.id) from error
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing(env.id, error) from error
    except BaseException as error:
        if not is_its_own(error):
            raise
        pictures = f" and render_mode={render_mode}" if render_mode else ""
        raise EnvError(
            f"{env.id}: its constructor failed, given env.kwargs={env.kwargs}{pictures}: {words_of(error)}"
        ) from error


def _unregistered(env_id: str) -> EnvError:
    old = sys.modules.get("gym")
    if old is not None and env_id in getattr(getattr(old, "envs", None), "registry", {}):
        return EnvError(f"{env_id}: it is registered with old gym, not with Gymnasium; {SHIMMY}.")
    name = env_id.partition(":")[2] or env_id
    near = difflib.get_close_matches(name, list(gym.registry), n=3, cutoff=0.5)
    nearest = f"the nearest are {', '.join(near)}" if near else "none is similar"
    return EnvError(
        f"{env_id}: no environment of that id is registered ({nearest}); if a package registers it, name that in "
        "env.import_modules."
    )


def prepare(env: Any) -> None:
    """Import the modules that register the id; a second call does nothing.

    Raises:
        EnvError: a module of `import_modules` could not be imported, or a package is missing.
    """
    import_modules(env)
    namespace, slash, _ = env.id.partition("/")
    if namespace == "ALE" or env.preprocessing == "atari":
        try:
            gym.register_envs(importlib.import_module("ale_py"))
            if env.preprocessing == "atari":
                importlib.import_module("cv2").setNumThreads(1)  # it ignores OMP_NUM_THREADS
        except ImportError as error:
            raise _missing(env.id, error) from error
    elif slash and ":" not in env.id and env.id not in gym.registry:
        for plugin in importlib.metadata.entry_points(group="gymnasium.envs", name=namespace):
            try:
                plugin.load()()
            except BaseException as error:
                if not is_its_own(error):
                    raise
                raise EnvError(
                    f"{env.id}: the package that registers it failed as it was imported: {words_of(error)}"
                ) from error


def _build(env: Any, number: int, render_mode: str | None) -> gym.Env[Any, Any]:
    return wrapped(_unwrapped(env, arguments(env, number, render_mode)), env)


def _unwrapped(env: Any, options: dict[str, Any]) -> gym.Env[Any, Any]:
    """An environment with its time limit and preprocessing, without the user's wrappers."""
    made_by = env.id
    if is_path(env.id) and env.id.partition(":")[2] not in gym.registry:  # as Gymnasium's module:id may be
        made_by = gym.envs.registration.EnvSpec(env.id, maker_of(env))
    if env.preprocessing == "none":
        return gym.make(made_by, max_episode_steps=env.max_episode_steps, disable_env_checker=True, **options)
    # The emulator itself returns grey frames: the preprocessing needs no others, and colours take 50 us a step.
    raw = gym.make(made_by, disable_env_checker=True, **{"frameskip": 1, "obs_type": "grayscale", **options})
    frames: gym.Env[Any, Any] = gym.wrappers.AtariPreprocessing(
        raw, noop_max=30, frame_skip=4, screen_size=env.screen_size, terminal_on_life_loss=False, grayscale_obs=True
    )
    # Outside the preprocessing, as the limit counts the agent's steps.
    return frames if env.max_episode_steps is None else gym.wrappers.TimeLimit(frames, env.max_episode_steps)


def _inspect(single: gym.Env[Any, Any], env: Any) -> tuple[EnvSpec, tuple[Field, ...]]:
    """Spec and fields of an environment. It is reset, as only then `info` shows whether it has an action mask."""
    declared = _spaces(single, env.id)
    action = action_of(declared[0], env.id)
    fields = fields_of(declared[1], env.frame_stack, env.id, env.mask_key)
    leaves = tuple(field.leaf for field in fields)
    mask = mask_field(declared[1], action, env.id, env.mask_key)
    try:
        observation, info = pair_of(single.reset(seed=0))
    except BaseException as error:
        if not is_its_own(error):
            raise
        raise refuse(env.id, "its reset", error) from error
    for name, before, now in zip(("action", "observation"), declared, _spaces(single, env.id), strict=True):
        if before != now:
            raise EnvError(
                f"{env.id}: its {name} space is {short(before)} before reset and {short(now)} after; declare in its "
                "constructor what holds for all episodes."
            )
    fields = fields if mask is None else (*fields, mask)
    if (fault := fault_of(fields, observation)) is not None:
        raise EnvError(f"{env.id}: after reset(seed=0) {fault}.")
    action, source, notes = masks.masked(action, mask is not None, info, declared[1], single, env.mask_key)
    limit = env.max_episode_steps
    if limit is None and single.spec is not None:
        limit = single.spec.max_episode_steps
    return EnvSpec(env.id, leaves, action, limit, source, notes), fields


def _spaces(single: gym.Env[Any, Any], env_id: str) -> tuple[Any, Any]:
    """Action and observation space.

    Raises:
        EnvError: one is missing.
    """
    found = []
    for name in ("action_space", "observation_space"):
        try:
            found.append(getattr(single, name))
        except BaseException as error:
            if not is_its_own(error):
                raise
            raise EnvError(
                f"{env_id}: it has no {name} ({words_of(error)}); set self.{name} in its constructor."
            ) from error
        if found[-1] is None:
            raise EnvError(f"{env_id}: its {name} is None; set self.{name} in its constructor.")
    return found[0], found[1]


def _native(
    env: Any, num_envs: int, spec: EnvSpec, fields: Sequence[Field], single: gym.Env[Any, Any]
) -> BatchedVector:
    limit = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    try:
        vector = gym.make_vec(env.id, num_envs, vectorization_mode="vector_entry_point", **env.kwargs, **limit)
    except BaseException as error:
        if not is_its_own(error):
            raise
        raise EnvError(f"{env.id}: env.vectorization=native failed ({words_of(error)}); use sync.") from error
    declared = vector.metadata.get("autoreset_mode")
    if declared != gym.vector.AutoresetMode.NEXT_STEP:
        raise EnvError(f"{env.id}: its vector_entry_point declares {declared}, not next-step autoreset; use sync.")
    observations_differ = vector.single_observation_space != single.observation_space
    if observations_differ or vector.single_action_space != single.action_space:
        raise EnvError(f"{env.id}: its vector_entry_point has other spaces than the environment itself; use sync.")
    if spec.mask_source in ("info", "method"):
        raise EnvError(f"{env.id}: env.vectorization=native reads action masks of observations alone; use sync.")

    def reset_env(vector: Any, seed: int | None) -> tuple[Any, Any, dict[str, Any]]:
        observation, info = vector.reset(seed=seed)
        return vector, observation, info

    return BatchedVector(spec, fields, reset_env, num_envs, env.clip_rewards, vector, plain=env.id in NATIVE)


def _missing(env_id: str, error: Exception) -> EnvError:
    text = one_line(error)
    module = re.search(r"No module named '(\w+)", text)
    remedy = f"pip install {module.group(1)}" if module else "pip install 'gymnasium[all]'"
    for name, extra in EXTRAS.items():
        if name in text.lower():
            remedy = f"pip install -e '.[{extra}]'"
    return EnvError(f"{env_id}: a package is missing ({text}); install it with `{remedy}`.")
