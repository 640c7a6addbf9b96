"""Read the text files of a run; whatever is wrong with one becomes a `ReadError` with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESTORE = "restore it or delete it"


class ReadError(RuntimeError):
    """A file could not be read, or has the wrong content; the text is one sentence for the user."""


def read_bytes(path: Path, remedy: str = RESTORE) -> bytes:
    """The content of a file.

    Args:
        path: of the file.
        remedy: what the user can do; it ends the sentence of an error.

    Raises:
        ReadError: the file could not be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReadError(f"{path} cannot be read ({error.strerror}): {remedy}") from error


def read_text(path: Path, remedy: str = RESTORE) -> str:
    """The content of a text file.

    Raises:
        ReadError: the file could not be read, or is not UTF-8.
    """
    try:
        return read_bytes(path, remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReadError(f"{path} is damaged (its byte {error.start} is no UTF-8 text): {remedy}") from error


def read_json(path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ReadError: the file could not be read, is no JSON, or is no JSON object.
    """
    try:
        return _object(read_text(path, remedy))
    except ValueError as error:
        raise ReadError(f"{path} is damaged ({error}): {remedy}") from error


def read_jsonl(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The objects of a file with one JSON object on each line; damaged lines are left out.

    An unfinished last line is left out silently: a run that is going on, or was killed, may have left it.

    Returns:
        The objects in the order of the file, and one sentence about damaged lines, or "".

    Raises:
        ReadError: the file could not be read.
    """
    objects, damaged = [], []
    lines = read_bytes(path).split(b"\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            objects.append(_object(line.decode("utf-8")))
        except ValueError:
            damaged.append(number)
    if not damaged:
        return objects, ""
    first = f"{len(damaged)} of its {len(lines)} lines, line {damaged[0]} first"
    return objects, f"{path} is damaged: {first}, cannot be read and are left out"


def _object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is no JSON object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of brackets
        raise ValueError(f"no JSON: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found
