"""Action masks: where an environment gives them, and what holds where it does not.

There are three conventions, and the first that an environment follows is used: the key `env.mask_key` (`action_mask`)
of a Dict observation, the same key of `info`, or a method `action_masks()` as in sb3-contrib. What only looks like a
mask is not used, and the user is told (`look_alikes`).

A row without a legal action becomes all True while its episode goes on: a policy must choose something, and it has no
effect there. The last observation of a truncated episode is bootstrapped from: if its mask is missing or all False, the
mask before it is used. After a termination no mask matters, and all are True.
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
    """Find the convention of an environment that has just been reset.

    Args:
        action: as its space declares it.
        observed: whether the observation has a mask.
        info: of the reset.
        space: of the observation.
        env: that may have a method for masks; None: it has none.
        key: name of the mask.

    Returns:
        The action, with `has_mask` set; the convention: `observation`, `info`, `method`, or ""; and the sentences of
        `notes`.
    """
    if not isinstance(action, DiscreteAction):
        return action, "", ()
    source = found(observed, info, env, key)
    return replace(action, has_mask=bool(source)), source, notes(source, info, space, env, action, key)


def found(observed: bool, info: Mapping[str, Any], env: Any, key: str) -> str:
    """The convention of an environment that has just been reset: `observation`, `info`, `method`, or ""."""
    if observed:
        return "observation"
    if key in info:
        return "info"
    return "method" if method_of(env) is not None else ""


def notes(
    source: str, info: Mapping[str, Any], space: Any, env: Any, action: DiscreteAction, key: str
) -> tuple[str, ...]:
    """Sentences for the user: where legal actions are read from, or what looks like a mask and is not used."""
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
    """A sentence about each entry of `info` that looks like a mask or a list of legal actions."""
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
    """The method `action_masks` of the environment or of its outermost wrapper that has one; None if none has."""
    try:
        method = env.get_wrapper_attr(METHOD)
    except AttributeError:
        return None
    return method if callable(method) else None


def take(mask: Any, out: NDArray[np.bool_], name: str, closely: bool = True) -> None:
    """Write a mask into its row, bool [num_actions].

    Args:
        mask: anything with a 0 or 1 for each action.
        out: the row.
        name: of the mask, for the error.
        closely: whether the values are checked.

    Raises:
        Unfit: the mask is missing, or is no such thing.
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
    """Replace the rows without a legal action: by the row before if the episode was truncated, else by all True.

    Args:
        mask: bool [N, num_actions], changed in place.
        before: the mask of the step before.
        terminated: bool [N].
        truncated: bool [N].

    Returns:
        The first row without a legal action whose episode goes on; None if there is none.
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
    """A sentence about each part of an observation space, at any depth, that looks like a mask."""
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
