"""Functions that the games share: the rows that a call is about, and the refusal of wrong settings and actions."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs.spec import EnvError

Rows = NDArray[np.int64]


def require(holds: bool, sentence: str) -> None:
    """Refuse impossible settings.

    Raises:
        EnvError: `sentence`, when it does not hold.
    """
    if not holds:
        raise EnvError(sentence)


def choice(name: str, key: str, value: Any, choices: Any) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        EnvError: the sentence lists the choices, or names a similar one.
    """
    if value not in choices:
        near = difflib.get_close_matches(str(value), [str(x) for x in choices], n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise EnvError(f"{name}: {key}={value} is none of {', '.join(map(str, choices))}{hint}")


def to_advance(every: Rows, over: NDArray[np.bool_], where: NDArray[np.bool_] | None) -> Rows:
    """The games that a step advances: those of the mask, without those that are over."""
    if where is None:
        return np.flatnonzero(~over) if over.any() else every
    return np.flatnonzero(where & ~over)


def look(
    game: Any, every: Rows, buffers: dict[str, NDArray[Any]], rows: Rows | None, seats: NDArray[np.int64] | None
) -> tuple[Rows, NDArray[np.int64], NDArray[np.bool_], dict[str, NDArray[Any]]]:
    """The first part of every game's `observe`.

    Args:
        game: has `to_move`, `over` and `action_mask`.
        every: 0 .. N - 1, int64 [N].
        buffers: arrays for the observation, [N, ...].
        rows: the games to observe, int64 [M]; None: all.
        seats: that observe, int64 [M]; None: those to move.

    Returns:
        The games; the seats; whether each seat is to move, bool [M]; and the first M rows of the buffers, with
        `action_mask` written: all True for a seat that is not to move.
    """
    rows = every if rows is None else rows
    seats = game.to_move.take(rows) if seats is None else seats
    seen = {name: array[: len(rows)] for name, array in buffers.items()}
    deciding = (seats == game.to_move.take(rows)) & ~game.over.take(rows)
    np.logical_or(game.action_mask.take(rows, 0), ~deciding[:, None], out=seen["action_mask"])
    return rows, seats, deciding, seen


def chosen(name: str, action: NDArray[np.int64], mask: NDArray[np.bool_], rows: Rows) -> NDArray[np.int64]:
    """The actions of the games `rows`, int64 [M].

    Raises:
        EnvError: one is not legal.
    """
    count = mask.shape[1]
    taken = action if len(rows) == len(action) else action.take(rows)
    # Checked first, as an index beyond a row would read the next game's mask.
    outside = (taken < 0) | (taken >= count)
    if outside.any() or not mask.reshape(-1).take(rows * count + taken).all():
        legal = ~outside & mask[rows, np.where(outside, 0, taken)]
        first = int(np.flatnonzero(~legal)[0])
        raise EnvError(
            f"{name}: action {taken[first]} is illegal in game {rows[first]}; "
            f"its action_mask allows {', '.join(map(str, np.flatnonzero(mask[rows[first]])))}."
        )
    return taken
