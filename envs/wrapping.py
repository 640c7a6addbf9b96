"""What users put into the environment by import path: its maker (`env.id`), wrappers, and the number of an instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.envs.faults import is_its_own, words_of
from trainer.envs.import_paths import NoPart, function_at, path_and_arguments
from trainer.envs.spec import EnvError


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


def wrapped(single: Any, env: Any) -> Any:
    """An environment within the wrappers of `env.wrappers`, the first one innermost.

    Raises:
        EnvError: a wrapper cannot be imported, or failed.
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
        if not hasattr(single, "step") or not hasattr(single, "reset"):
            raise EnvError(
                f"{env.id}: env.wrappers={path} gave {type(single).__name__}; a wrapper returns an environment."
            )
    return single
