"""Gymnasium spaces as leaves: which arrays an observation consists of, and how they get into preallocated memory.

=================  =========  ==============================================================================
space              dtype      leaf
=================  =========  ==============================================================================
Box, float         float32    ``image`` (see `_image_axes`) or ``vector``
Box, uint8, bool   unchanged  the same; uint8 bounded by 0 and 1 is kept as bool, which has the same size and
                              needs no division by 255
Box, other ints    float32    the same
Discrete           int64      ``discrete``, shape (1,), counted from 0 (``start`` is subtracted)
MultiDiscrete      int64      ``discrete``, the space's shape, counted from 0
MultiBinary        bool       ``binary``
Dict, Tuple        -          their parts, nested to any depth, under ``observation.<key>.<index>``
=================  =========  ==============================================================================

A shape of () becomes (1,), so that every leaf has an axis of its own. Every name starts with ``observation``: keys
such as ``action``, ``reward`` or ``next`` meet nothing of the trainer's. In a key, characters other than A-Z a-z 0-9
_ . - become ``_``. The key ``action_mask`` at the top of a Dict is no leaf but says which actions are legal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.spec import EnvError, Leaf

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
UNBOUNDED = 1e6  # a bound beyond it says "any number" in a float type's words
MIN_FRAME_SIDE = 32  # a two-dimensional uint8 Box is taken for a grey frame from this side on, and for numbers below


@dataclass(frozen=True)
class Field:
    """A leaf and where it lies in the environment's own observation.

    Args:
        leaf: what is stored.
        path: keys and indices that lead to it.
        start: int64 array of the leaf's shape that is subtracted from a ``discrete`` leaf; None when it is 0.
        scalar: whether the environment's own value has no axis (Discrete, or a Box of shape ()).
    """

    leaf: Leaf
    path: tuple[str | int, ...]
    start: NDArray[np.int64] | None = None
    scalar: bool = False


def fields_of(space: spaces.Space[Any], frame_stack: int, env_id: str) -> tuple[Field, ...]:
    """The leaves of an observation space, in the space's own order, without ``action_mask``.

    Raises:
        EnvError: a part is of no supported kind, two names collide, or nothing is left.
    """
    found: list[Field] = []
    for path, part in _parts(space, ()):
        if path != ("action_mask",):
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
        raise EnvError(f"{env_id}: its observation space {_short(space)} holds nothing to look at.")
    return tuple(found)


def mask_field(space: spaces.Space[Any], num_actions: int, env_id: str) -> Field | None:
    """The field of the observation's ``action_mask``, or None where the observation has none.

    Raises:
        EnvError: the mask's space is not one of 0 and 1 for each action.
    """
    if not isinstance(space, spaces.Dict) or "action_mask" not in space.spaces:
        return None
    part = space.spaces["action_mask"]
    flat = isinstance(part, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete)
    if not flat or part.shape != (num_actions,):
        raise EnvError(
            f"{env_id}: the observation's action_mask is {_short(part)}, but there are {num_actions} actions; "
            f"it must be MultiBinary({num_actions}) or a Box of that length."
        )
    return Field(Leaf("action_mask", (num_actions,), "bool", "binary"), ("action_mask",))


def action_count(space: spaces.Space[Any], env_id: str) -> tuple[int, int]:
    """``(num_actions, start)`` of a Discrete action space.

    Raises:
        EnvError: the space is not Discrete.
    """
    if not isinstance(space, spaces.Discrete):
        raise EnvError(f"{env_id}: its action space {_short(space)} is not supported; supported is Discrete.")
    return int(space.n), int(space.start)


def allocate(fields: Iterable[Field], num_envs: int) -> dict[str, NDArray[Any]]:
    """Zeroed arrays [num_envs, *leaf.shape] in leaf.dtype, by leaf name."""
    return {field.leaf.name: np.zeros((num_envs, *field.leaf.shape), field.leaf.dtype) for field in fields}


def row_writer(field: Field, out: NDArray[Any]) -> Callable[[Sequence[Any]], None]:
    """A function that writes one environment's observation after the other into ``out`` [N, *leaf.shape].

    Raises:
        ValueError, TypeError, KeyError, IndexError: (from the function) an observation does not have its space's shape
            or keys, or a discrete value lies outside its space; `fault_of` says which.
    """
    path, check = field.path, _range_check(field, out)
    # One concatenation into the merged first two axes is half the cost of N assignments, and refuses wrong shapes
    # where an assignment would broadcast them.
    merged = out[:, 0] if field.scalar else out.reshape(-1, *out.shape[2:])

    def write(observations: Sequence[Any]) -> None:
        for key in path:
            observations = [observation[key] for observation in observations]
        if field.scalar:
            merged[:] = observations
        else:
            np.concatenate(observations, out=merged, casting="unsafe")
        if check is not None:
            check()

    return write


def batch_writer(field: Field, out: NDArray[Any]) -> Callable[[Any], None]:
    """A function that writes a batched observation (a leaf's arrays are [N, ...] already) into ``out``.

    Raises:
        ValueError: (from the function) the batch has another shape, or a discrete value lies outside its space.
    """
    path, check = field.path, _range_check(field, out)

    def write(observation: Any) -> None:
        for key in path:
            observation = observation[key]
        array = np.asarray(observation)
        if array.size != out.size or array.shape[0] != out.shape[0]:
            raise ValueError(f"{field.leaf.name} has shape {array.shape} where {out.shape} was declared")
        np.copyto(out, array.reshape(out.shape), casting="unsafe")
        if check is not None:
            check()

    return write


def fault_of(fields: Iterable[Field], observation: Any) -> str | None:
    """What is wrong with one environment's observation, in words; None when it fits its space."""
    for field in fields:
        value = observation
        for key in field.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return f"{field.leaf.name} is missing in its observation"
        expected = () if field.scalar else field.leaf.shape
        if np.shape(value) != expected:
            return f"{field.leaf.name} has shape {np.shape(value)} where its space declares {expected}"
        if field.leaf.kind == "discrete":
            counted = np.ravel(np.asarray(value) - (0 if field.start is None else field.start.reshape(expected)))
            if (counted < 0).any() or (counted >= np.array(field.leaf.nvec)).any():
                return f"{field.leaf.name} is {value}, which lies outside its space"
    return None


def _range_check(field: Field, out: NDArray[Any]) -> Callable[[], None] | None:
    """Subtracts the start and refuses categories outside the space: a GPU would die of them without a word."""
    if field.leaf.kind != "discrete":
        return None
    nvec = np.array(field.leaf.nvec, np.uint64).reshape(field.leaf.shape)
    unsigned = out.view(np.uint64)  # negative values become huge ones: one comparison instead of two
    outside = np.zeros(out.shape, bool)

    def check() -> None:
        if field.start is not None:
            np.subtract(out, field.start, out=out)
        if np.greater_equal(unsigned, nvec, out=outside).any():
            raise ValueError(f"{field.leaf.name} lies outside its space")

    return check


def _parts(space: spaces.Space[Any], path: tuple[str | int, ...]) -> Iterable[tuple[tuple[str | int, ...], Any]]:
    """Pairs of path and space of everything that is neither Dict nor Tuple."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _parts(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _parts(part, (*path, index))
    else:
        yield path, space


def _field(path: tuple[str | int, ...], space: spaces.Space[Any], frame_stack: int, env_id: str) -> Field:
    name = ".".join(["observation", *(re.sub(r"[^A-Za-z0-9_.-]", "_", str(key)) for key in path)])
    if isinstance(space, spaces.Discrete):
        start = np.full((1,), space.start, np.int64) if space.start else None
        return Field(Leaf(name, (1,), "int64", "discrete", nvec=(int(space.n),)), path, start, scalar=True)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in space.nvec.ravel())
        start = np.asarray(space.start, np.int64) if np.any(space.start) else None
        return Field(Leaf(name, _sizes(space.nvec.shape), "int64", "discrete", nvec=nvec), path, start)
    if isinstance(space, spaces.MultiBinary):
        return Field(Leaf(name, _sizes(space.shape), "bool", "binary"), path)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub" and 0 not in space.shape:
        dtype = _box_dtype(space)
        shape = _sizes(space.shape) or (1,)
        axes = _image_axes(shape, dtype)
        low, high = _finite_bounds(space) if dtype == "float32" and not axes else ((), ())
        leaf = Leaf(name, shape, dtype, "image" if axes else "vector", axes, stack=frame_stack, low=low, high=high)
        return Field(leaf, path, scalar=not space.shape)
    raise EnvError(
        f"{env_id}: {name} has the space {_short(space)}, which is not supported (supported: {SUPPORTED}); drop or "
        "convert it with an observation wrapper, registered under an id of your own in a module that "
        "env.import_modules names (for MiniGrid, minigrid.wrappers.ImgObsWrapper)."
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
    """``hw``, ``hwc``, ``chw``, or empty where the array is no image.

    Three axes: two equal sides are height and width; otherwise the smaller one of the first and the last axis counts
        the
    channels, the last one when they are equal. Sides below 3 leave a convolution nothing to do: no image.
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


def _short(space: object) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
