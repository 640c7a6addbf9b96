"""The actions of an agent as a value: its shape and dtype, and how actions are drawn and handed to the environment.

All kinds have `kind`, `shape` (of one action), `dtype` (NumPy's name of the stored type), `has_mask`, `explored_shape`
(of the parts of an action that exploration replaces one by one; () if it replaces the whole action), and the methods
below.
The actions of N sub-environments are an array [N, *shape].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class DiscreteAction:
    """One of the numbers 0 .. n - 1.

    Args:
        n: number of actions.
        start: what is added to an action before the environment sees it (`Discrete(n, start)`).
        has_mask: whether observations carry `action_mask`, a bool array [num_envs, n].
    """

    n: int
    start: int = 0
    has_mask: bool = False
    kind: ClassVar[str] = "numbered"
    shape: ClassVar[tuple[int, ...]] = ()
    explored_shape: ClassVar[tuple[int, ...]] = ()
    dtype: ClassVar[str] = "int64"

    def random(self, rng: np.random.Generator, count: int, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Draw legal actions uniformly, int64 [count]; the mask is bool [count, n], or None if all are legal.

        Raises:
            ValueError: the mask has another shape.
        """
        if mask is None:
            return rng.integers(0, self.n, count)
        return np.where(mask, rng.random((count, self.n)), -1.0).argmax(1)

    def for_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions as numbered by the environment."""
        return action + self.start if self.start else action

    def none(self, count: int) -> NDArray[Any]:
        """An array [count] without actions, see `given`."""
        return np.full(count, -1)

    def given(self, action: NDArray[Any]) -> NDArray[np.bool_]:
        """Which elements of an array from `none`, [N], have been set to an action, bool [N]."""
        return action >= 0


@dataclass(frozen=True)
class BoxAction:
    """A point in a box, both bounds included.

    Args:
        shape: of one action.
        low, high: finite bounds of each of its numbers, in C order.
        advice: how the user can make numbered actions of it, for the end of a sentence that says what else is possible.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    advice: str = field(default="", compare=False)
    kind: ClassVar[str] = "box"
    explored_shape: ClassVar[tuple[int, ...]] = ()
    dtype: ClassVar[str] = "float32"
    has_mask: ClassVar[bool] = False

    def random(self, rng: np.random.Generator, count: int, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Draw points uniformly, float32 [count, *shape]; the mask is None."""
        low, high = (np.reshape(bound, self.shape) for bound in (self.low, self.high))
        drawn = rng.uniform(low, high, (count, *self.shape))
        # A bound that float32 does not represent may be exceeded by rounding.
        return np.clip(drawn.astype(np.float32), low.astype(np.float32), high.astype(np.float32))

    def for_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions as the environment takes them: as they are."""
        return action

    def none(self, count: int) -> NDArray[Any]:
        """An array [count, *shape] without actions, see `given`."""
        return np.full((count, *self.shape), np.nan, np.float32)

    def given(self, action: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows of an array from `none`, [N, *shape], have been set to an action, bool [N]."""
        flat: NDArray[np.bool_] = ~np.isnan(action.reshape(len(action), -1)).any(1)
        return flat


@dataclass(frozen=True)
class BranchedAction:
    """Several choices at once, in D branches: choice d is one of the numbers 0 .. nvec[d] - 1.

    Args:
        shape: of one action, with D numbers.
        nvec: number of choices of each branch, in C order.
        start: what is added to each choice before the environment sees it, in C order; empty: nothing.
        advice: how the user can make numbered actions of it, for the end of a sentence that says what else is possible.
    """

    shape: tuple[int, ...]
    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    advice: str = field(default="", compare=False)
    kind: ClassVar[str] = "branched"
    dtype: ClassVar[str] = "int64"
    has_mask: ClassVar[bool] = False

    @property
    def explored_shape(self) -> tuple[int, ...]:
        """Exploration replaces each choice for itself."""
        return self.shape

    @property
    def offset(self) -> NDArray[np.int64]:
        """What is added to an action for the environment, int64 [*shape]."""
        return np.array(self.start or (0,) * len(self.nvec), np.int64).reshape(self.shape)

    def random(self, rng: np.random.Generator, count: int, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Draw each choice uniformly, int64 [count, *shape]; the mask is None."""
        return rng.integers(0, np.reshape(self.nvec, self.shape), (count, *self.shape))

    def for_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions as numbered by the environment."""
        return action + self.offset if self.start else action

    def none(self, count: int) -> NDArray[Any]:
        """An array [count, *shape] without actions, see `given`."""
        return np.full((count, *self.shape), -1)

    def given(self, action: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows of an array from `none`, [N, *shape], have been set to an action, bool [N]."""
        return np.asarray((action.reshape(len(action), -1) >= 0).all(1))


Action = DiscreteAction | BoxAction | BranchedAction
