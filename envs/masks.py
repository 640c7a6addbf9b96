"""Which actions are legal: where an environment says so, and what holds where it does not.

Three conventions, the first that is found: the key `env.mask_key` (`action_mask`) of a Dict observation, the same
key of `info`, or a method `action_masks()` as sb3-contrib has it. What only looks like a mask is not used, and said
(`look_alikes`).

A row in which nothing is legal becomes all True while its episode goes on: a policy must choose something, and whatever
it is has no effect there. Where an episode was truncated its last observation is bootstrapped from: a missing mask, or
one that forbids everything, is then the one before it. After a termination no mask matters, and all are True.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.actions import Action, DiscreteAction
from trainer.envs.faults import Unfit

LIKE = re.compile(r"mask|valid|legal|avail|allow|possible|feasible|permit|admissible", re.IGNORECASE)
METHOD = "action_masks"
NOTHING_LEGAL = "its mask allows no action while its episode goes on, and so every action is taken for legal there"
LIKE_METHOD = re.compile(
    r"[a-z].*(action|valid|legal|avail).*mask.*|action_?mask|(valid|legal|avail).*mask", re.IGNORECASE
)


def masked(
    action: Action, observed: bool, info: Mapping[str, Any], space: Any, env: Any, key: str
) -> tuple[Action, str, tuple[str, ...]]:
    """The action of an environment that has just been reset, with its mask; where from; and what the user is told.

    Args:
        action: as its space declares it.
        observed: whether the observation carries a mask.
        info: of the reset.
        space: of the observation.
        env: may have a method that tells masks; None: it has none.
        key: what a mask is called.

    Returns:
        The action; the convention that the environment follows: `observation`, `info`, `method`, or empty; and
        where legal actions are read from, or what was not taken for a mask.
    """
    if not isinstance(action, DiscreteAction):
        return action, "", ()
    source = found(observed, info, env, key)
    return replace(action, has_mask=bool(source)), source, notes(source, info, space, env, action, key)


def found(observed: bool, info: Mapping[str, Any], env: Any, key: str) -> str:
    """The convention that an environment, just reset, follows: `observation`, `info`, `method`, or empty."""
    if observed:
        return "observation"
    if key in info:
        return "info"
    return "method" if method_of(env) is not None else ""


def notes(
    source: str, info: Mapping[str, Any], space: Any, env: Any, action: DiscreteAction, key: str
) -> tuple[str, ...]:
    """What the user is told: where legal actions are read from, or what was not taken for a mask."""
    if source:
        where = {"observation": f"the observation's {key}", "info": f"info[{key!r}]", "method": f"{METHOD}()"}[source]
        return (f"legal actions are read from {where}",)
    told = look_alikes(info, action) + _in_space(space, action.n)
    bare = getattr(env, "unwrapped", None)
    for name in dir(type(bare)):
        method = inspect.getattr_static(bare, name, None)
        if LIKE_METHOD.fullmatch(name) and inspect.isfunction(method):
            told.append(f"its method {name}() may tell legal actions and is not called: it must be called {METHOD}")
    return tuple(f"warning: {text}" for text in told)


def look_alikes(info: Mapping[str, Any], action: Action) -> list[str]:
    """What in `info` looks like a mask or a list of legal actions: a sentence of each."""
    if not isinstance(action, DiscreteAction):
        return []
    told, num_actions = [], action.n
    for name, value in info.items():
        named = isinstance(name, str) and LIKE.search(name) is not None
        try:
            array = np.asarray(value)
        except ValueError:
            continue
        numbers = array.dtype.kind in "biuf"
        if array.shape == (num_actions,) and numbers and (named or array.dtype.kind == "b") and _is_mask(array):
            told.append(_unused(f"info[{name!r}]", str(name)))
        elif named and re.search("action|move", name, re.IGNORECASE) and (array.ndim == 1 or _is_list(value)):
            told.append(
                f"info[{name!r}] may list legal actions and is not used: have info['action_mask'] hold a 0 or 1 for "
                f"each of the {num_actions} actions"
            )
    return told


def method_of(env: Any) -> Any:
    """The environment's `action_masks`, a wrapper's first; None where there is none."""
    try:
        method = env.get_wrapper_attr(METHOD)
    except AttributeError:
        return None
    return method if callable(method) else None


def take(mask: Any, out: NDArray[np.bool_], name: str, closely: bool = True) -> None:
    """Write a mask into its row, bool [num_actions].

    Args:
        mask: of anything that has a 0 or 1 for each action.
        out: the row.
        name: what the mask is called.
        closely: whether its values are looked at.

    Raises:
        Unfit: it is missing or something else.
    """
    if mask is None:
        raise Unfit(f"{name} is missing")
    if np.shape(mask) != out.shape:
        raise Unfit(f"{name} has shape {np.shape(mask)}, not {out.shape}: it must hold a 0 or 1 for each action")
    if closely and not _is_mask(np.asarray(mask)):
        raise Unfit(f"{name} is {list(mask)[:8]}, and must hold a 0 or 1 for each action")
    out[:] = mask


def complete(
    mask: NDArray[np.bool_], before: NDArray[np.bool_], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
) -> int | None:
    """Rows in which nothing is legal: the one before where the episode was truncated, else all True.

    Args:
        mask: bool [N, num_actions], changed in place.
        before: the same of the step before.
        terminated: bool [N].
        truncated: bool [N].

    Returns:
        the first row whose episode goes on although nothing is legal there, if there is one.
    """
    legal = mask.any(1)
    if legal.all():
        return None
    cut = truncated & ~legal
    mask[cut] = before[cut]
    mask[~legal & ~cut] = True
    running = np.flatnonzero(~legal & ~cut & ~terminated)
    return int(running[0]) if len(running) else None


def _in_space(space: Any, num_actions: int, above: tuple[str, ...] = ()) -> list[str]:
    """What in an observation space looks like a mask, parts of parts too: a sentence of each."""
    told = []
    parts = getattr(space, "spaces", None)
    for name, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts or ()):
        where = (*above, str(name))
        if LIKE.search(str(name)) and getattr(part, "shape", None) == (num_actions,):
            what = f"the observation's {'.'.join(where)}"
            moved = f"{what} looks like a mask of legal actions and is not used: have it at the top of the observation"
            told.append(moved if above else _unused(what, str(name)))
        told += _in_space(part, num_actions, where)
    return told


def _is_list(value: Any) -> bool:
    return np.iterable(value) and not isinstance(value, str | bytes)


def _is_mask(array: NDArray[Any]) -> bool:
    return bool(array.dtype.kind == "b" or ((array == 0) | (array == 1)).all())


def _unused(what: str, key: str) -> str:
    return (
        f"{what} looks like a mask of legal actions and is not used: set env.mask_key={key} to choose among legal "
        "actions alone"
    )
