"""What users put into the environment by import path: its maker (`env.id`), wrappers, and the number of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.envs.faults import is_its_own, words_of
from trainer.envs.import_paths import NoPart, function_at, path_and_arguments
from trainer.envs.spec import EnvError

# What the trainer uses of a batch of games, and of a batch of grid worlds.
OF_GAMES = (
    "num_games", "num_players", "spec", "to_move", "action_mask", "rewards", "over", "winner", "length", "reset",
    "reset_where", "step", "observe",
)  # fmt: skip
OF_WORLDS = (
    "num_worlds", "agents", "num_actions", "observation_shape", "observation_dtype", "max_turns", "turn", "reset",
    "step", "observe",
)  # fmt: skip


def arguments(env: Any, number: int = 0, render_mode: str | None = None) -> dict[str, Any]:
    """The arguments of an environment's constructor.

    Args:
        env: anything with the attributes of EnvConfig.
        number: of the environment in its vector; it is instance number `env.first_instance + number` of the run.
        render_mode: only if set, as some constructors do not take one.
    """
    instance = {} if env.instance_key is None else {env.instance_key: env.first_instance + number}
    return {**env.kwargs, **instance, **({} if render_mode is None else {"render_mode": render_mode})}


def maker_of(env: Any, given: Sequence[str] = ()) -> Any:
    """What `env.id` leads to, if that is `package.module:function`.

    Args:
        env: anything with the attributes of EnvConfig.
        given: names of the arguments that it is given by position.

    Raises:
        EnvError: there is no such function, or it does not take the arguments.
    """
    try:
        return function_at(env.id, given, tuple(arguments(env)))
    except NoPart as error:
        raise EnvError(f"env.id={error}.") from error


def wrapped(single: Any, env: Any, needed: Sequence[str] = ("step", "reset"), what: str = "an environment") -> Any:
    """An environment within the wrappers of `env.wrappers`, the first one innermost.

    Args:
        single: the environment, or whatever else the backend makes at once.
        env: anything with the attributes of EnvConfig.
        needed: attributes that a wrapper must have.
        what: `single`, in words.

    Raises:
        EnvError: a wrapper cannot be imported, failed, or lacks an attribute.
    """
    for one in env.wrappers:
        path, kwargs = path_and_arguments(one, "wrapper")
        try:
            single = function_at(path, ("env",), tuple(kwargs))(single, **kwargs)
        except NoPart as error:
            raise EnvError(f"{env.id}: env.wrappers={error}.") from error
        except BaseException as error:
            if not is_its_own(error):
                raise
            given = f" with {kwargs}" if kwargs else ""
            raise EnvError(f"{env.id}: env.wrappers={path}{given} failed: {words_of(error)}") from error
        if missing := [name for name in needed if not hasattr(single, name)]:
            raise EnvError(
                f"{env.id}: env.wrappers={path} gave {type(single).__name__}, which has no {', '.join(missing)}; a "
                f"wrapper returns {what}."
            )
    return single


def wrapped_games(games: Any, env: Any) -> Any:
    """A batch of games within the wrappers of `env.wrappers`; a wrapper has all that `trainer.envs.games` describes.

    Raises:
        EnvError: as in `wrapped`.
    """
    return wrapped(games, env, OF_GAMES, "a batch of games, see trainer/envs/games/__init__.py")


def wrapped_worlds(worlds: Any, env: Any) -> Any:
    """A batch of grid worlds within the wrappers of `env.wrappers`; see `trainer.envs.worlds`.

    Raises:
        EnvError: as in `wrapped`.
    """
    return wrapped(worlds, env, OF_WORLDS, "a batch of grid worlds, see trainer/envs/worlds/__init__.py")
