"""Frame stacks: the last frames of every stacked leaf of an observation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainer.envs import EnvSpec

Observation = dict[str, np.ndarray]


class FrameStacks:
    """The last frames of every stacked leaf, [N, stack, ...]; an episode starts with its first frame repeated.

    Leaves without a stack pass through.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._leaves = spec.leaves
        self._stacks = {
            leaf.name: np.zeros((num_envs, leaf.stack, *leaf.shape), leaf.dtype)
            for leaf in spec.leaves
            if leaf.stack > 1
        }

    def push(self, observation: Observation, fresh: np.ndarray) -> None:
        """Add a frame [N, ...] of each leaf; where `fresh` (bool [N]) it is the first of an episode."""
        for name, stack in self._stacks.items():
            frame = observation[name]
            stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = frame
            stack[fresh] = frame[fresh, None]

    def seen(self, observation: Observation) -> list[np.ndarray]:
        """What the network sees: leaves in the spec's order, [N, (stack,) ...]."""
        return [self._stacks.get(leaf.name, observation[leaf.name]) for leaf in self._leaves]

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the frames."""
        return {name: torch.from_numpy(stack.copy()) for name, stack in self._stacks.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the frames of a `state_dict`."""
        for name, stack in state.items():
            self._stacks[name][:] = stack.numpy()
