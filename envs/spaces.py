"""Gymnasium spaces as leaves: the arrays of an observation, and where they lie in it.

=================  =========  ==============================================================================
space              dtype      leaf
=================  =========  ==============================================================================
Box, float         float32    `image` (see `_image_axes`) or `vector`
Box, uint8, bool   unchanged  the same; uint8 bounded by 0 and 1 is kept as bool, which has the same size and
                              needs no division by 255
Box, other ints    float32    the same
Discrete           int64      `discrete`, shape (1,), counted from 0 (`start` is subtracted)
MultiDiscrete      int64      `discrete`, the space's shape, counted from 0
MultiBinary        bool       `binary`
Dict, Tuple        -          their parts, nested to any depth, under `observation.<key>.<index>`
=================  =========  ==============================================================================

A shape of () becomes (1,), so that every leaf has an axis. Every name starts with `observation`, so that keys such as
`action`, `reward` or `next` do not collide with names of the trainer. In a key, characters other than A-Z a-z 0-9 _ . -
become `_`. The key `action_mask` at the top of a Dict is the action mask, and no leaf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from trainer.envs.actions import Action, BoxAction, BranchedAction, DiscreteAction
from trainer.envs.faults import SHIMMY
from trainer.envs.spec import EnvError, Leaf

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
MOST_CATEGORIES = 2**20  # a layer from so many inputs to 64 units has 256 MiB
OWN_ID = ", registered under an id of your own in a module that env.import_modules names"
UNBOUNDED = 1e6  # larger bounds mean "any number"
MIN_FRAME_SIDE = 32  # a two-dimensional uint8 Box with shorter sides is no grey frame


@dataclass(frozen=True)
class Field:
    """A leaf and its place in the environment's observation.

    Args:
        leaf: the array that is stored.
        path: keys and indices that lead to it.
        start: subtracted from a `discrete` leaf, int64 of the leaf's shape; None if it is 0.
        scalar: whether the environment's value has no axis (Discrete, or a Box of shape ()).
        space: of the environment's value.
    """

    leaf: Leaf
    path: tuple[str | int, ...]
    start: NDArray[np.int64] | None = None
    scalar: bool = False
    space: Any = None


def fields_of(
    space: spaces.Space[Any], frame_stack: int, env_id: str, mask_key: str = "action_mask"
) -> tuple[Field, ...]:
    """The leaves of an observation space in the space's order, without the mask.

    Raises:
        EnvError: a part is of no supported kind, two names collide, there is no leaf, or `frame_stack` has no Box to
            stack.
    """
    found: list[Field] = []
    for path, part in _parts(space, ()):
        if path != (mask_key,):
            found.append(_field(path, part, frame_stack, env_id))
    by_name: dict[str, Field] = {}
    for field in found:
        other = by_name.setdefault(field.leaf.name, field)
        if other is not field:
            raise EnvError(
                f"{env_id}: the observation's keys {other.path} and {field.path} would both be called "
                f"{field.leaf.name!r}; rename one of them with an observation wrapper."
            )
    if not found:
        raise EnvError(f"{env_id}: its observation space {short(space)} holds nothing to look at.")
    if frame_stack > 1 and all(field.leaf.stack == 1 for field in found):
        raise EnvError(f"{env_id}: env.frame_stack={frame_stack} stacks Boxes alone, and it shows none; leave it out.")
    return tuple(found)


def mask_field(space: spaces.Space[Any], action: Action, env_id: str, mask_key: str = "action_mask") -> Field | None:
    """The field of the observation's mask, with the name `action_mask`; None if the observation has none.

    Raises:
        EnvError: the mask's space has not one number for each action, or the actions are not numbered.
    """
    if not isinstance(space, spaces.Dict) or mask_key not in space.spaces:
        return None
    if not isinstance(action, DiscreteAction):
        raise EnvError(
            f"{env_id}: the observation's {mask_key} says which of numbered actions are legal, and its actions are "
            f"{'a Box' if isinstance(action, BoxAction) else 'several choices at once'}; leave it out, or give it "
            "another name."
        )
    part, num_actions = space.spaces[mask_key], action.n
    flat = isinstance(part, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete)
    if not flat or part.shape != (num_actions,):
        raise EnvError(
            f"{env_id}: the observation's {mask_key} is {short(part)}, but there are {num_actions} actions; "
            f"it must be MultiBinary({num_actions}) or a Box of that length."
        )
    return Field(Leaf("action_mask", (num_actions,), "bool", "binary"), (mask_key,), space=part)


def action_of(space: spaces.Space[Any], env_id: str, advice: str | None = None) -> Action:
    """The action of an action space: Discrete, MultiDiscrete, MultiBinary, or a Box of floats with finite bounds.

    Args:
        space: of any kind.
        env_id: for messages.
        advice: how to make another space Discrete; None: by Gymnasium's wrappers.

    Raises:
        EnvError: the space is of another kind, or has more than `MOST_CATEGORIES` actions.
    """
    if isinstance(space, spaces.Discrete):
        if space.n > MOST_CATEGORIES:
            raise EnvError(
                f"{env_id}: its action space has {space.n} actions, and a network one output for each, at most "
                f"{MOST_CATEGORIES}; group them in an action wrapper."
            )
        return DiscreteAction(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and 0 not in space.shape:
        return _branched(space, env_id, advice or _flattened(space))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and 0 not in space.shape:
        low, high = (tuple(bound.ravel().astype(float).tolist()) for bound in (space.low, space.high))
        if np.isfinite([low, high]).all():
            return BoxAction(_sizes(space.shape), low, high, advice or _flattened(space))
        if advice is None:
            raise EnvError(
                f"{env_id}: its action space {short(space)} is unbounded, and actions are scaled to the bounds; "
                f"gymnasium.wrappers.TransformAction(env, lambda a: a, gymnasium.spaces.Box(-1, 1, {space.shape})) "
                f"sets bounds{OWN_ID}."
            )
    raise EnvError(
        f"{env_id}: its action space {short(space)} is not supported; supported is Discrete"
        f"{', MultiDiscrete, MultiBinary, or a Box of floats' if advice is None else ''}{advice or _flattened(space)}."
    )


def _branched(space: spaces.MultiDiscrete | spaces.MultiBinary, env_id: str, advice: str) -> BranchedAction:
    nvec = _nvec(space)
    if len(nvec) * max(nvec) > MOST_CATEGORIES:
        raise EnvError(
            f"{env_id}: its action space has {len(nvec)} choices among up to {max(nvec)} numbers, and a network one "
            f"output for each, at most {MOST_CATEGORIES}; group them in an action wrapper."
        )
    start = tuple(int(n) for n in np.ravel(space.start)) if isinstance(space, spaces.MultiDiscrete) else ()
    return BranchedAction(_sizes(space.shape), nvec, start if any(start) else (), advice)


def _nvec(space: spaces.MultiDiscrete | spaces.MultiBinary) -> tuple[int, ...]:
    """Number of choices of each part of an action, in C order."""
    sizes = np.full(space.shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
    return tuple(int(n) for n in sizes.ravel())


def discrete_of(space: spaces.Space[Any], env_id: str, advice: str) -> DiscreteAction:
    """As `action_of`, where only a Discrete space is possible, as in a turn-based game.

    Raises:
        EnvError: it is another space.
    """
    action = action_of(space, env_id, advice)
    if not isinstance(action, DiscreteAction):
        raise EnvError(f"{env_id}: its action space {short(space)} is not supported; supported is Discrete{advice}.")
    return action


def _flattened(space: object) -> str:
    """How to make a Discrete space of another one, for a sentence."""
    if isinstance(space, spaces.Box):
        return "; gymnasium.wrappers.DiscretizeAction(env, bins) makes it so" + OWN_ID
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        nvec = _nvec(space)
        count = math.prod(nvec)
        if count > MOST_CATEGORIES:
            return "; write an action wrapper that numbers what can be done" + OWN_ID
        whole = f"{list(nvec)}"
        return (
            f"; gymnasium.wrappers.TransformAction(env, lambda a: numpy.array(numpy.unravel_index(a, {whole})), "
            f"gymnasium.spaces.Discrete({count})) makes one action of each combination" + OWN_ID
        )
    if type(space).__module__.startswith("gym."):
        return f"of Gymnasium; {SHIMMY}"
    return "; write an action wrapper that numbers what can be done" + OWN_ID


def _parts(space: spaces.Space[Any], path: tuple[str | int, ...]) -> Iterable[tuple[tuple[str | int, ...], Any]]:
    """Pairs of path and space, for every part that is neither a Dict nor a Tuple."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _parts(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _parts(part, (*path, index))
    else:
        yield path, space


