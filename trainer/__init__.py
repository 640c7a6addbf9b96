"""Asynchronous, vectorised Q-learning on TorchRL, as a command (`python -m trainer.run`) and as a library.

    import trainer
    run = trainer.train("preset=lunarlander", "learner.learning_rate=1e-3", run_dir="runs/a")
    policy = trainer.load_policy("runs/a")
    action = policy(observation)

The names of the library are imported when they are first used, so `import trainer` loads nothing heavy.
"""

from __future__ import annotations

import os
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

# TorchRL reads these when it is imported, which every process does: its notices are for its developers.
os.environ.setdefault("RL_WARNINGS", "False")
os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")

if TYPE_CHECKING:
    from trainer.api.policy import Policy, load_policy
    from trainer.api.run import Run, load
    from trainer.api.start import train
    from trainer.config.fields import ConfigError
    from trainer.envs.spec import EnvError
    from trainer.host.errors import RunFailed
    from trainer.reading import ReadError
    from trainer.training.callbacks import Callback

# What the library offers, and where it stands.
_PUBLIC = {
    "train": "trainer.api.start:train",
    "load": "trainer.api.run:load",
    "load_policy": "trainer.api.policy:load_policy",
    "Run": "trainer.api.run:Run",
    "Policy": "trainer.api.policy:Policy",
    "Callback": "trainer.training.callbacks:Callback",
    "ConfigError": "trainer.config.fields:ConfigError",
    "EnvError": "trainer.envs.spec:EnvError",
    "ReadError": "trainer.reading:ReadError",
    "RunFailed": "trainer.host.errors:RunFailed",
}

__all__ = [
    "Callback", "ConfigError", "EnvError", "Policy", "ReadError", "Run", "RunFailed", "load", "load_policy", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import one of the library's names when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    found = globals()[name] = resolve_name(_PUBLIC[name])
    return found


def __dir__() -> list[str]:
    """The library's names too, for completion."""
    return sorted({*globals(), *_PUBLIC})
