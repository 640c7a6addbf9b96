"""Fields of shared memory, each declared once: name, shape, dtype, meaning and writer.

A class declares what it shares, as the configuration declares its keys:

    @shared_fields
    class Counters:
        frames = int64(("W",), "transitions collected", by="its worker")

        def __init__(self, num_workers: int) -> None:
            allocate(self, W=num_workers)

Its memory, the views on it, its pickling to other processes and its documentation (`help(Counters)`) follow from that.
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

Shape = Sequence[int | str]  # a letter is one of the sizes given to `allocate`
WIDTH = 120  # of documentation, in characters
Board = TypeVar("Board")


@dataclass(frozen=True)
class Field:
    """A field of a board.

    Args:
        shape: numbers, and letters for sizes that are known when the memory is allocated.
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
        """The field's line in the documentation of its class."""
        dtype, shape = str(self.dtype).removeprefix("torch."), ", ".join(map(str, self.shape))
        return f"{name}: {dtype} [{shape}], {self.meaning}; {self.by}."


def int64(shape: Shape, meaning: str, *, by: str) -> NDArray[np.int64]:
    """Declare a NumPy field of integers."""
    return cast("NDArray[np.int64]", Field(shape, torch.int64, meaning, by))


def float64(shape: Shape, meaning: str, *, by: str) -> NDArray[np.float64]:
    """Declare a NumPy field of floats."""
    return cast("NDArray[np.float64]", Field(shape, torch.float64, meaning, by))


def uint8(shape: Shape, meaning: str, *, by: str) -> NDArray[np.uint8]:
    """Declare a NumPy field of bytes."""
    return cast("NDArray[np.uint8]", Field(shape, torch.uint8, meaning, by))


def float32_tensor(shape: Shape, meaning: str, *, by: str) -> Tensor:
    """Declare a field that is a torch tensor, as weights and gradients are."""
    return cast("Tensor", Field(shape, torch.float32, meaning, by, tensor=True))


def shared_fields(board: type[Board]) -> type[Board]:
    """Class decorator: collect and document the declared fields, and pickle instances by their shared memory."""
    untyped = cast(Any, board)
    declared = {name: field for name, field in vars(board).items() if isinstance(field, Field)}
    for name in declared:  # an attribute of the class would slow down reading that of an instance
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
    """Give a board its memory, and its fields as attributes.

    Args:
        board: of a class that `shared_fields` decorates.
        block: memory from `shared_blocks`; None: new, zeroed memory.
        sizes: values of the letters in the shapes.
    """
    fields = fields_of(board, **sizes)
    board._sizes, board._block = sizes, shared_block(fields) if block is None else block
    for name, view in views_of(board._block, fields).items():
        setattr(board, name, view if board.declared[name].tensor else view.numpy())


def block_of(board: Any) -> Tensor:
    """The memory of a board, uint8 [bytes]."""
    return board._block
