"""The replay's rows on the run's disk, for resuming: only what was written since the last time is copied.

A column's file has the storage's own layout, so that a ring's new rows lie in one piece, or in two where it wraps. The
files may be ahead of the newest checkpoint, when a process was killed between the two: `upto.json`, written before
any row is, says which older rows may be gone. Nobody waits: collectors go on writing meanwhile, and rows that they
overtook are not counted as kept.

`checksums.bin` has the CRC-32 of what each worker wrote in each vector step, over all columns: one number for each
slot of its ring, written and read like a column.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from torchrl.data import LazyMemmapStorage

from trainer.reading import ReadError, read_json
from trainer.replay.streams import StreamLayout, close_episodes
from trainer.run_folder import manifest
from trainer.run_folder.folder import write_json

AT_ONCE = 65_536  # rows that are read at once
CHUNK_BYTES = 2**20  # that are copied and written at once, at least one vector step
CHECKSUMS = "checksums"


class ReplayCopy:
    """Keeps a copy of an agent's replay in `folder`.

    Args:
        folder: made when first needed; a folder in it for each layout.
        storage: of the replay.
        streams: its layout.
        cursor: int64 [S], rows published in each stream; shared with the workers.
        behind: rows before a start that it needs (frame stack - 1).
        oldest: int64 [S], the oldest row of each stream that is whole in the storage; shared.
    """

    def __init__(
        self,
        folder: Path,
        storage: LazyMemmapStorage,
        streams: StreamLayout,
        cursor: np.ndarray,
        behind: int = 0,
        oldest: np.ndarray | None = None,
    ) -> None:
        self._oldest = np.zeros(streams.num_streams, np.int64) if oldest is None else oldest
        self.beat: Callable[[], None] = lambda: None  # called now and then, as saving may take long
        self._folder, self.streams, self.cursor, self.behind = folder, streams, cursor, behind
        self.columns = {name: column.numpy() for name, column in storage._storage.items()}
        self._upto = np.zeros(streams.num_workers, np.int64)  # rows of each worker's streams that are on the disk
        self._first = np.zeros(streams.num_workers, np.int64)  # the oldest of them that is whole
        self.bytes_written = 0  # by the last save

    def save(self) -> dict[str, Any]:
        """Bring the files up to now; what a checkpoint must keep in order to find the rows again.

        Raises:
            OSError: the disk refuses.
        """
        streams, ring = self.streams, self.streams.ring
        folder = self._of(streams)
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
        upto = self.cursor[:: streams.envs_per_worker].copy()
        manifest.add(*(folder / f"{name}.bin" for name in (*self.columns, CHECKSUMS)))
        write_json(folder / "upto.json", {"upto": upto.tolist()})
        self.bytes_written = 0
        blocks = {name: step_bytes(column, streams) for name, column in self.columns.items()}
        with ExitStack() as opened:
            files = {name: self._open(opened, folder, name, column.nbytes) for name, column in self.columns.items()}
            sums = self._open(opened, folder, CHECKSUMS, 4 * streams.num_workers * ring)
            for worker in range(streams.num_workers):
                self.beat()
                # The last two may have been closed since: `close_episodes`.
                begin = max(int(self._upto[worker]) - 2, int(upto[worker]) - ring, 0)
                for slot, count in chunks(begin, int(upto[worker]), ring, blocks):
                    # A copy, as a collector may overtake: what is summed up is what is written.
                    rows = {name: block[worker, slot : slot + count].copy() for name, block in blocks.items()}
                    for name, block in rows.items():
                        self._write(files[name], block, (worker * ring + slot) * block.shape[1])
                    self._write(sums, checksums(rows), (worker * ring + slot) * 4)
            for file in (*files.values(), sums):
                self.beat()
                os.fsync(file)
        self._upto = upto
        overtaken = self.cursor[:: streams.envs_per_worker] - ring + 1  # the row behind the newest may be half written
        self._first = np.maximum.reduce([self._first, overtaken, self._oldest[:: streams.envs_per_worker]])
        return {"upto": upto.tolist(), "first": self._first.tolist(), "streams": asdict(streams), CHECKSUMS: True}

    def forget_other_layouts(self) -> None:
        """Once a checkpoint names this layout, the rows of those before it are of no use."""
        manifest.remove_below(self._folder, but=self._of(self.streams))

    def _open(self, opened: ExitStack, folder: Path, name: str, size: int) -> int:
        file = os.open(folder / f"{name}.bin", os.O_RDWR | os.O_CREAT, 0o644)
        opened.callback(os.close, file)
        if os.fstat(file).st_size != size:  # new, or made anew since the user removed it: all rows are missing
            os.ftruncate(file, size)
            self._upto[:] = 0
        return file

    def _write(self, file: int, rows: np.ndarray, offset: int) -> None:
        left = memoryview(cast(Any, rows.view(np.uint8).reshape(-1)))
        while left:
            written = os.pwrite(file, left, offset)
            self.bytes_written += written
            left, offset = left[written:], offset + written

    def _of(self, streams: StreamLayout) -> Path:
        return self._folder / streams.folder

    def load(self, kept: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Fill the storage and set the cursors; other workers, environments or capacities are no hindrance.

        Args:
            kept: from `save`.

        Returns:
            For each storage row, the row that it was when it was saved, or -1 where it is empty, int64 [rows]; and for
            each stream the time of its oldest whole row, int64 [S].

        Raises:
            OSError, ValueError, ReadError: the files are gone, cut off or damaged.
        """
        old, streams = StreamLayout(**kept["streams"]), self.streams
        upto = np.array(kept["upto"])
        written = self._written(old, upto)
        first = np.clip(np.maximum(kept["first"], written - old.ring + 1), 0, upto)
        stored: dict[str, np.ndarray] = {
            name: np.memmap(self._of(old) / f"{name}.bin", column.dtype, "r", shape=(old.rows, *column.shape[1:]))
            for name, column in self.columns.items()
        }
        if kept.get(CHECKSUMS):  # those of format 1 have none
            self._verify(old, stored, first, upto)
        if old == streams:
            rows, seams = self._same(upto, first), np.zeros((0, 2), np.int64)
            self._upto, self._first = upto if kept.get(CHECKSUMS) else 0 * upto, first
            oldest = np.repeat(first, streams.envs_per_worker)
            cursor = np.repeat(upto, streams.envs_per_worker)
        else:
            rows, seams, length = self._relaid(old, upto, first)
            oldest, cursor = np.zeros(streams.num_streams, np.int64), np.full(streams.num_streams, length)
        for name, column in self.columns.items():
            for begin in range(0, len(rows), AT_ONCE):
                part = rows[begin : begin + AT_ONCE]
                column[begin : begin + AT_ONCE][part >= 0] = stored[name][part[part >= 0]]
        self._close_seams(seams)
        self.cursor[:] = cursor
        return rows, oldest

    def _written(self, old: StreamLayout, upto: np.ndarray) -> np.ndarray:
        """Up to where rows of each worker may have been written after the checkpoint, int64 [W]."""
        path = self._of(old) / "upto.json"
        found = read_json(path).get("upto")
        if not isinstance(found, list) or not all(type(time) is int and 0 <= time < 2**62 for time in found):
            raise ReadError(f"{path} is damaged (it holds no numbers of rows)")
        if len(found) != len(upto) or (np.array(found) < upto).any():
            raise ReadError(f"{path} is damaged (it is of another checkpoint)")
        return np.array(found)

    def _verify(self, old: StreamLayout, stored: dict[str, np.ndarray], first: np.ndarray, upto: np.ndarray) -> None:
        """Read every row that is wanted once, and compare what was written with what is there.

        Raises:
            OSError, ValueError: the checksums are gone, or a row is another one.
        """
        folder, blocks = self._of(old), {name: step_bytes(column, old) for name, column in stored.items()}
        sums = np.memmap(folder / f"{CHECKSUMS}.bin", np.uint32, "r", shape=(old.num_workers, old.ring))
        for worker in range(old.num_workers):
            for slot, count in chunks(int(first[worker]), int(upto[worker]), old.ring, blocks):
                found = checksums({name: block[worker, slot : slot + count] for name, block in blocks.items()})
                wrong = np.flatnonzero(found != sums[worker, slot : slot + count])
                if len(wrong):
                    raise ValueError(f"{folder} is damaged: vector step {slot + wrong[0]} of worker {worker}")

    def _same(self, upto: np.ndarray, first: np.ndarray) -> np.ndarray:
        streams = self.streams
        own = np.arange(streams.rows).reshape(streams.num_workers, streams.ring, -1)
        rows = np.full(own.shape, -1)
        for worker in range(streams.num_workers):
            for slot, count in pieces(int(first[worker]), int(upto[worker]), streams.ring):
                rows[worker, slot : slot + count] = own[worker, slot : slot + count]
        return rows.ravel()

    def _relaid(self, old: StreamLayout, upto: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """All old streams one behind the other, cut into as many equal pieces as there are streams now.

        Returns:
            As `load`; the pairs (stream, time) [n, 2] at which a piece of another begins; rows of each stream.
        """
        parts = []
        for stream in range(old.num_streams):
            time = np.arange(first[stream // old.envs_per_worker], upto[stream // old.envs_per_worker])
            parts.append(old.index(np.full(len(time), stream), time))
        sequence, ends = np.concatenate(parts), np.cumsum([len(part) for part in parts])
        streams = self.streams
        share = len(sequence) // streams.num_streams
        length = min(streams.ring, share)
        rows, seams = np.full(streams.rows, -1), []
        for stream in range(streams.num_streams):
            begin = (stream + 1) * share - length  # the back of its share: a stream's newest rows are there
            time = np.arange(length)
            rows[streams.index(np.full(length, stream), time)] = sequence[begin : begin + length]
            seams += [(stream, 0), *((stream, end - begin) for end in ends if 0 < end - begin < length)]
        return rows, np.array(seams, np.int64).reshape(-1, 2), length

    def _close_seams(self, seams: np.ndarray) -> None:
        """No transition leads over a seam, and no stack looks back over it or over a stream's begin."""
        stream, time = seams.T
        close_episodes(self.columns, self.streams, stream, time)
        for later in range(self.behind):
            self.columns["final"][self.streams.index(stream, time + later)] = True


def step_bytes(column: np.ndarray, streams: StreamLayout) -> np.ndarray:
    """A view of a column, [rows, ...], as the bytes of each vector step, uint8 [W, ring, bytes]."""
    return column.reshape(streams.num_workers, streams.ring, -1).view(np.uint8)


def checksums(rows: dict[str, np.ndarray]) -> np.ndarray:
    """The CRC-32 of each vector step over all columns, uint32 [T].

    Args:
        rows: bytes of each column, uint8 [T, bytes].
    """
    joined = np.concatenate(list(rows.values()), axis=1)
    return np.array([zlib.crc32(step) for step in joined], np.uint32)


def chunks(begin: int, end: int, ring: int, blocks: dict[str, np.ndarray]) -> Iterator[tuple[int, int]]:
    """`pieces`, cut into such as have `CHUNK_BYTES`; `blocks` from `step_bytes`."""
    most = max(1, CHUNK_BYTES // sum(block.shape[2] for block in blocks.values()))
    for slot, count in pieces(begin, end, ring):
        for part in range(slot, slot + count, most):
            yield part, min(most, slot + count - part)


def pieces(begin: int, end: int, ring: int) -> list[tuple[int, int]]:
    """The places of the times [begin, end), at most a ring full of them, as (first slot, number of slots)."""
    if end <= begin:
        return []
    slot, count = begin % ring, end - begin
    if slot + count <= ring:
        return [(slot, count)]
    return [(slot, ring - slot), (0, slot + count - ring)]
