"""What an environment shows and takes, in plain numbers: the only thing that the trainer knows about spaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.envs.actions import Action, DiscreteAction


class EnvError(RuntimeError):
    """An environment that cannot be trained on, or that failed; its text is one sentence for the user."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation, as it is stored for one frame.

    Args:
        name: `observation` when the observation is one array, else its path, as `observation.camera.0`.
        shape: of one frame, without the sub-environment's axis and without the frame stack.
        dtype: NumPy name of the stored type: float32, uint8, int64 or bool.
        kind: `vector` (numbers; flattened by the network), `image` (`axes` says how it lies), `discrete`
            (categories counted from 0; `nvec` says how many for each element) or `binary`.
        axes: of an image: `hw`, `hwc` or `chw`; empty otherwise.
        nvec: number of categories of each element of a `discrete` leaf, in C order; empty otherwise.
        stack: number of frames that the policy sees at once, along a new first axis when above 1.
        low, high: bounds of each number of a `vector` leaf, in C order, or the one pair of all pixels of an
            `image`; empty unless all are finite, for pixels also where they differ, and for bools.
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
        action: what is done: one of a few numbers, or a point in a box.
        max_episode_steps: the environment's time limit, if it is known.
        mask_source: where masks come from, of those of `trainer.envs.masks`; empty where there are none, or the
            environment is one of ours.
        notes: what the user should know, a line each.
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
        """Number of actions, for whoever chooses among numbered ones.

        Raises:
            EnvError: they are not numbered.
        """
        if not isinstance(self.action, DiscreteAction):
            raise EnvError(f"{self.id}: {self.action.refusal}.")
        return self.action.n
