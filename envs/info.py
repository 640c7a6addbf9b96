"""The scalars in `info` at the end of an episode, as `is_success` of Gymnasium-Robotics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# What wrappers and emulators count, and no result of an episode.
LEFT_OUT = frozenset(
    {
        "TimeLimit.truncated",  # Gymnasium before 1.0
        "episode_frame_number", "frame_number", "elapsed_step", "env_id", "reward", "terminated",  # ALE, EnvPool
    }
)  # fmt: skip


def scalars_of(info: Mapping[Any, Any], wanted: Sequence[str] | None) -> dict[str, float]:
    """The finite scalars of an `info`: bools, integers, floats, and arrays or tensors without axes.

    Args:
        info: of one sub-environment.
        wanted: the keys to take; `a.b` is `info["a"]["b"]`. None: all of the first level but `LEFT_OUT`.

    Returns:
        By key, where every character that no metric's name may have is `_`.
    """
    if wanted is None:
        found = {str(key): value for key, value in info.items() if key not in LEFT_OUT}
    else:
        found = {key: _under(info, key) for key in wanted}
    scalars = {name_of(key): _scalar(value) for key, value in found.items()}
    return {name: value for name, value in scalars.items() if value is not None}


def name_of(key: str) -> str:
    """The part of a metric's name that stands for a key of `info`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", key)


def at(info: Mapping[str, Any], index: int, num_envs: int) -> dict[str, Any]:
    """The `info` of one sub-environment from that of a vector of Gymnasium or EnvPool.

    Under each key stands an array [num_envs], under `_key` the mask of the sub-environments that have it.
    """
    found: dict[str, Any] = {}
    for key, values in info.items():
        if isinstance(values, Mapping):
            found[key] = at(values, index, num_envs)
        elif not key.startswith("_") and len(np.shape(values)) and len(values) == num_envs:
            if info.get(f"_{key}") is None or info[f"_{key}"][index]:
                found[key] = values[index]
    return found


def _under(info: Any, key: str) -> Any:
    if isinstance(info, Mapping) and key in info:
        return info[key]
    first, dot, rest = key.partition(".")
    return _under(info[first], rest) if dot and isinstance(info, Mapping) and first in info else None


def _scalar(value: Any) -> float | None:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of 400 digits
        return None
