"""Shared memory for many fields in one block, which is one open file of every process that has it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Fields = dict[str, tuple[tuple[int, ...], torch.dtype]]  # name -> shape and dtype
CACHE_LINE = 64  # bytes; fields begin on one of their own, so that writers of neighbours do not slow one another


def shared_block(fields: Fields) -> Tensor:
    """Zeroed shared memory for all of `fields`, uint8 [bytes].

    One block for all of them: a process is handed no more than 253 open files at its start, and each block is one.
    """
    return shared_blocks([fields])[0]


def shared_blocks(each: Sequence[Fields]) -> list[Tensor]:
    """The same for several boards, which stay one open file together: 162 agents have 324 of them."""
    sizes = [bytes_of(fields) for fields in each]
    return list(torch.zeros(sum(sizes), dtype=torch.uint8).share_memory_().split(sizes))


def bytes_of(fields: Fields) -> int:
    """Bytes of a board's block."""
    return sum(_size(*field) for field in fields.values())


def views_of(block: Tensor, fields: Fields) -> dict[str, Tensor]:
    """The fields of a block, as tensors on its memory."""
    views, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        length = math.prod(shape) * dtype.itemsize
        views[name] = block[offset : offset + length].view(dtype).view(shape)
        offset += _size(shape, dtype)
    return views


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return -(-max(1, math.prod(shape) * dtype.itemsize) // CACHE_LINE) * CACHE_LINE
