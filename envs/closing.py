"""Close environments; each of them may fail at it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainer.envs import life
from trainer.envs.faults import is_its_own, warn, words_of


def close_all(environments: Iterable[Any], env_id: str) -> None:
    """Close each of them; a failure is only a warning, as nothing is lost by it."""
    said = set()
    for env in environments:
        try:
            env.close()
        except BaseException as error:
            if not is_its_own(error):
                raise
            if (words := words_of(error)) not in said:
                warn(f"{env_id}: its close failed: {words}")
            said.add(words)
        life.beat()
