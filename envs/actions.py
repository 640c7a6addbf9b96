"""What an agent does, as a value that whoever stores, draws, checks or hands on an action asks.

Both kinds have `shape` (of one action) and `dtype` (NumPy's name, as it is stored), `has_mask`, and the methods
below. An action of N sub-environments is an array [N, *shape].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

ADVICE = "its actions are points in a box, which is not supported; supported is Discrete"


@dataclass(frozen=True)
class DiscreteAction:
    """One of the numbers 0 .. n - 1.

    Args:
        n: how many there are.
        start: what is added to an action before the environment sees it (`Discrete(n, start)`).
        has_mask: whether observations carry `action_mask`, a bool array [num_envs, n].
    """

    n: int
    start: int = 0
    has_mask: bool = False
    shape: ClassVar[tuple[int, ...]] = ()
    dtype: ClassVar[str] = "int64"

    def random(self, rng: np.random.Generator, count: int, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """`count` uniformly drawn legal actions, int64 [count]; the mask is bool [count, n], or None: all are legal.

        Raises:
            ValueError: the mask has another shape.
        """
        if mask is None:
            return rng.integers(0, self.n, count)
        return np.where(mask, rng.random((count, self.n)), -1.0).argmax(1)

    def for_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions as the environment counts them."""
        return action + self.start if self.start else action

    def none(self, count: int) -> NDArray[Any]:
        """An array [count] in which no action is given (see `given`)."""
        return np.full(count, -1)

    def given(self, action: NDArray[Any]) -> NDArray[np.bool_]:
        """Where an array [N] of `none` has been written an action into, bool [N]."""
        return action >= 0


@dataclass(frozen=True)
class BoxAction:
    """A point in a box, both bounds included.

    Args:
        shape: of one action.
        low, high: finite bounds of each of its numbers, in C order.
        refusal: why an algorithm that needs numbered actions cannot act here and what the user can do, to be put
            behind the environment's name.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    refusal: str = field(default=ADVICE, compare=False)
    dtype: ClassVar[str] = "float32"
    has_mask: ClassVar[bool] = False

    def random(self, rng: np.random.Generator, count: int, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """`count` uniformly drawn points, float32 [count, *shape]; there is no mask: None."""
        low, high = (np.reshape(bound, self.shape) for bound in (self.low, self.high))
        drawn = rng.uniform(low, high, (count, *self.shape))
        # Rounding to float32 may go beyond a bound that float32 does not hold.
        return np.clip(drawn.astype(np.float32), low.astype(np.float32), high.astype(np.float32))

    def for_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions as the environment takes them: as they are."""
        return action

    def none(self, count: int) -> NDArray[Any]:
        """An array [count, *shape] in which no action is given (see `given`)."""
        return np.full((count, *self.shape), np.nan, np.float32)

    def given(self, action: NDArray[Any]) -> NDArray[np.bool_]:
        """Where an array [N, *shape] of `none` has been written an action into, bool [N]."""
        flat: NDArray[np.bool_] = ~np.isnan(action.reshape(len(action), -1)).any(1)
        return flat


Action = DiscreteAction | BoxAction
