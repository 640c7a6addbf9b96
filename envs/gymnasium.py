"""Backend ``gymnasium``: any registered Gymnasium 1.x environment with a Discrete action space.

Ids: ``CartPole-v1``, ``ALE/Pong-v5`` (ale-py is imported by itself), ``module:Some-v0`` as Gymnasium has it, ids that a
package of ``import_modules`` registers, and ids of packages that declare Gymnasium's entry point for their namespace
(``MinAtar/Breakout-v1``).

``preprocessing="atari"`` is the usual one: no frame skip in the emulator, 1 to 30 no-ops at reset, 4 frames a step
with the maximum over the last two, grey, ``screen_size`` pixels square (84), episodes end with the game and not with a
life.
``max_episode_steps`` then counts steps of 4 frames. Sticky actions are the id's own (0.25 for ``ALE/...-v5``).

``vectorization``: ``sync`` is `envs.vector`. ``native`` is the environment's own ``vector_entry_point``; it must
declare next-step autoreset and the same spaces as the single environment, and is seeded as a whole: ``reset(seed)``
gives no sub-environment the seed that it has in ``sync``. ``auto`` takes it for the ids in `NATIVE` only.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from envs.batched import BatchedVector
from envs.spaces import Field, action_count, fields_of, mask_field
from envs.spec import EnvError, EnvSpec, import_modules
from envs.vector import SyncVector

# tests/envs/test_native.py shows for each of them: transitions from given states equal the single environment's within
# float32, the final observation is kept, the time limit truncates, the next step resets, its state can be kept.
NATIVE = frozenset({"CartPole-v1"})

# What a missing package is called in messages of Python and Gymnasium -> our extra that installs it.
EXTRAS = {"box2d": "box2d", "ale_py": "atari", "ale-py": "atari", "cv2": "atari", "opencv": "atari", "mujoco": "mujoco"}


def make(env: Any, num_envs: int, autoreset: bool = True, render_mode: str | None = None) -> SyncVector | BatchedVector:
    """A vector of ``num_envs`` sub-environments; ``env`` has the attributes of EnvConfig.

    Raises:
        EnvError: it cannot be made or not be trained on; one sentence says why and what to do.
    """
    possible = autoreset and render_mode is None and env.preprocessing == "none"
    if env.vectorization == "native" and not possible:
        raise EnvError(
            f"{env.id}: env.vectorization=native knows neither pictures nor preprocessing nor resets by hand; use sync."
        )
    listed = env.vectorization == "auto" and env.id in NATIVE and not env.kwargs
    single = make_single(env)
    try:
        spec, fields = _inspect(single, env)
        if env.vectorization == "native" or (listed and possible):
            return _native(env, num_envs, spec, fields, single)
    finally:
        single.close()
    return SyncVector(spec, fields, lambda: _build(env, render_mode), num_envs, autoreset, env.clip_rewards)


def make_single(env: Any, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One environment with the wrappers that the vector's sub-environments have, for videos and for looking at.

    Args:
        env: anything with the attributes of EnvConfig.
        render_mode: Gymnasium's, as ``rgb_array``; None for training.

    Raises:
        EnvError: the id is unknown, a package is missing, or the constructor fails.
    """
    prepare(env)
    try:
        return _build(env, render_mode)
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        name = env.id.partition(":")[2] or env.id
        near = difflib.get_close_matches(name, list(gym.registry), n=3, cutoff=0.5)
        nearest = f"the nearest are {', '.join(near)}" if near else "none is similar"
        raise EnvError(
            f"{env.id}: no environment of that id is registered ({nearest}); if a package registers it, name that in "
            "env.import_modules."
        ) from error
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing(env.id, error) from error
    except Exception as error:
        raise EnvError(
            f"{env.id}: its constructor failed, given env.kwargs={env.kwargs}: {type(error).__name__}: "
            f"{_one_line(error)}"
        ) from error


def prepare(env: Any) -> None:
    """Imports what registers the id. Doing it again costs nothing.

    Raises:
        EnvError: a module of ``import_modules`` cannot be imported.
    """
    import_modules(env)
    namespace, slash, _ = env.id.partition("/")
    if namespace == "ALE" or env.preprocessing == "atari":
        try:
            gym.register_envs(importlib.import_module("ale_py"))
            if env.preprocessing == "atari":
                importlib.import_module("cv2").setNumThreads(1)  # it ignores OMP_NUM_THREADS: cores are the workers'
        except ImportError as error:
            raise _missing(env.id, error) from error
    elif slash and ":" not in env.id and env.id not in gym.registry:
        for plugin in importlib.metadata.entry_points(group="gymnasium.envs", name=namespace):
            plugin.load()()


