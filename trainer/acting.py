"""From observations to actions: frame stacks, greedy and exploring choice. Used by collectors, evaluator and play."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from envs import EnvSpec
from trainer.config import CollectorConfig

Observation = dict[str, np.ndarray]
Policy = Callable[[list[np.ndarray], np.ndarray | None], np.ndarray]


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
        """Add a frame [N, ...] of each leaf; where ``fresh`` (bool [N]) it is the first of an episode."""
        for name, stack in self._stacks.items():
            frame = observation[name]
            stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = frame
            stack[fresh] = frame[fresh, None]

    def seen(self, observation: Observation) -> list[np.ndarray]:
        """What the network sees: leaves in the spec's order, [N, (stack,) ...]."""
        return [self._stacks.get(leaf.name, observation[leaf.name]) for leaf in self._leaves]


class _Greedy(nn.Module):
    def __init__(self, network: nn.Module, masked: bool) -> None:
        super().__init__()
        self.network, self.masked = network, masked

    def forward(self, *leaves: Tensor) -> Tensor:
        if not self.masked:
            return self.network(*leaves).argmax(-1)
        *seen, mask = leaves
        return self.network(*seen).masked_fill(~mask, -torch.inf).argmax(-1)


def greedy_policy(network: nn.Module, seen: list[np.ndarray], mask: np.ndarray | None) -> Policy:
    """``policy(seen, mask)``: the best legal action of each row, int64 [N].

    The network is recorded for arrays of these shapes: the same operations, in half the time for a small MLP and few
    rows. Its parameters stay the network's own, so that new weights reach the policy. Call it in inference mode.

    Args:
        network: leaves [N, ...] to values [N, A].
        seen: an example of the leaves.
        mask: an example of the legal actions, bool [N, A], or None where there are no masks.
    """
    masks = [] if mask is None else [mask]
    with torch.no_grad():
        example = tuple(map(torch.from_numpy, [*seen, *masks]))
        recorded = torch.jit.trace(_Greedy(network, mask is not None), example, check_trace=False).forward

    def policy(seen: list[np.ndarray], mask: np.ndarray | None) -> np.ndarray:
        masks = [] if mask is None else [mask]
        return recorded(*map(torch.from_numpy, [*seen, *masks])).numpy()

    return policy


class Explorer:
    """Replaces actions by uniformly drawn legal ones, with probability epsilon.

    Args:
        num_envs: N.
        num_actions: A.
        seed: of its draws.
    """

    BLOCK = 256  # vector steps whose draws are made at once: a generator's call costs more than its numbers

    def __init__(self, num_envs: int, num_actions: int, seed: int | list[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_envs, self._num_actions = num_envs, num_actions
        self._draws, self._next = np.zeros((0, num_envs)), 0

    def __call__(self, action: np.ndarray, epsilon: np.ndarray | float, mask: np.ndarray | None) -> np.ndarray:
        """``action`` int64 [N], some of it replaced; epsilon is one number or float [N], mask bool [N, A] or None."""
        if self._next == len(self._draws):
            self._draws, self._next = self._rng.random((self.BLOCK, self._num_envs)), 0
        explores = self._draws[self._next] < epsilon
        self._next += 1
        count = np.count_nonzero(explores)
        if not count:
            return action
        action = action.copy()
        if mask is None:
            action[explores] = self._rng.integers(0, self._num_actions, count)
        else:
            draws = self._rng.random((count, self._num_actions))
            action[explores] = np.where(mask[explores], draws, -1.0).argmax(1)
        return action


def linear_epsilon(config: CollectorConfig, frames: int) -> float:
    """Exploration rate after ``frames`` frames of all workers: linear from start to end, then constant."""
    left = max(0.0, 1 - frames / max(1, config.epsilon_decay_frames))
    return config.epsilon_end + (config.epsilon_start - config.epsilon_end) * left


def apex_ladder(config: CollectorConfig, num_streams: int) -> np.ndarray:
    """Exploration rates float64 [S], one for each sub-environment of all workers (Horgan et al. 2018, section 4).

    ``epsilon_i = apex_epsilon ** (1 + apex_alpha * i / (S - 1))``
    """
    i = np.arange(num_streams)
    return config.apex_epsilon ** (1 + config.apex_alpha * i / max(1, num_streams - 1))
