"""Import paths of parts that users bring: `package.module:object`, wherever a key takes a name of a registry.

It imports nothing slow, as the check of a command line reads the form of paths.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATH = re.compile(f"{_NAME}:{_NAME}")


class NoPart(ValueError):
    """An import path leads nowhere, or to something that cannot be called as it would be; the text says why.

    It begins with the path and is the first part of a sentence: whoever reads the key puts its name before it.
    """


def is_path(text: Any) -> bool:
    """Whether a text has the form `package.module:object`."""
    return isinstance(text, str) and _PATH.fullmatch(text) is not None


def path_and_arguments(given: Any, word: str) -> tuple[str, dict[str, Any]]:
    """Path and arguments of an element of a list of parts: a path, or a mapping with the path under `word`."""
    kwargs = dict(given) if isinstance(given, dict) else {word: given}
    return kwargs.pop(word), kwargs


def part_at(path: str) -> Any:
    """Import the module of a path, and return its object.

    Raises:
        NoPart: there is no such module or object, or the module could not be imported.
    """
    name, _, attributes = path.partition(":")
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise NoPart(
                f"{path}: there is no module {error.name}; start in the folder that holds it, put that folder into "
                "PYTHONPATH, or install its package"
            ) from error
        raise NoPart(f"{path}: {name} imports {error.name}, which is not installed") from error
    except (Exception, SystemExit) as error:  # a module may raise anything when it is imported
        raise NoPart(f"{path}: {name} cannot be imported ({type(error).__name__}: {_first_line(error)})") from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            known = ", ".join(key for key in dir(found) if not key.startswith("_"))[:200] or "nothing"
            raise NoPart(f"{path}: {name} ({getattr(sys.modules[name], '__file__', '')}) has {known}, not {attribute}")
        found = getattr(found, attribute)
    return found


def function_at(path: str, arguments: Sequence[str] = (), keywords: Sequence[str] = ()) -> Any:
    """The object of a path, which is called with such arguments; a class counts as a function that makes one.

    Args:
        path: `package.module:object`.
        arguments: names of those that are given by position.
        keywords: names of those that are given by name.

    Raises:
        NoPart: as in `part_at`, or it cannot be called like this.
    """
    found = part_at(path)
    if not callable(found):
        raise NoPart(f"{path} is {type(found).__name__}, and must be a function or a class")
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # of a builtin
        return found
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        asked = ", ".join([*arguments, *(f"{name}=..." for name in keywords)])
        raise NoPart(f"{path} is called with ({asked}), and takes {signature}: {_first_line(error)}") from error
    return found


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
