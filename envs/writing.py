"""Write observations into preallocated arrays, and refuse values that would change by it.

Every row is checked in every step. A number that is not finite, a category that does not exist, and a value that the
stored type would change (0.5 or 300 as uint8, 2 as bool, 2**24 + 1 as float32) raise `Unfit`. A value outside its
declared bounds is no error if it is stored unchanged; `outside` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.faults import Unfit
from trainer.envs.spaces import Field

EXACT = 2**24  # float32 holds every integer up to it
SLACK = 1e-5  # relative tolerance of bounds, for rounding


def allocate(fields: Iterable[Field], num_envs: int) -> dict[str, NDArray[Any]]:
    """Zeroed arrays [num_envs, *leaf.shape] in leaf.dtype, by leaf name."""
    return {field.leaf.name: np.zeros((num_envs, *field.leaf.shape), field.leaf.dtype) for field in fields}


def row_writer(field: Field, out: NDArray[Any]) -> Callable[[Sequence[Any]], None]:
    """A function that writes the observations of N environments into `out`, [N, *leaf.shape].

    Raises:
        Exception: (from the function) an observation has not the shape or keys of its space, or a value that the
            beginning of this file names; `fault_of` says which and why.
    """
    path, check, (target, casting) = field.path, _check(field, out), _target(field, out)
    # One concatenation into the merged first two axes costs half of N assignments, and raises for wrong shapes, which
    # an assignment would broadcast.
    merged = target[:, 0] if field.scalar else target.reshape(-1, *target.shape[2:])

    def write(observations: Sequence[Any]) -> None:
        for key in path:
            observations = [observation[key] for observation in observations]
        try:
            if field.scalar:
                np.copyto(merged, np.array(observations), casting=casting)
            else:
                np.concatenate(observations, out=merged, casting=casting)
        except TypeError:  # another type than its space declares, but the values may fit
            _copy_each(field, observations, target)
        if not check():
            _require_each(field, observations)

    return write


def batch_writer(field: Field, out: NDArray[Any]) -> Callable[[Any], None]:
    """A function that writes a batched observation (its arrays are [N, ...]) into `out`.

    Raises:
        Exception: (from the function) as in `row_writer`; `fault_of_batch` says which and why.
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
            _copy_each(field, array, target)
        if not check():
            _require_each(field, array)

    return write


def fault_of(fields: Iterable[Field], observation: Any) -> str | None:
    """What is wrong with the observation of one environment, in words; None if nothing is."""
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
    """As `fault_of`, for a batched observation: the first sub-environment at fault, and the words."""
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
    """The first of the stored rows, [N, *leaf.shape], outside the declared bounds, and the words; None if none is."""
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
    at = tuple(place) if field.space.shape else ()
    return index, (
        f"{_named(field, at)} is {array[index][tuple(place)]:g}, outside the {low[at]:g} to {high[at]:g} that its "
        "space declares; it is learned from as it is"
    )


def _can_leave(field: Field) -> bool:
    """Whether a stored value can lie outside the declared bounds of a Box."""
    low, high = field.space.low, field.space.high
    if field.leaf.dtype == "uint8":
        return bool(low.max() > 0 or high.min() < 255)
    return field.leaf.dtype == "float32" and bool(np.isfinite(low).any() or np.isfinite(high).any())


def _fault(field: Field, value: Any) -> str | None:
    """What is wrong with one environment's value of a leaf, in words; None if nothing is."""
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
            # Fractions may be rounded to float32, but integers must not: two cards or places could become the same.
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
    """A function that tells whether all values in `out` are valid; if False, each row must be checked.

    It also subtracts the start of a discrete leaf. It takes 0.5 us for 16 x 4 floats.

    Raises:
        Unfit: (from the function) a category lies outside its space; on a GPU it would end the process without a
            message.
    """
    leaf = field.leaf
    if leaf.kind == "discrete":
        return _range_check(field, out)
    if leaf.dtype == "float32":
        flat = out.reshape(-1)
        limit = float(EXACT) ** 2 if _is_whole(field) else np.inf
        # Infinite or NaN if one number is, or if the square of a large one is; then each row is checked.
        return lambda: flat.dot(flat) < limit
    if leaf.dtype == "bool" and not _is_mask(field) and field.space.dtype != np.bool_:
        raw = out.view(np.uint8)

        def zero_or_one() -> bool:
            if raw.max() <= 1:
                return True
            np.minimum(raw, 1, out=raw)  # NumPy's bools must be 0 or 1
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
    """The array to write into, and NumPy's casting rule, which refuses types whose values could change."""
    if _is_mask(field):
        return out, "unsafe"  # masks may have any type; `trainer.envs.masks` checks their values
    if field.leaf.dtype == "float32":
        return out, "same_kind"
    if field.leaf.dtype == "bool" and field.space.dtype != np.bool_:
        return out.view(field.space.dtype), "safe"  # uint8 or int8, of the same size
    return out, "safe"


def _copy_each(field: Field, values: Iterable[Any], out: NDArray[Any]) -> None:
    """Copy one value after another into the rows of `out`, whatever their types, if none is changed by it."""
    for row, value in zip(out, values, strict=True):
        _require_each(field, [value])
        np.copyto(row, np.reshape(np.asarray(value), row.shape), casting="unsafe")


def _require_each(field: Field, values: Iterable[Any]) -> None:
    for value in values:
        if (fault := _fault(field, value)) is not None:
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
