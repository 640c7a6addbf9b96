"""Fields of the configuration that declare the values they take, and the words of errors about wrong values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from difflib import SequenceMatcher
from typing import Any

NEAR = 0.6  # least similarity of two names for one to be suggested in place of the other
SHOWN = 60  # characters of a value that an error repeats


class ConfigError(ValueError):
    """The configuration is not valid; the text is one sentence for the user."""


def one_of(default: str, *others: str) -> Any:
    """A text field that takes one of several values; the first is its default."""
    return field(default=default, metadata={"choices": (default, *others)})


def part(default: str, *others: str, call: str | None = None, kwargs: str = "") -> Any:
    """A text field that takes one of several values, or the import path of a part of the user's.

    Args:
        default: the first value, its default.
        others: the other ones.
        call: names of the arguments that the part is called with, as "spec section", for `trainer.config.parts`; None:
            it belongs to the environment, and is looked at where environments are made.
        kwargs: key of the same section that holds further arguments, by name.
    """
    return field(default=default, metadata={"choices": (default, *others), "part": (call, kwargs)})


def number(default: float | None, low: float, high: float, usual: tuple[float, float] | None = None) -> Any:
    """A field that takes a number from `low` to `high`, both included.

    Outside this range no run works: it overflows, has no end, or changes nothing in float32. A value outside of `usual`
    (default: the whole range) gives a warning.
    """
    return field(default=default, metadata={"range": (low, high), "usual": usual or (low, high)})


def numbers(default: list[int], low: int, high: int, usual: tuple[int, int] | None = None) -> Any:
    """A field that takes a list of integers, each as `number` says."""
    return field(default_factory=lambda: list(default), metadata={"range": (low, high), "usual": usual or (low, high)})


def bounds_text(low: float, high: float) -> str:
    """The range in words, as "from 1e-08 to 1"."""
    return f"from {plain(low)} to {plain(high)}"


def plain(value: float) -> str:
    """A number as it is typed: integers with all digits."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def shown(value: Any) -> str:
    """A value for an error: on one line, with control characters as escapes, and cut if long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of about {value.bit_length() * 3 // 10} digits"  # Python does not print more than 4,300
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that the user most likely meant; None if none is similar enough to be suggested.

    Names are compared by their part after the last dot: its spelling, or its initials (lr for learning_rate).
    """
    section, _, leaf = name[:100].lower().rpartition(".")

    def likeness(candidate: str) -> tuple[float, float]:
        known_section, _, known_leaf = candidate.lower().rpartition(".")
        words = known_leaf.split("_")
        if leaf == known_leaf:
            score = 1.0
        elif len(words) > 1 and leaf == "".join(word[:1] for word in words):
            score = 0.95
        else:
            by_word = max(SequenceMatcher(None, leaf, word).ratio() for word in words)
            score = max(0.8 * by_word, SequenceMatcher(None, leaf, known_leaf).ratio())
        return score + 0.2 * SequenceMatcher(None, section, known_section).ratio(), score

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best)[1] >= NEAR else None


def hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a sentence about an unknown name: "; the nearest is NAME", or "" if none is similar."""
    found = nearest(name, known)
    return "" if found is None else f"; the nearest is {prefix}{found}"
