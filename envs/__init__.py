"""Environments for the trainer: `make` returns a vector, `describe` its spec, `BACKENDS` lists the backends.

`env` is anything with the attributes of `trainer.config.sections.EnvConfig`; nothing else of the trainer is imported.

A vector has `spec`, `num_envs`, `reset(seed) -> observation`, `step(action) -> (observation, reward, terminated,
truncated)`, `raw_reward` and `close()`. Its observation is a dict of arrays by leaf name, [num_envs, *leaf.shape], one
frame each, and `action_mask`, bool [num_envs, num_actions], if `spec.action.has_mask`. Every call returns the same dict
and arrays, and overwrites them. `trainer.envs.vector` describes how episodes end.

A new backend is one file with a `make`, see `trainer.envs.backends`, and one line there.

Modules are imported when a name is first used: the configuration reads `BACKENDS` without NumPy and Gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainer.envs.backends import BACKENDS

if TYPE_CHECKING:
    from trainer.envs.actions import Action, BoxAction, BranchedAction, DiscreteAction
    from trainer.envs.gymnasium import make_single
    from trainer.envs.making import describe, describe_world, make, make_world
    from trainer.envs.selfplay import against_opponents
    from trainer.envs.spec import EnvError, EnvSpec, Leaf

__all__ = [
    "BACKENDS",
    "Action",
    "BoxAction",
    "BranchedAction",
    "DiscreteAction",
    "EnvError",
    "EnvSpec",
    "Leaf",
    "against_opponents",
    "describe",
    "describe_world",
    "make",
    "make_single",
    "make_world",
]

_FILES = {
    "actions": ("Action", "BoxAction", "BranchedAction", "DiscreteAction"),
    "gymnasium": ("make_single",),
    "making": ("describe", "describe_world", "make", "make_world"),
    "selfplay": ("against_opponents",),
    "spec": ("EnvError", "EnvSpec", "Leaf"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILE_OF[name]}"), name)
