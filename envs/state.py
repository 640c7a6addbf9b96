"""Save and restore the state of an object with plain attributes, to go on in another process.

The state consists of arrays, numbers and random generators, also in lists and dicts. All other attributes (spaces,
settings, functions) are taken as constant. Only classes that are made like this use it; tests check each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

PLAIN = (bool, int, float, np.bool_, np.integer, np.floating)


def state_of(thing: Any, *parts: Any) -> dict[str, Any]:
    """The attributes of an object as tensors, numbers and states of generators, nested as they are.

    Args:
        thing: the object.
        parts: that have some of its state: their attributes are among its own, with an underscore before the name.
    """
    attributes = dict(vars(thing))
    for part in parts:
        attributes |= {f"_{name}": value for name, value in vars(part).items()}
    return {name: kept for name, value in attributes.items() if (kept := _kept(value)) is not None}


def set_state(thing: Any, state: dict[str, Any], *parts: Any) -> None:
    """Restore the `state_of` another object that was made alike. Arrays are written in place, as there are views."""
    owners = {f"_{name}": (part, name) for part in parts for name in vars(part)}
    for key, kept in state.items():
        owner, name = owners.get(key, (thing, key))
        setattr(owner, name, _put(getattr(owner, name, None), kept))


def generator_state(env: Any) -> Any:
    """The state of a Gymnasium environment's `np_random`; None if that is no NumPy Generator, as in old gym.

    With None an episode cannot be repeated, and a resumed run begins new ones.
    """
    generator = getattr(env, "np_random", None)
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


def _kept(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return torch.from_numpy(value.copy())
    if isinstance(value, PLAIN):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.random.Generator):
        return {"generator": value.bit_generator.state}
    if isinstance(value, list | tuple) and value:
        kept = [_kept(item) for item in value]
        return None if any(item is None for item in kept) else kept
    if isinstance(value, dict) and value:
        items = {name: _kept(item) for name, item in value.items()}
        return None if any(item is None for item in items.values()) else {"items": items}
    return None


def _put(mine: Any, kept: Any) -> Any:
    if isinstance(kept, torch.Tensor):
        array = kept.numpy()
        if isinstance(mine, np.ndarray) and mine.shape == array.shape and mine.flags.writeable:
            mine[...] = array
            return mine
        return array.copy()
    if isinstance(kept, dict) and "generator" in kept:
        mine.bit_generator.state = kept["generator"]
        return mine
    if isinstance(kept, dict):
        items = mine if isinstance(mine, dict) else {}
        for name, item in kept["items"].items():
            items[name] = _put(items.get(name), item)
        return items
    if isinstance(kept, list):
        present = mine if isinstance(mine, list | tuple) and len(mine) == len(kept) else [None] * len(kept)
        put = [_put(old, new) for old, new in zip(present, kept, strict=True)]
        return tuple(put) if isinstance(mine, tuple) else put
    return kept