def _field(path: tuple[str | int, ...], space: spaces.Space[Any], frame_stack: int, env_id: str) -> Field:
    """The field of a part; its leaf knows where it lies, so that a policy finds it without the space."""
    found = _plain_field(path, space, frame_stack, env_id)
    start = () if found.start is None else tuple(int(n) for n in found.start.ravel())
    return replace(found, leaf=replace(found.leaf, path=path, start=start, scalar=found.scalar))


def _plain_field(path: tuple[str | int, ...], space: spaces.Space[Any], frame_stack: int, env_id: str) -> Field:
    name = ".".join(["observation", *(re.sub(r"[^A-Za-z0-9_.-]", "_", str(key)) for key in path)])
    if isinstance(space, spaces.Discrete):
        start = np.full((1,), space.start, np.int64) if space.start else None
        if space.n > MOST_CATEGORIES:
            raise EnvError(
                f"{env_id}: {name} has {space.n} categories, and a network one input for each, at most "
                f"{MOST_CATEGORIES}; show it as numbers, by an observation wrapper{OWN_ID}."
            )
        return Field(Leaf(name, (1,), "int64", "discrete", nvec=(int(space.n),)), path, start, True, space)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in space.nvec.ravel())
        if sum(nvec) > MOST_CATEGORIES:
            raise EnvError(
                f"{env_id}: {name} has {sum(nvec)} categories, and a network one input for each, at most "
                f"{MOST_CATEGORIES}; show it as numbers, by an observation wrapper{OWN_ID}."
            )
        start = np.asarray(space.start, np.int64) if np.any(space.start) else None
        return Field(Leaf(name, _sizes(space.nvec.shape), "int64", "discrete", nvec=nvec), path, start, space=space)
    if isinstance(space, spaces.MultiBinary):
        return Field(Leaf(name, _sizes(space.shape), "bool", "binary"), path, space=space)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub" and 0 not in space.shape:
        dtype = _box_dtype(space)
        shape = _sizes(space.shape) or (1,)
        axes = _image_axes(shape, dtype)
        low, high = _finite_bounds(space) if dtype != "bool" else ((), ())
        if axes:  # one pair of bounds for all pixels, or none
            low, high = (bound[:1] if len(set(bound)) == 1 else () for bound in (low, high))
            low, high = (low, high) if low and high else ((), ())
        leaf = Leaf(name, shape, dtype, "image" if axes else "vector", axes, stack=frame_stack, low=low, high=high)
        return Field(leaf, path, scalar=not space.shape, space=space)
    remedy = f"drop or convert it with an observation wrapper{OWN_ID} (for MiniGrid, minigrid.wrappers.ImgObsWrapper)"
    if type(space).__module__.startswith("gym."):
        remedy = SHIMMY
    raise EnvError(
        f"{env_id}: {name} has the space {short(space)}, which is not supported (supported: {SUPPORTED}); {remedy}."
    )


