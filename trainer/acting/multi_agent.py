"""The policies of several agents: those with small networks of the same shape act in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.acting.acting import VALUES, Acting
from trainer.acting.exploration import Seed, noise_of
from trainer.acting.policies import Chooser, Policy, greedy_policy
from trainer.memory.weights import ordered_tensors
from trainer.networks.encoders import let_stack
from trainer.networks.recording import operations
from trainer.networks.scripting import script

# Above it a stacked pass takes as long as a pass for each agent, or longer, as its intermediate results leave the
# processor's cache (`python -m benchmarks.acting`). The size decides and not a clock, so that a seed gives the same
# weights whatever else the machine does.
LARGEST_STACKED_FLOP = 20e6

Seen = tuple[list[np.ndarray], np.ndarray | None]  # leaves, legal actions where there are masks


def stacked_policy(
    networks: Sequence[nn.Module], weights: Tensor, seen: list[np.ndarray], mask: np.ndarray | None,
    seeds: Sequence[Seed] | None = None, acting: Acting = VALUES,
) -> Policy:  # fmt: skip
    """As `greedy_policy`, for A networks of one shape in one pass; every array has a first axis [A].

    Args:
        networks: A networks.
        weights: of the networks in the boards' order, float32 [A, numel]; every call reads them.
        seen: an example of the leaves, [A, N, ...].
        mask: an example of the legal actions, bool [A, N, num_actions], or None.
        seeds: of the noise of each network; None: the actions are greedy.
        acting: how the agents act by their networks.
    """
    network, count = networks[0], len(networks)
    let_stack(network)
    shape = acting.noise_shape(network, seen[0].shape[1])
    drawing = [noise_of(shape, seed) for seed in seeds or ()]
    noise = [draw for draw in drawing if draw is not None]  # for all networks, or for none
    for one in networks:
        one.train(bool(noise))
    parameters, offset = {}, 0
    for name, leaf in ordered_tensors(network):
        size = leaf.numel()
        parameters[name] = weights[:, offset : offset + size].view(count, *leaf.shape)
        offset += size
    module = Chooser(network, acting.choose, mask is not None, bool(noise))
    names = [f"network.{name}" for name in parameters]

    def act(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(names, tensors[: len(names)], strict=True))
        return torch.func.functional_call(module, named, tensors[len(names) :])

    def inputs(seen: list[np.ndarray], mask: np.ndarray | None) -> list[Tensor]:
        drawn = [np.stack([draw() for draw in noise])] if noise else []
        arrays = [torch.from_numpy(array) for array in [*seen, *([] if mask is None else [mask]), *drawn]]
        return [*parameters.values(), *arrays]

    with torch.no_grad():
        example = inputs(seen, mask)
        recorded = script(operations(torch.vmap(act), example), example).forward

    def policy(seen: list[np.ndarray], mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        action, values = recorded(*inputs(seen, mask))
        return action.numpy(), values.detach().numpy()

    return policy


def flop(network: nn.Module, seen: list[np.ndarray], mask: np.ndarray | None, acting: Acting = VALUES) -> int:
    """Floating-point operations of the matrix products and convolutions of an agent's pass over these leaves."""
    network.eval()  # noisy layers draw nothing
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        leaves = [torch.from_numpy(leaf) for leaf in seen]
        acting.choose(network, leaves, None if mask is None else torch.from_numpy(mask), None)
    return counter.get_total_flops()


class AgentPolicies:
    """Actions of several agents; those with small networks of the same shape act in one pass.

    Args:
        networks: of each agent.
        weights: of each agent, float32 [numel]; the network's parameters are views of them.
        shapes: equal for agents whose networks can be stacked.
        examples: leaves and mask of each agent.
        seeds: of each agent's noise; None: the actions are greedy.
        acting: how each agent acts by its network; None: by values.

    Attributes:
        weights: of each agent, float32 [numel]; new weights are written into them. They are the given ones, or rows of
            a stack for networks that act in one pass.
        noise: generator of each agent's noise; None: the actions are greedy.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        weights: Sequence[Tensor],
        shapes: Sequence[Any],
        examples: Sequence[Seen],
        seeds: Sequence[int | list[int]] | None = None,
        acting: Sequence[Acting] | None = None,
    ) -> None:
        self.weights = list(weights)
        self.noise = None if seeds is None else [np.random.default_rng(seed) for seed in seeds]
        self._groups: list[tuple[list[int], Policy]] = []
        for shape in dict.fromkeys(shapes):
            members = [agent for agent, its_shape in enumerate(shapes) if its_shape == shape]
            how = VALUES if acting is None else acting[members[0]]
            if len(members) == 1 or flop(networks[members[0]], *examples[members[0]], how) > LARGEST_STACKED_FLOP:
                for agent in members:
                    noise = None if self.noise is None else self.noise[agent]
                    policy = greedy_policy(networks[agent], *examples[agent], noise, how)
                    self._groups.append(([agent], policy))
            else:
                stack = torch.stack([weights[agent] for agent in members])
                for row, agent in zip(stack, members, strict=True):
                    self.weights[agent] = row
                arrays = _stack([examples[agent] for agent in members])
                generators = None if self.noise is None else [self.noise[agent] for agent in members]
                policy = stacked_policy([networks[agent] for agent in members], stack, *arrays, generators, how)
                self._groups.append((members, policy))

    def act(self, seen: Sequence[Seen]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Actions [N, *shape] and values float32 [N, A] of each agent."""
        chosen: list[Any] = [None] * len(seen)
        for members, policy in self._groups:
            if len(members) == 1:
                chosen[members[0]] = policy(*seen[members[0]])
            else:
                actions, values = policy(*_stack([seen[agent] for agent in members]))
                for agent, action, value in zip(members, actions, values, strict=True):
                    chosen[agent] = (action, value)
        return chosen


def _stack(several: Sequence[Seen]) -> Seen:
    leaves = [np.stack(arrays) for arrays in zip(*[seen for seen, _ in several], strict=True)]
    masks = [mask for _, mask in several if mask is not None]
    return leaves, np.stack(masks) if masks else None
