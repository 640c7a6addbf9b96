"""Imports of what a user names: packages that register environments, and their makers."""

from __future__ import annotations

import importlib
from typing import Any

from trainer.envs.faults import is_its_own, words_of
from trainer.envs.spec import EnvError


def import_modules(env: Any) -> None:
    """Imports what `env.import_modules` names, which registers the id. Doing it again costs nothing.

    Raises:
        EnvError: one cannot be imported.
    """
    for module in env.import_modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # whatever a package does as it is imported, sys.exit too
            if not is_its_own(error):
                raise
            raise EnvError(
                f"{env.id}: env.import_modules names {module!r}, which cannot be imported ({words_of(error)}); install "
                "it or correct the name."
            ) from error
