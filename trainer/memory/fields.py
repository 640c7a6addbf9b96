"""Fields of shared memory, each declared once: name, shape, dtype, meaning and writer.

A class says what it shares as `config` says its keys:

    @shared_fields
    class Counters:
        frames = int64(("W",), "transitions collected", by="its worker")

        def __init__(self, num_workers: int) -> None:
            allocate(self, W=num_workers)

Its memory, the views on it, its way across a process border and its documentation (`help(Counters)`) come from that.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.memory.blocks import Fields, shared_block, views_of

Shape = Sequence[int | str]  # a letter is one of the sizes that :func:`allocate` is given
WIDTH = 120  # of documentation, in characters
Board = TypeVar("Board")


@dataclass(frozen=True)
class Field:
    """What a field of a board is.

    Args:
        shape: numbers, and letters for sizes that are known when the memory is made.
        dtype: of its elements.
        meaning: in words.
        by: its only writer.
        tensor: whether the attribute is a torch tensor; else it is a NumPy view.
    """

    shape: Shape
    dtype: torch.dtype
    meaning: str
    by: str
    tensor: bool = False

    def line(self, name: str) -> str:
        """Its line in a class's documentation."""
        dtype, shape = str(self.dtype).removeprefix("torch."), ", ".join(map(str, self.shape))
        return f"{name}: {dtype} [{shape}], {self.meaning}; {self.by}."


def int64(shape: Shape, meaning: str, *, by: str) -> NDArray[np.int64]:
    """Declare a NumPy field of whole numbers."""
    return cast("NDArray[np.int64]", Field(shape, torch.int64, meaning, by))


def float64(shape: Shape, meaning: str, *, by: str) -> NDArray[np.float64]:
    """Declare a NumPy field of fractions, among them seconds of `time.monotonic`."""
    return cast("NDArray[np.float64]", Field(shape, torch.float64, meaning, by))


def uint8(shape: Shape, meaning: str, *, by: str) -> NDArray[np.uint8]:
    """Declare a NumPy field of bytes."""
    return cast("NDArray[np.uint8]", Field(shape, torch.uint8, meaning, by))


def float32_tensor(shape: Shape, meaning: str, *, by: str) -> Tensor:
    """Declare a field that is a torch tensor, as weights and gradients are."""
    return cast("Tensor", Field(shape, torch.float32, meaning, by, tensor=True))


def shared_fields(board: type[Board]) -> type[Board]:
    """Class decorator: read its declarations, document them, and let it cross process borders by its memory alone."""
    untyped = cast(Any, board)
    declared = {name: field for name, field in vars(board).items() if isinstance(field, Field)}
    for name in declared:  # an instance has an array of this name; reading that is slower beside one of the class
        delattr(board, name)
    untyped.declared = declared
    lines = [
        textwrap.fill(field.line(name), WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for name, field in declared.items()
    ]
    board.__doc__ = "\n".join([f"{(board.__doc__ or '').rstrip()}\n\n    Attributes:", *lines, "    "])
    untyped.__getstate__ = lambda self: (self._sizes, self._block)
    untyped.__setstate__ = lambda self, state: allocate(self, state[1], **state[0])
    return board


def fields_of(board: Any, **sizes: int) -> Fields:
    """Names, shapes and dtypes of a board's class, or of a board, for given sizes."""
    return {
        name: (tuple(sizes[size] if isinstance(size, str) else size for size in field.shape), field.dtype)
        for name, field in board.declared.items()
    }


def allocate(board: Any, block: Tensor | None = None, **sizes: int) -> None:
    """Give a board its memory, and views on it as attributes.

    Args:
        board: of a class that `shared_fields` decorates.
        block: memory as `shared_blocks` gives it; None: zeroed memory of its own.
        sizes: of the letters in the shapes.
    """
    fields = fields_of(board, **sizes)
    board._sizes, board._block = sizes, shared_block(fields) if block is None else block
    for name, view in views_of(board._block, fields).items():
        setattr(board, name, view if board.declared[name].tensor else view.numpy())


def block_of(board: Any) -> Tensor:
    """The memory of a board, uint8 [bytes]."""
    return board._block
