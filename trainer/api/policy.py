"""A trained policy: observations as the environment gives them in, actions as the environment takes them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.acting.exploration import Explored, Explorer
from trainer.acting.stacks import FrameStacks
from trainer.api.sources import Saved, read
from trainer.config.fields import ConfigError
from trainer.envs import EnvError, Leaf


class Policy:
    """A policy of one agent, from `trainer.load_policy` or `Run.policy`.

    With `env.frame_stack` above 1 it remembers the last frames of each environment, so it is called once for each step
    and `reset` is called at the beginning of an episode.

    Args:
        saved: as it was read.
        agent: its name; None: the only one.

    Raises:
        ConfigError: there is no such agent, or there are several and none is named.

    Attributes:
        config: of the run that trained it.
        agent: its name.
        spec: what it sees and does.
        header: what its file says of it: versions, returns, the run's command (`trainer.run_folder.policy_file`).
        module: the network, leaves [N, ...] to values [N, num_actions], or of an actor to actions.
        tensordict_module: the same as TorchRL's actor, which reads the leaves and `action_mask`, and writes `action`.
    """

    def __init__(self, saved: Saved, agent: str | None = None) -> None:
        names = [name for name, _ in saved.agents]
        if agent is None and len(names) > 1:
            raise ConfigError(f"{saved.path} has {len(names)} agents: name one, as agent={names[0]!r}")
        self.agent = names[0] if agent is None else agent
        if self.agent not in names:
            raise ConfigError(f"{saved.path} has no agent {agent}: it has {', '.join(names)}")
        number, players = names.index(self.agent), saved.players()
        self.config, self.spec, self.header = players.configs[number], players.specs[number], saved.header
        self.module: nn.Module = players.networks[number].eval()
        self.tensordict_module = players.actors[number].eval()
        self._stacks: FrameStacks | None = None
        self._count, self._fresh = 0, np.ones(0, bool)
        self._acting = players.acting[number]
        self.seed(self.config.seed)

    def __call__(self, observation: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """The action for one observation, or the actions for a batch.

        Args:
            observation: what the environment's `reset` and `step` return: an array, or a dict or tuple of them, nested
                as in its space. A batch has a further first axis [N] on every array.
            mask: which actions are legal, bool [num_actions] or [N, num_actions]; None: as the observation's
                `env.mask_key` says.
            deterministic: the greedy action; else the policy explores as at the end of its training.

        Returns:
            For one observation an action as the environment takes it, for a batch an array [N, ...] of them.

        Raises:
            ValueError: the observation or the mask does not fit the environment that the policy was trained in.
        """
        leaves, count = self._leaves(observation)
        legal = self._mask(observation, mask, count or 1)
        action = self._act(self._seen(leaves, count or 1), legal, deterministic)
        given = self.spec.action.for_env(action)
        return given if count else given[0]

    def reset(self, where: Any = None) -> None:
        """Forget the frames before, as an episode begins; without frame stacks it does nothing.

        Args:
            where: bool [N], the environments of a batch whose next observation is the first of an episode; None: all.
        """
        if where is None:
            self._count = 0
        else:
            self._fresh |= np.asarray(where, bool)

    def seed(self, seed: int) -> None:
        """Seed the actions that explore."""
        self._rng = np.random.default_rng(seed)
        self._explorers: dict[int, Explorer] = {}  # by the size of a batch

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the policy file of this agent, which `trainer.load_policy` reads anywhere.

        Args:
            path: of a file that ends in `.safetensors`.

        Raises:
            ValueError: it ends in something else.
            OSError: it could not be written.
        """
        from trainer.api.export import save

        return save(self, Path(path))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the network with the choice of the action for other runtimes; see `trainer.api.export`.

        Args:
            path: of a file that ends in `.onnx` (extra `onnx`) or `.pt2` (torch.export).

        Raises:
            ValueError: it ends in something else.
            ConfigError: a package is missing.
        """
        from trainer.api.export import export

        return export(self, Path(path))

    def make_env(self, render_mode: str | None = None) -> Any:
        """The Gymnasium environment that the policy was trained in, with its wrappers and its preprocessing.

        Raises:
            EnvError: it could not be made, or is no Gymnasium environment.
        """
        from trainer.envs import gymnasium

        env = self.config.env
        if env.backend != "gymnasium":
            raise EnvError(f"{env.id}: make_env makes environments of Gymnasium, and this one is of {env.backend}.")
        return gymnasium.make_single(env, render_mode)

    def __repr__(self) -> str:
        return f"Policy({self.config.algorithm.name} on {self.config.env.id}, agent {self.agent})"

    def _leaves(self, observation: Any) -> tuple[dict[str, NDArray[Any]], int]:
        """The leaves, [N, *leaf.shape] each, and N; 0 for one observation, whose leaves are [1, *leaf.shape]."""
        found, counts = {}, set()
        for leaf in self.spec.leaves:
            array, expected = np.asarray(_part(observation, leaf)), () if leaf.scalar else leaf.shape
            if array.shape != expected and array.shape[1:] != expected:
                raise ValueError(
                    f"{leaf.name} has shape {array.shape}, and {self.spec.id} gives {expected}, or of a batch "
                    f"{('N', *expected)}"
                )
            counts.add(0 if array.shape == expected else len(array))
            found[leaf.name] = _stored(leaf, array.reshape(-1, *leaf.shape))
        if len(counts) > 1:
            raise ValueError(f"the observation's arrays are of batches of different sizes: {sorted(counts)}")
        return found, counts.pop()

    def _mask(self, observation: Any, mask: Any, count: int) -> NDArray[np.bool_] | None:
        """Legal actions, bool [N, num_actions]; None where the policy was trained without masks."""
        if not self.spec.action.has_mask:
            return None
        if mask is None and isinstance(observation, Mapping):
            mask = observation.get(self.config.env.mask_key, observation.get("action_mask"))
        if mask is None:
            raise ValueError(
                f"{self.spec.id} says which actions are legal, and the policy needs it: pass mask=, as "
                f"info[{self.config.env.mask_key!r}]"
            )
        array = np.asarray(mask, bool)
        if array.size != count * self.spec.num_actions:
            raise ValueError(f"the mask has shape {array.shape}, and there are {self.spec.num_actions} actions")
        return array.reshape(count, self.spec.num_actions)

    def _seen(self, leaves: dict[str, NDArray[Any]], count: int) -> list[Tensor]:
        if self.spec.stack == 1:
            return [torch.from_numpy(leaves[leaf.name]) for leaf in self.spec.leaves]
        if self._count == 0 or self._stacks is None:
            self._stacks, self._count, self._fresh = FrameStacks(self.spec, count), count, np.ones(count, bool)
        if self._count != count:
            raise ValueError(
                f"the policy has the last frames of {self._count} environments, and the batch has {count}: call "
                "reset() before others"
            )
        self._stacks.push(leaves, self._fresh)
        self._fresh = np.zeros(count, bool)
        return [torch.from_numpy(array) for array in self._stacks.seen(leaves)]

    def _act(self, seen: list[Tensor], mask: NDArray[np.bool_] | None, deterministic: bool) -> NDArray[Any]:
        """Actions, [N, *shape]; numbered ones from 0."""
        count, acting = len(seen[0]), self._acting
        legal, noise = None if mask is None else torch.from_numpy(mask), None
        shape = acting.noise_shape(self.module, count)
        if not deterministic and 0 not in shape:
            noise = torch.from_numpy(self._rng.standard_normal(shape, np.float32))
        with torch.no_grad():
            action: NDArray[Any] = acting.choose(self.module, seen, legal, noise)[0].numpy()
        if deterministic:
            return action
        if count not in self._explorers:
            seed = int(self._rng.integers(2**31))
            of = Explored(self.config.collector, self.spec.action, count, slice(0, count), seed)
            self._explorers[count] = acting.explorer(of)
        return self._explorers[count](action, mask, self.config.budget_frames)[0]


def load_policy(source: Any, which: str = "best", agent: str | None = None, trust: bool = False) -> Policy:
    """A trained policy.

    Args:
        source: a run or its folder, a policy file (`.safetensors`; `.pt` of an older version in its run's folder), or
            `hub:owner/name` for the Hugging Face Hub, where `@REVISION` may follow. Reading runs no code of the file.
        which: of a run's policies: `best`, by its evaluations, `last`, or the frames after which one was kept.
        agent: where there are several, which of them.
        trust: whether a file may import parts of its author's own that it names, as a network by import path.

    Raises:
        ConfigError: there is no such run, file, repository, policy or agent.
        ReadError: the file is damaged, or holds no policy.
    """
    return Policy(read(getattr(source, "path", source), which, trust), agent)


def _part(observation: Any, leaf: Leaf) -> Any:
    if isinstance(observation, Mapping) and leaf.name in observation:
        return observation[leaf.name]
    for key in leaf.path:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{leaf.name} is missing in the observation: it lies at {list(leaf.path)}") from error
    return observation


def _stored(leaf: Leaf, array: NDArray[Any]) -> NDArray[Any]:
    """Values as they are stored and learned from.

    Raises:
        ValueError: a category does not exist, or a value changes as it is stored.
    """
    if leaf.kind == "discrete":
        array = array - np.reshape(leaf.start, leaf.shape) if leaf.start else array
        if (array < 0).any() or (array >= np.reshape(leaf.nvec, leaf.shape)).any():
            raise ValueError(f"{leaf.name} lies outside its space, whose sizes are {leaf.nvec}")
    stored = np.ascontiguousarray(array, leaf.dtype)
    if leaf.dtype != "float32" and not np.array_equal(stored, array):
        raise ValueError(f"{leaf.name} has values that {leaf.dtype} does not hold, which it was trained with")
    return stored
