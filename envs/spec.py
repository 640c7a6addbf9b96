"""Observations and actions of an environment in plain numbers: all that the trainer knows about spaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.envs.actions import Action, BoxAction, DiscreteAction


class EnvError(RuntimeError):
    """An environment failed, or training on it is not possible; the text is one sentence for the user."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, as it is stored for one frame.

    Args:
        name: `observation` if the observation is one array, else its path, as `observation.camera.0`.
        shape: of one frame, without the sub-environments' axis and without the frame stack.
        dtype: NumPy's name of the stored type: float32, uint8, int64 or bool.
        kind: `vector` (numbers; flattened by the network), `image` (with `axes`), `discrete` (categories counted from
            0, with `nvec`) or `binary`.
        axes: of an image: `hw`, `hwc` or `chw`; else "".
        nvec: number of categories of each element of a `discrete` leaf, in C order; else empty.
        stack: number of frames that the policy sees at once, along a new first axis if above 1.
        low, high: bounds of each number of a `vector` leaf, in C order, or one pair for all pixels of an `image`.
            Empty for bools, if a bound is not finite, and if pixels have different bounds.
        path: keys and indices that lead to it in what the environment returns; empty where that is the array itself.
        start: subtracted from a `discrete` leaf of the environment, in C order; empty if it is 0.
        scalar: whether the environment's value has no axis.
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
    path: tuple[str | int, ...] = field(default=(), compare=False)
    start: tuple[int, ...] = field(default=(), compare=False)
    scalar: bool = field(default=False, compare=False)

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of what the policy sees: with the stack's axis first, if there is one."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape


@dataclass(frozen=True)
class EnvSpec:
    """Observations and actions of a vector environment.

    Args:
        id: the environment's name, for messages.
        leaves: the arrays of an observation.
        action: the actions: one of n numbers, several such choices, or a point in a box.
        max_episode_steps: the environment's time limit, if it is known.
        mask_source: convention of the masks, see `trainer.envs.masks`; "" without masks, and for the environments of
            this project.
        notes: sentences for the user.
        against_opponents: whether it is a game that one agent plays against opponents (`trainer.envs.selfplay`).
    """

    id: str
    leaves: tuple[Leaf, ...]
    action: Action
    max_episode_steps: int | None = None
    mask_source: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)
    against_opponents: bool = False

    @property
    def stack(self) -> int:
        """Largest frame stack among the leaves."""
        return max(leaf.stack for leaf in self.leaves)

    @property
    def num_actions(self) -> int:
        """Number of actions.

        Raises:
            EnvError: the actions are not numbered.
        """
        if not isinstance(self.action, DiscreteAction):
            what = "points in a box" if isinstance(self.action, BoxAction) else "several choices at once"
            raise EnvError(f"{self.id}: its actions are {what}, and not numbered{self.action.advice}.")
        return self.action.n
