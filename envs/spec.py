"""What an environment shows and takes, in plain numbers: the only thing that the trainer knows about spaces."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


class EnvError(RuntimeError):
    """An environment that cannot be trained on, or that failed; its text is one sentence for the user."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, as it is stored for one frame.

    Args:
        name: ``observation`` when the observation is one array, else its path, as ``observation.camera.0``.
        shape: of one frame, without the sub-environment's axis and without the frame stack.
        dtype: NumPy name of the stored type: float32, uint8, int64 or bool.
        kind: ``vector`` (numbers; flattened by the network), ``image`` (``axes`` says how it lies), ``discrete``
            (categories counted from 0; ``nvec`` says how many for each element) or ``binary``.
        axes: of an image: ``hw``, ``hwc`` or ``chw``; empty otherwise.
        nvec: number of categories of each element of a ``discrete`` leaf, in C order; empty otherwise.
        stack: number of frames that the policy sees at once, along a new first axis when above 1.
        low, high: bounds of each number of a ``vector`` leaf of floats, in C order; empty unless all are finite.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    axes: str = ""
    nvec: tuple[int, ...] = ()
    stack: int = 1
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of what the policy sees: the stack's axis first, when there is one."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape


@dataclass(frozen=True)
class EnvSpec:
    """What a vector environment shows and takes.

    Args:
        id: the environment's name, for messages.
        leaves: the observation's arrays.
        num_actions: actions are 0 .. num_actions - 1 for the trainer.
        action_start: what is added to an action before the environment sees it (``Discrete(n, start)``).
        has_mask: whether observations carry ``action_mask``, a bool array [num_envs, num_actions].
        max_episode_steps: the environment's time limit, if it is known.
    """

    id: str
    leaves: tuple[Leaf, ...]
    num_actions: int
    action_start: int = 0
    has_mask: bool = False
    max_episode_steps: int | None = None

    @property
    def stack(self) -> int:
        """Largest frame stack among the leaves."""
        return max(leaf.stack for leaf in self.leaves)


def import_modules(env: Any) -> None:
    """Imports what ``env.import_modules`` names, which registers the id. Doing it again costs nothing.

    Raises:
        EnvError: one cannot be imported.
    """
    for module in env.import_modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a package does as it is imported
            raise EnvError(
                f"{env.id}: env.import_modules names {module!r}, which cannot be imported "
                f"({type(error).__name__}: {' '.join(str(error).split())}); install it or correct the name."
            ) from error
