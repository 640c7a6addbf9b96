"""Every text file that the trainer reads is read here: what cannot be read is one sentence, whatever was done to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESTORE = "restore it or delete it"


class ReadError(RuntimeError):
    """A file that cannot be read, or holds something else; its text is one sentence for the user."""


def read_bytes(path: Path, remedy: str = RESTORE) -> bytes:
    """What a file holds.

    Raises:
        ReadError: it cannot be read; `remedy` ends the sentence.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReadError(f"{path} cannot be read ({error.strerror}): {remedy}") from error


def read_text(path: Path, remedy: str = RESTORE) -> str:
    """What a file of text holds.

    Raises:
        ReadError: it cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path, remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReadError(f"{path} is damaged (its byte {error.start} is no UTF-8 text): {remedy}") from error


def read_json(path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ReadError: it cannot be read, is no JSON, or holds something else than an object.
    """
    try:
        return _object(read_text(path, remedy))
    except ValueError as error:
        raise ReadError(f"{path} is damaged ({error}): {remedy}") from error


def read_jsonl(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The objects of a file that holds one a line, oldest first, and a sentence about what is left out.

    A damaged line costs that line. An unfinished last line is left out without a word, for a run that is going on, or
    was killed, may have left it.

    Returns:
        The objects, and "" or what is wrong with the others.

    Raises:
        ReadError: the file cannot be read.
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
    """The JSON object that a text is.

    Raises:
        ValueError: it is none; says why.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or a number of 5,000 digits; brackets without end
        raise ValueError(f"no JSON: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found
