"""Shared memory for many fields in one block, which is one open file in every process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.config.fields import ConfigError

Fields = dict[str, tuple[tuple[int, ...], torch.dtype]]  # name -> shape and dtype
CACHE_LINE = 64  # bytes; each field begins a new one, so that the writers of two fields do not slow one another


def shared_block(fields: Fields) -> Tensor:
    """Zeroed shared memory for all fields, uint8 [bytes].

    All have one block, as each block is an open file, and a process can be given at most 253 of them at its start.
    """
    return shared_blocks([fields])[0]


def shared_blocks(each: Sequence[Fields]) -> list[Tensor]:
    """Zeroed shared memory for several boards, together one open file: 162 agents have 324 boards."""
    sizes = [bytes_of(fields) for fields in each]
    return list(shared(torch.zeros(sum(sizes), dtype=torch.uint8)).split(sizes))


def shared(tensor: Tensor) -> Tensor:
    """A tensor whose memory is moved to /dev/shm, for other processes.

    Raises:
        ConfigError: there is no room, or a limit forbids it.
    """
    try:
        return tensor.share_memory_()
    except (RuntimeError, OSError) as error:  # torch's own is a RuntimeError
        words = str(error).partition("\n")[0]
        raise ConfigError(
            f"{tensor.nbytes} bytes could not be shared in /dev/shm ({words}): make room there, or raise the limit "
            "(ulimit -f, ulimit -n)"
        ) from error


def bytes_of(fields: Fields) -> int:
    """Number of bytes of a board's block."""
    return sum(_size(*field) for field in fields.values())


def views_of(block: Tensor, fields: Fields) -> dict[str, Tensor]:
    """The fields of a block, as tensors in its memory."""
    views, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        length = math.prod(shape) * dtype.itemsize
        views[name] = block[offset : offset + length].view(dtype).view(shape)
        offset += _size(shape, dtype)
    return views


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return -(-max(1, math.prod(shape) * dtype.itemsize) // CACHE_LINE) * CACHE_LINE
