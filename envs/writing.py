"""Observations into preallocated arrays, and the refusal of what these arrays would change.

Every row is looked at, in every step: a number that is not finite, a category that does not exist, and whatever the
leaf's stored type would alter (0.5 or 300 as uint8, 2 as bool, 2**24 + 1 as float32) raises `Unfit`. What lies
outside its declared bounds and is stored as it is, is no error; `outside` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.faults import Unfit
from trainer.envs.spaces import Field

EXACT = 2**24  # float32 holds every integer up to it
SLACK = 1e-5  # relative, of bounds, for rounding


def allocate(fields: Iterable[Field], num_envs: int) -> dict[str, NDArray[Any]]:
    """Zeroed arrays [num_envs, *leaf.shape] in leaf.dtype, by leaf name."""
    return {field.leaf.name: np.zeros((num_envs, *field.leaf.shape), field.leaf.dtype) for field in fields}


def row_writer(field: Field, out: NDArray[Any]) -> Callable[[Sequence[Any]], None]:
    """A function that writes one environment's observation after the other into `out` [N, *leaf.shape].

    Raises:
        Exception: (from the function) an observation does not have its space's shape or keys, or what the file's head
            says; `fault_of` says which and why.
    """
    path, check, (target, casting) = field.path, _check(field, out), _target(field, out)
    # One concatenation into the merged first two axes is half the cost of N assignments, and refuses wrong shapes
    # where an assignment would broadcast them.
    merged = target[:, 0] if field.scalar else target.reshape(-1, *target.shape[2:])

    def write(observations: Sequence[Any]) -> None:
        for key in path:
            observations = [observation[key] for observation in observations]
        try:
            if field.scalar:
                np.copyto(merged, np.array(observations), casting=casting)
            else:
                np.concatenate(observations, out=merged, casting=casting)
        except TypeError:  # of another type than its space declares, but its numbers may be the same
            for own, value in zip(target, observations, strict=True):
                _copy_exactly(field, value, own)
        if not check():
            for value in observations:
                _require(_fault(field, value))

    return write


def batch_writer(field: Field, out: NDArray[Any]) -> Callable[[Any], None]:
    """A function that writes a batched observation (a leaf's arrays are [N, ...] already) into `out`.

    Raises:
        Exception: (from the function) as of `row_writer`; `fault_of_batch` says which and why.
    """
    path, check, (target, casting) = field.path, _check(field, out), _target(field, out)

    def write(observation: Any) -> None:
        for key in path:
            observation = observation[key]
        array = np.asarray(observation)
        if array.size != out.size or array.shape[0] != out.shape[0]:
            raise Unfit(f"{field.leaf.name} has shape {array.shape} where {out.shape} was declared")
        try:
            np.copyto(target, array.reshape(out.shape), casting=casting)
        except TypeError:
            for own, value in zip(target, array, strict=True):
                _copy_exactly(field, value, own)
        if not check():
            for value in array:
                _require(_fault(field, value))

    return write


def fault_of(fields: Iterable[Field], observation: Any) -> str | None:
    """What is wrong with one environment's observation, in words; None where nothing is."""
    for field in fields:
        value = observation
        for key in field.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return f"{field.leaf.name} is missing in its observation"
        if (fault := _fault(field, value)) is not None:
            return fault
    return None


def fault_of_batch(fields: Iterable[Field], observation: Any, num_envs: int) -> tuple[int, str] | None:
    """As `fault_of`, of a batched observation: the first sub-environment at fault, and the words."""
    for index in range(num_envs):
        for field in fields:
            value = observation
            try:
                for key in field.path:
                    value = value[key]
                value = np.asarray(value)[index]
            except (KeyError, IndexError, TypeError):
                return index, f"{field.leaf.name} is missing in its observation"
            if (fault := _fault(field, value)) is not None:
                return index, fault
    return None


def outside(field: Field, array: NDArray[Any]) -> tuple[int, str] | None:
    """The first of the stored rows [N, *leaf.shape] outside the declared bounds, and the words; None if none is."""
    if not hasattr(field.space, "low") or not _can_leave(field):
        return None
    low, high = field.space.low, field.space.high
    slack = SLACK if array.dtype == np.float32 else 0
    least, most = (bound.reshape(field.leaf.shape).astype(float) for bound in (low, high))
    with np.errstate(invalid="ignore"):  # infinite bounds
        wrong = (array < least - slack * (1 + np.abs(least))) | (array > most + slack * (1 + np.abs(most)))
    if not wrong.any():
        return None
    index, *place = (int(i) for i in np.argwhere(wrong)[0])
    own = tuple(place) if field.space.shape else ()
    return index, (
        f"{_named(field, own)} is {array[index][tuple(place)]:g}, outside the {low[own]:g} to {high[own]:g} that its "
        "space declares; it is learned from as it is"
    )


def _can_leave(field: Field) -> bool:
    """Whether what is stored can lie outside the declared bounds of a Box."""
    low, high = field.space.low, field.space.high
    if field.leaf.dtype == "uint8":
        return bool(low.max() > 0 or high.min() < 255)
    return field.leaf.dtype == "float32" and bool(np.isfinite(low).any() or np.isfinite(high).any())


def _fault(field: Field, value: Any) -> str | None:
    """What is wrong with one environment's value of a leaf, in words."""
    leaf, expected = field.leaf, () if field.scalar else field.leaf.shape
    try:
        array = np.asarray(value)
    except ValueError:
        return f"{leaf.name} is a list of parts of different lengths where its space declares {expected}"
    if array.shape != expected:
        return f"{leaf.name} has shape {array.shape} where its space declares {expected}"
    if array.dtype.kind not in "biuf":
        return f"{leaf.name} is {_short(value)}, which is no number"
    if leaf.kind == "discrete":
        counted = array - (0 if field.start is None else field.start.reshape(expected))
        whole = array == np.floor(array)
        if not (whole & (counted >= 0) & (counted < np.array(leaf.nvec).reshape(expected))).all():
            return f"{leaf.name} is {_short(value)}, which lies outside its space"
        return None
    with np.errstate(all="ignore"):
        stored = array.astype(leaf.dtype)
        wrong = ~np.isfinite(array.astype(float)) | (array != stored)
        if leaf.dtype == "float32":
            # Rounding is what float32 does; whole numbers are names, of cards and places, and must stay apart.
            whole = _is_whole(field) & (array != stored.astype(np.longdouble))
            wrong = ~np.isfinite(stored) | whole
    if not wrong.any():
        return None
    place = [int(i) for i in np.argwhere(wrong)[0]]
    number = array[tuple(place)]
    return f"{_named(field, place)} is {number}, {_why(field, number)}"


def _why(field: Field, number: Any) -> str:
    if not np.isfinite(float(number)):
        return "which is no finite number"
    if field.leaf.dtype == "float32":
        return "which float32, as it is stored, cannot hold: scale it, or split it into several numbers"
    if field.leaf.dtype == "bool":
        return "where its space declares 0 to 1: correct the space, as to Box(0, 255, uint8), or what is shown"
    return "which uint8, as its space declares it, cannot hold: correct the space, as to float32, or what is shown"


def _check(field: Field, out: NDArray[Any]) -> Callable[[], Any]:
    """A function that says whether all that was written into `out` is sound; False: look at each row.

    It subtracts a discrete leaf's start. A pass over what was just written costs 0.5 us for 16 x 4 floats.

    Raises:
        Unfit: (from the function) a category lies outside its space: a GPU would die of it without a word.
    """
    leaf = field.leaf
    if leaf.kind == "discrete":
        return _range_check(field, out)
    if leaf.dtype == "float32":
        flat = out.reshape(-1)
        limit = float(EXACT) ** 2 if _is_whole(field) else np.inf
        # Infinite or NaN as soon as one number is; also where a large one's square is, and then each is looked at.
        return lambda: flat.dot(flat) < limit
    if leaf.dtype == "bool" and not _is_mask(field) and field.space.dtype != np.bool_:
        raw = out.view(np.uint8)

        def zero_or_one() -> bool:
            if raw.max() <= 1:
                return True
            np.minimum(raw, 1, out=raw)  # a bool of another value would be none
            return False

        return zero_or_one
    return lambda: True


def _range_check(field: Field, out: NDArray[Any]) -> Callable[[], bool]:
    nvec = np.array(field.leaf.nvec, np.uint64).reshape(field.leaf.shape)
    unsigned = out.view(np.uint64)  # negative values become huge ones: one comparison instead of two
    beyond = np.zeros(out.shape, bool)

    def check() -> bool:
        if field.start is not None:
            np.subtract(out, field.start, out=out)
        if np.greater_equal(unsigned, nvec, out=beyond).any():
            raise Unfit(f"{field.leaf.name} lies outside its space")
        return True

    return check


def _target(field: Field, out: NDArray[Any]) -> tuple[NDArray[Any], Any]:
    """What is written into, and by which of NumPy's rules: values that it would change are refused by their type."""
    if _is_mask(field):
        return out, "unsafe"  # of any type; `trainer.envs.masks` sees that it holds 0 and 1
    if field.leaf.dtype == "float32":
        return out, "same_kind"
    if field.leaf.dtype == "bool" and field.space.dtype != np.bool_:
        return out.view(field.space.dtype), "safe"  # uint8 or int8, of the same size
    return out, "safe"


def _copy_exactly(field: Field, value: Any, out: NDArray[Any]) -> None:
    _require(_fault(field, value))
    np.copyto(out, np.reshape(np.asarray(value), out.shape), casting="unsafe")


def _require(fault: str | None) -> None:
    if fault is not None:
        raise Unfit(fault)


def _is_mask(field: Field) -> bool:
    return field.leaf.name == "action_mask"


def _is_whole(field: Field) -> bool:
    return field.space.dtype.kind in "iu"


def _named(field: Field, place: Sequence[int]) -> str:
    return f"{field.leaf.name}[{', '.join(map(str, place))}]" if place else field.leaf.name


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
