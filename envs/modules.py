"""Import modules that a user names, which register environments or games."""

from __future__ import annotations

import importlib
from typing import Any

from trainer.envs.faults import is_its_own, words_of
from trainer.envs.spec import EnvError


def import_modules(env: Any) -> None:
    """Import the modules of `env.import_modules`; a second call does nothing.

    Raises:
        EnvError: one could not be imported.
    """
    for module in env.import_modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # a package may do anything when imported, even call sys.exit
            if not is_its_own(error):
                raise
            raise EnvError(
                f"{env.id}: env.import_modules names {module!r}, which cannot be imported ({words_of(error)}); install "
                "it or correct the name."
            ) from error
