"""A vector environment as a TorchRL environment, for TorchRL's collectors."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase

from trainer.envs.actions import Action, BranchedAction, DiscreteAction
from trainer.envs.spec import EnvSpec


class VectorEnvironment(EnvBase):
    """An environment of batch size [N]; observations are single frames under the leaves' names.

    TorchRL's partial resets need a vector made with `autoreset=False`. A collector with its own rollout loop uses
    `vector` directly.

    Args:
        vector: from `trainer.envs.make`.
    """

    def __init__(self, vector) -> None:
        n, spec = vector.num_envs, vector.spec
        super().__init__(device="cpu", batch_size=[n])
        self.is_closed = False  # TorchRL sets it only at the first reset, and would close nothing before
        self.vector, self.spec = vector, spec
        self.observation_spec = _observations(spec, n)
        self.action_spec = _actions(spec.action, n)
        self.reward_spec = Unbounded(shape=(n, 1), dtype=torch.float32)
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool)
        self.done_spec = Composite({"done": flag, "terminated": flag.clone(), "truncated": flag.clone()}, shape=(n,))
        self._seed: int | None = None

    def _reset(self, tensordict: TensorDictBase | None = None, **_) -> TensorDictBase:
        where = None if tensordict is None else tensordict.get("_reset", None)
        if where is None:
            observation = self.vector.reset(self._seed)
        else:
            observation = self.vector.reset_where(where.numpy().reshape(-1))
        flags = {
            name: torch.zeros(*self.batch_size, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")
        }
        return TensorDict({**_tensors(observation), **flags}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation, reward, terminated, truncated = self.vector.step(tensordict["action"].numpy())
        ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        columns = {name: torch.from_numpy(end.copy()).unsqueeze(-1) for name, end in ends.items()}
        columns["reward"] = torch.from_numpy(reward.copy()).unsqueeze(-1)
        return TensorDict({**_tensors(observation), **columns}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the sub-environments."""
        if not self.is_closed:
            self.vector.close()
        super().close(raise_if_closed=raise_if_closed)


def _actions(action: Action, n: int) -> TensorSpec:
    if isinstance(action, DiscreteAction):
        return Categorical(action.n, shape=(n,), dtype=torch.int64)
    if isinstance(action, BranchedAction):
        nvec = torch.tensor(action.nvec).reshape(action.shape)
        return MultiCategorical(nvec, shape=(n, *action.shape), dtype=torch.int64)
    low, high = (
        torch.tensor(bound).reshape(action.shape).expand(n, *action.shape) for bound in (action.low, action.high)
    )
    return Bounded(low, high, shape=(n, *action.shape), dtype=torch.float32)


def _tensors(observation: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in observation.items()}


def _observations(spec: EnvSpec, n: int) -> Composite:
    leaves = {leaf.name: Unbounded(shape=(n, *leaf.shape), dtype=getattr(torch, leaf.dtype)) for leaf in spec.leaves}
    if spec.action.has_mask:
        leaves["action_mask"] = Binary(spec.num_actions, shape=(n, spec.num_actions), dtype=torch.bool)
    return Composite(leaves, shape=(n,))
