"""What a key of the configuration takes stands in its field; and the words in which a wrong one is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from difflib import SequenceMatcher
from typing import Any

NEAR = 0.6  # likeness from which on a name is taken for a slip of another
SHOWN = 60  # characters of a value that a sentence repeats


class ConfigError(ValueError):
    """A configuration that cannot be run; its text is one sentence for the user."""


def one_of(default: str, *others: str) -> Any:
    """A text field that takes one of a few values, the first of which is its default."""
    return field(default=default, metadata={"choices": (default, *others)})


def number(default: float | None, low: float, high: float, usual: tuple[float, float] | None = None) -> Any:
    """A field that takes numbers from `low` to `high`, both included; `usual` are those that need no warning.

    Whatever lies outside the range makes no run: it overflows, has no end, or changes nothing in float32.
    """
    return field(default=default, metadata={"range": (low, high), "usual": usual or (low, high)})


def numbers(default: list[int], low: int, high: int, usual: tuple[int, int] | None = None) -> Any:
    """A list of such numbers."""
    return field(default_factory=lambda: list(default), metadata={"range": (low, high), "usual": usual or (low, high)})


def bounds_text(low: float, high: float) -> str:
    """`from 1e-08 to 1`; whole numbers in digits, so that they can be typed."""
    return f"from {plain(low)} to {plain(high)}"


def plain(value: float) -> str:
    """A number as it can be typed for a key of its type."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def shown(value: Any) -> str:
    """A value for a sentence: on one line, without control characters, and cut where it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of about {value.bit_length() * 3 // 10} digits"  # Python refuses to print 4,300
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a wrong one most likely meant: by its last part, that part's initials (lr) or spelling.

    None where nothing is near: a guess that is far off sends the user the wrong way.
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
    """`; the nearest is NAME`, to be put behind a sentence that refuses a name; nothing where none is near."""
    found = nearest(name, known)
    return "" if found is None else f"; the nearest is {prefix}{found}"