def _build(env: Any, render_mode: str | None) -> gym.Env[Any, Any]:
    # Only when asked for: some packages' constructors know no render_mode.
    options = {**env.kwargs} if render_mode is None else {**env.kwargs, "render_mode": render_mode}
    if env.preprocessing == "none":
        return gym.make(env.id, max_episode_steps=env.max_episode_steps, disable_env_checker=True, **options)
    # Grey frames from the emulator itself: the preprocessing asks for them anyway, and colours cost 50 us a step.
    raw = gym.make(env.id, disable_env_checker=True, **{"frameskip": 1, "obs_type": "grayscale", **options})
    frames: gym.Env[Any, Any] = gym.wrappers.AtariPreprocessing(
        raw, noop_max=30, frame_skip=4, screen_size=env.screen_size, terminal_on_life_loss=False, grayscale_obs=True
    )
    # Outside of the preprocessing, for the limit counts the agent's steps.
    return frames if env.max_episode_steps is None else gym.wrappers.TimeLimit(frames, env.max_episode_steps)


def _inspect(single: gym.Env[Any, Any], env: Any) -> tuple[EnvSpec, tuple[Field, ...]]:
    """Spec and fields of an environment; only a reset tells whether ``info`` carries an action mask."""
    num_actions, start = action_count(single.action_space, env.id)
    fields = fields_of(single.observation_space, env.frame_stack, env.id)
    leaves = tuple(field.leaf for field in fields)
    mask = mask_field(single.observation_space, num_actions, env.id)
    has_mask = mask is not None
    if mask is not None:
        fields = (*fields, mask)
    else:
        try:
            _, info = single.reset()
        except Exception as error:
            raise EnvError(f"{env.id}: its reset failed: {type(error).__name__}: {_one_line(error)}") from error
        has_mask = "action_mask" in info
    limit = env.max_episode_steps
    if limit is None and single.spec is not None:
        limit = single.spec.max_episode_steps
    return EnvSpec(env.id, leaves, num_actions, start, has_mask, limit), fields


def _native(
    env: Any, num_envs: int, spec: EnvSpec, fields: Sequence[Field], single: gym.Env[Any, Any]
) -> BatchedVector:
    limit = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    try:
        vector = gym.make_vec(env.id, num_envs, vectorization_mode="vector_entry_point", **env.kwargs, **limit)
    except Exception as error:
        raise EnvError(
            f"{env.id}: env.vectorization=native failed ({type(error).__name__}: {_one_line(error)}); use sync."
        ) from error
    declared = vector.metadata.get("autoreset_mode")
    if declared != gym.vector.AutoresetMode.NEXT_STEP:
        raise EnvError(f"{env.id}: its vector_entry_point declares {declared}, not next-step autoreset; use sync.")
    observations_differ = vector.single_observation_space != single.observation_space
    if observations_differ or vector.single_action_space != single.action_space:
        raise EnvError(f"{env.id}: its vector_entry_point has other spaces than the environment itself; use sync.")
    if spec.has_mask and all(field.leaf.name != "action_mask" for field in fields):
        raise EnvError(f"{env.id}: env.vectorization=native cannot read the action mask of info; use sync.")

    def reset_env(vector: Any, seed: int | None) -> tuple[Any, Any, dict[str, Any]]:
        observation, info = vector.reset(seed=seed)
        return vector, observation, info

    return BatchedVector(spec, fields, reset_env, num_envs, env.clip_rewards, vector, plain=env.id in NATIVE)


def _missing(env_id: str, error: Exception) -> EnvError:
    text = _one_line(error)
    module = re.search(r"No module named '(\w+)", text)
    remedy = f"pip install {module.group(1)}" if module else "pip install 'gymnasium[all]'"
    for name, extra in EXTRAS.items():
        if name in text.lower():
            remedy = f"pip install -e '.[{extra}]'"
    return EnvError(f"{env_id}: a package is missing ({text}); install it with `{remedy}`.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
