"""Which code a process runs, so that a node with other code is refused before it collects."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

import trainer

PACKAGES = ("torch", "torchrl", "tensordict", "numpy", "gymnasium")  # others may differ: the environment's are its own


def code() -> dict[str, str]:
    """Versions by name: of Python, of the packages that rows and weights depend on, and of the trainer's own files."""
    assert trainer.__file__ is not None
    root, digest = Path(trainer.__file__).resolve().parent, hashlib.sha256()
    for path in sorted([*root.glob("**/*.py"), *(root / "envs").resolve().glob("**/*.py")]):
        digest.update(path.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, **{name: version(name) for name in PACKAGES}, "trainer": digest.hexdigest()[:12]}


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """What differs, in words, as "torch 2.13.0, here 2.12.0"; "" if nothing does."""
    return ", ".join(
        f"{name} {there.get(name, 'unknown')}, here {value}" for name, value in here.items() if there.get(name) != value
    )