def _box_dtype(space: spaces.Box) -> str:
    if space.dtype == np.bool_:
        return "bool"
    if space.dtype == np.uint8:
        return "bool" if space.high.max() <= 1 else "uint8"
    return "float32"


def _finite_bounds(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    low, high = space.low.ravel().astype(float), space.high.ravel().astype(float)
    with np.errstate(over="ignore"):
        bounded = np.isfinite(high - low).all() and (high > low).all() and (np.abs([low, high]) < UNBOUNDED).all()
    return (tuple(low.tolist()), tuple(high.tolist())) if bounded else ((), ())


def _image_axes(shape: tuple[int, ...], dtype: str) -> str:
    """`hw`, `hwc` or `chw`; "" for an array that is no image.

    Of three axes, two equal ones are height and width. Otherwise the shorter one of the first and the last axis has the
    channels, or the last one if both are equal. An array with sides below 3 is no image, as it is too small for a
    convolution.
    """
    if len(shape) == 2 and dtype == "uint8" and min(shape) >= MIN_FRAME_SIDE:
        return "hw"
    if len(shape) != 3:
        return ""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        axes = "hwc" if first == middle else "chw"
    else:
        axes = "hwc" if last <= first else "chw"
    sides = shape[:2] if axes == "hwc" else shape[1:]
    return axes if min(sides) >= 3 else ""


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)  # some environments declare NumPy integers


def short(space: object) -> str:
    """A space in at most 120 characters."""
    text = " ".join(str(space).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
