"""What the games share: which games of a batch a call is about, and refusing what cannot be."""

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
        EnvError: it names them, or the one that was meant.
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
    """What every game's `observe` begins with.

    Args:
        game: gives `to_move`, `over` and `action_mask`.
        every: its games, int64 [N].
        buffers: its arrays for what is seen, [N, ...].
        rows: the games that are looked at, int64 [M]; None: all.
        seats: who looks, int64 [M]; None: who is to move.

    Returns:
        the games; the seats; who of them decides now, bool [M]; and the first M rows of the buffers, in which
        `action_mask` is written: all legal for a seat that does not decide.
    """
    rows = every if rows is None else rows
    seats = game.to_move.take(rows) if seats is None else seats
    seen = {name: array[: len(rows)] for name, array in buffers.items()}
    deciding = (seats == game.to_move.take(rows)) & ~game.over.take(rows)
    np.logical_or(game.action_mask.take(rows, 0), ~deciding[:, None], out=seen["action_mask"])
    return rows, seats, deciding, seen


def chosen(name: str, action: NDArray[np.int64], mask: NDArray[np.bool_], rows: Rows) -> NDArray[np.int64]:
    """The actions int64 [M] of these games.

    Raises:
        EnvError: one is not legal.
    """
    count = mask.shape[1]
    taken = action if len(rows) == len(action) else action.take(rows)
    # Both ends, as an index beyond a row would read the next game's mask.
    outside = (taken < 0) | (taken >= count)
    if outside.any() or not mask.reshape(-1).take(rows * count + taken).all():
        legal = ~outside & mask[rows, np.where(outside, 0, taken)]
        first = int(np.flatnonzero(~legal)[0])
        raise EnvError(
            f"{name}: action {taken[first]} is illegal in game {rows[first]}; "
            f"its action_mask allows {', '.join(map(str, np.flatnonzero(mask[rows[first]])))}."
        )
    return taken
