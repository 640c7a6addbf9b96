"""From observations to actions: frame stacks, greedy and exploring choice. Used by collectors, evaluator and play."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from trainer.config.sections import CollectorConfig
from trainer.envs import EnvSpec
from trainer.memory.boards import ordered_tensors
from trainer.networks.q_network import let_stack
from trainer.networks.scripting import script

Observation = dict[str, np.ndarray]
Seed = int | list[int] | np.random.Generator
Policy = Callable[[list[np.ndarray], np.ndarray | None], tuple[np.ndarray, np.ndarray]]


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

    def state_dict(self) -> dict[str, Tensor]:
        """The frames of now."""
        return {name: torch.from_numpy(stack.copy()) for name, stack in self._stacks.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up the frames of an earlier `state_dict`."""
        for name, stack in state.items():
            self._stacks[name][:] = stack.numpy()


class _Greedy(nn.Module):
    def __init__(self, network: nn.Module, masked: bool, noisy: bool) -> None:
        super().__init__()
        self.network, self.masked, self.noisy = network, masked, noisy

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *seen, noise = inputs if self.noisy else (*inputs, None)
        *seen, mask = seen if self.masked else (*seen, None)
        values = self.network(*seen) if noise is None else self.network(*seen, noise=noise)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        return values.argmax(-1), values


def greedy_policy(
    network: nn.Module, seen: list[np.ndarray], mask: np.ndarray | None, seed: Seed | None = None
) -> Policy:
    """``policy(seen, mask)``: the best legal action of each row, int64 [N], and the values, float32 [N, A].

    The network is recorded for arrays of these shapes: the same operations, in half the time for a small MLP and few
    rows. Its parameters stay the network's own, so that new weights reach the policy. Call it in inference mode.

    Args:
        network: leaves [N, ...] to values [N, A].
        seen: an example of the leaves.
        mask: an example of the legal actions, bool [N, A], or None where there are no masks.
        seed: of a noisy network's noise, drawn anew for each call, one for all rows; None: its mean weights act.
    """
    noise_size = 0 if seed is None else getattr(network, "noise_size", 0)
    network.train(noise_size > 0)
    rng = np.random.default_rng(seed)

    def tensors(seen: list[np.ndarray], mask: np.ndarray | None) -> list[Tensor]:
        noise = [rng.standard_normal(noise_size, np.float32)] if noise_size else []
        return [torch.from_numpy(array) for array in [*seen, *([] if mask is None else [mask]), *noise]]

    with torch.no_grad():
        module = _Greedy(network, mask is not None, noise_size > 0)
        recorded = script(module, tensors(seen, mask)).forward

    def policy(seen: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        action, values = recorded(*tensors(seen, mask))
        return action.numpy(), values.detach().numpy()

    return policy


def stacked_policy(
    networks: Sequence[nn.Module], weights: Tensor, seen: list[np.ndarray], mask: np.ndarray | None,
    seeds: Sequence[Seed] | None = None,
) -> Policy:  # fmt: skip
    """As :func:`greedy_policy` for several networks of one shape in one pass; every array has a first axis [A].

    Args:
        networks: A of them.
        weights: float32 [A, numel], theirs in the boards' order; read in every call.
        seen: an example of the leaves, [A, N, ...].
        mask: an example of the legal actions, bool [A, N, num_actions], or None.
        seeds: of each one's noise; None: mean weights act.
    """
    network, count = networks[0], len(networks)
    let_stack(network)
    noise_size = 0 if seeds is None else getattr(network, "noise_size", 0)
    for one in networks:
        one.train(noise_size > 0)
    rngs = [np.random.default_rng(seed) for seed in seeds or range(count)]
    parameters, offset = {}, 0
    for name, leaf in ordered_tensors(network):
        size = leaf.numel()
        parameters[name] = weights[:, offset : offset + size].view(count, *leaf.shape)
        offset += size
    module = _Greedy(network, mask is not None, noise_size > 0)
    names = [f"network.{name}" for name in parameters]

    def act(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        own = dict(zip(names, tensors[: len(names)], strict=True))
        return torch.func.functional_call(module, own, tensors[len(names) :])

    def inputs(seen: list[np.ndarray], mask: np.ndarray | None) -> list[Tensor]:
        noise = [np.stack([rng.standard_normal(noise_size, np.float32) for rng in rngs])] if noise_size else []
        arrays = [torch.from_numpy(array) for array in [*seen, *([] if mask is None else [mask]), *noise]]
        return [*parameters.values(), *arrays]

    with torch.no_grad():
        example = inputs(seen, mask)
        recorded = script(make_fx(torch.vmap(act))(*example), example).forward

    def policy(seen: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        action, values = recorded(*inputs(seen, mask))
        return action.numpy(), values.detach().numpy()

    return policy


class Crew:
    """Greedy actions of several agents: one pass for those whose networks are alike.

    Args:
        networks: of each agent.
        flats: its weights, float32 [numel], of which the network's parameters are views; replaced by rows of a stack
            where several are alike.
        shapes: equal for agents whose networks may be stacked.
        examples: leaves and mask of each.
        seeds: of each one's noise; None: mean weights act.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        flats: Sequence[Tensor],
        shapes: Sequence[Any],
        examples: Sequence[tuple[list[np.ndarray], np.ndarray | None]],
        seeds: Sequence[int | list[int]] | None = None,
    ) -> None:
        self.flats = list(flats)
        self.noise = None if seeds is None else [np.random.default_rng(seed) for seed in seeds]
        self._groups: list[tuple[list[int], Policy]] = []
        for shape in dict.fromkeys(shapes):
            members = [a for a, own in enumerate(shapes) if own == shape]
            own_seeds = None if self.noise is None else [self.noise[a] for a in members]
            if len(members) == 1:
                seen, mask = examples[members[0]]
                policy = greedy_policy(networks[members[0]], seen, mask, None if own_seeds is None else own_seeds[0])
            else:
                stack = torch.stack([flats[a] for a in members])
                for row, a in zip(stack, members, strict=True):
                    self.flats[a] = row
                arrays = _stack([examples[a] for a in members])
                policy = stacked_policy([networks[a] for a in members], stack, *arrays, own_seeds)
            self._groups.append((members, policy))

    def act(self, seen: Sequence[tuple[list[np.ndarray], np.ndarray | None]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Greedy actions int64 [N] and values float32 [N, num_actions] of each agent."""
        chosen: list[Any] = [None] * len(seen)
        for members, policy in self._groups:
            if len(members) == 1:
                chosen[members[0]] = policy(*seen[members[0]])
            else:
                actions, values = policy(*_stack([seen[a] for a in members]))
                for a, action, value in zip(members, actions, values, strict=True):
                    chosen[a] = (action, value)
        return chosen


def _stack(
    several: Sequence[tuple[list[np.ndarray], np.ndarray | None]],
) -> tuple[list[np.ndarray], np.ndarray | None]:
    leaves = [np.stack(arrays) for arrays in zip(*[seen for seen, _ in several], strict=True)]
    masks = [mask for _, mask in several if mask is not None]
    return leaves, np.stack(masks) if masks else None


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

    def state_dict(self) -> dict[str, Any]:
        """The generator, and the draws that are left."""
        return {"rng": self._rng.bit_generator.state, "draws": torch.from_numpy(self._draws), "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the draws of an earlier `state_dict`."""
        self._rng.bit_generator.state = state["rng"]
        self._draws, self._next = state["draws"].numpy(), state["next"]

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
