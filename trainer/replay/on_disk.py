"""A copy of the replay's rows in the run folder, for resuming; each save writes only the rows that are new.

The file of a column has the layout of the storage, so the new rows of a ring are one piece, or two where it wraps. If a
process is killed between saving the rows and the checkpoint, the files are newer than the checkpoint: `upto.json`,
written before the rows, tells which older rows may be overwritten. Collectors go on writing during a save; rows that
they overwrite meanwhile do not count as saved.

`checksums.bin` has a CRC-32 for each worker and vector step, over all columns: one number for each slot of the ring,
written and read like a column.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
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

AT_ONCE = 65_536  # rows that are read in one piece
CHUNK_BYTES = 2**20  # bytes that are copied and written in one piece, but at least one vector step
CHECKSUMS = "checksums"


class ReplayCopy:
    """Saves an agent's replay into a folder, and loads it.

    Args:
        folder: made at the first save; it has a folder for each layout.
        storage: of the replay.
        streams: layout of the storage.
        cursor: int64 [S], rows published in each stream; shared with the workers.
        behind: rows before a transition that it needs (frame stack - 1).
        oldest: int64 [S], time of the oldest valid row of each stream; shared.
        block: rows of a stream that its writer may be overwriting at a time.
    """

    def __init__(
        self,
        folder: Path,
        storage: LazyMemmapStorage,
        streams: StreamLayout,
        cursor: np.ndarray,
        behind: int = 0,
        oldest: np.ndarray | None = None,
        block: int = 1,
    ) -> None:
        self._block = block
        self._oldest = np.zeros(streams.num_streams, np.int64) if oldest is None else oldest
        self.beat: Callable[[], None] = lambda: None  # sign of life, called during a long save
        self._folder, self.streams, self.cursor, self.behind = folder, streams, cursor, behind
        self.columns = {name: column.numpy() for name, column in storage._storage.items()}
        self._upto = np.zeros(streams.num_workers, np.int64)  # rows of each worker's streams that are on the disk
        self._first = np.zeros(streams.num_workers, np.int64)  # the oldest valid one of them
        self.bytes_written = 0  # by the last save

    def save(self) -> dict[str, Any]:
        """Write the new rows into the files.

        Returns:
            What a checkpoint needs to find the rows again, for `load`.

        Raises:
            OSError: a file could not be written.
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
                # The last two are written again, as `close_episodes` may have changed them.
                begin = max(int(self._upto[worker]) - 2, int(upto[worker]) - ring, 0)
                for slot, count in chunks(begin, int(upto[worker]), ring, blocks):
                    # A copy, as a collector may write: the checksum must be that of the written bytes.
                    rows = {name: block[worker, slot : slot + count].copy() for name, block in blocks.items()}
                    for name, block in rows.items():
                        self._write(files[name], block, (worker * ring + slot) * block.shape[1])
                    self._write(sums, checksums(rows), (worker * ring + slot) * 4)
            for file in (*files.values(), sums):
                self.beat()
                os.fsync(file)
        self._upto = upto
        overtaken = self.cursor[:: streams.envs_per_worker] - ring + self._block
        self._first = np.maximum.reduce([self._first, overtaken, self._oldest[:: streams.envs_per_worker]])
        return {"upto": upto.tolist(), "first": self._first.tolist(), "streams": asdict(streams), CHECKSUMS: True}

    def forget_other_layouts(self) -> None:
        """Remove the rows of other layouts, once a checkpoint has this layout."""
        manifest.remove_below(self._folder, but=self._of(self.streams))

    def _open(self, opened: ExitStack, folder: Path, name: str, size: int) -> int:
        file = os.open(folder / f"{name}.bin", os.O_RDWR | os.O_CREAT, 0o644)
        opened.callback(os.close, file)
        if os.fstat(file).st_size != size:  # it is new, so all rows are missing
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
        """Fill the storage and set the cursors; the numbers of workers, environments and rows may have changed.

        Args:
            kept: from `save`.

        Returns:
            For each row of the storage, the row that it was at the save, or -1 if it is empty, int64 [rows]; and for
            each stream the time of its oldest valid row, int64 [S].

        Raises:
            OSError, ValueError, ReadError: a file is missing, cut off or damaged.
        """
        columns = {name: (column.shape[1:], column.dtype.name) for name, column in self.columns.items()}
        old, stored, first, upto = open_copy(self._folder, kept, columns)
        streams = self.streams
        if old == streams:
            rows, seams = self._same(upto, first), np.zeros((0, 2), np.int64)
            self._upto, self._first = upto if kept.get(CHECKSUMS) else 0 * upto, first
            oldest = np.repeat(first, streams.envs_per_worker)
            cursor = np.repeat(upto, streams.envs_per_worker)
        else:
            rows, seams, length = self._relaid(old, upto, first)
            oldest, cursor = np.zeros(streams.num_streams, np.int64), np.full(streams.num_streams, length)
        self._copy(stored, rows)
        self._close_seams(seams)
        self.cursor[:] = cursor
        return rows, oldest

    def fill(self, stored: dict[str, np.ndarray]) -> int:
        """Fill an empty storage with rows in time order: each stream with an equal part, of it the newest it can hold.

        An episode that is cut at a part's end counts as truncated there, and one that begins before a part as begun
        with the part's first row.

        Args:
            stored: columns of the rows, [M, ...].

        Returns:
            Rows in the storage.
        """
        streams, count = self.streams, len(stored["final"])
        rows, seams, length = self._relaid(StreamLayout(1, 1, count), np.array([count]), np.zeros(1, np.int64))
        self._copy(stored, rows)
        if self.behind:  # parts that begin with an episode need no rows before it
            seams = seams[self.columns["age"][streams.index(*seams.T)] > 0]
        self._close_seams(seams)
        every = np.arange(streams.num_streams)
        close_episodes(self.columns, streams, every, np.full(len(every), length))
        self.cursor[:] = length
        return length * len(every)

    def _copy(self, stored: dict[str, np.ndarray], rows: np.ndarray) -> None:
        """Copy rows into the storage: into its row i the row `rows[i]`, or none where that is -1."""
        for name, column in self.columns.items():
            for begin in range(0, len(rows), AT_ONCE):
                part = rows[begin : begin + AT_ONCE]
                column[begin : begin + AT_ONCE][part >= 0] = stored[name][part[part >= 0]]

    def _same(self, upto: np.ndarray, first: np.ndarray) -> np.ndarray:
        streams = self.streams
        rows_of_streams = np.arange(streams.rows).reshape(streams.num_workers, streams.ring, -1)
        rows = np.full(rows_of_streams.shape, -1)
        for worker in range(streams.num_workers):
            for slot, count in pieces(int(first[worker]), int(upto[worker]), streams.ring):
                rows[worker, slot : slot + count] = rows_of_streams[worker, slot : slot + count]
        return rows.ravel()

    def _relaid(self, old: StreamLayout, upto: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Join all old streams, and cut them into equal pieces, one for each stream of the new layout.

        Returns:
            Rows as in `load`; pairs (stream, time), [n, 2], at which another old stream begins; rows of each stream.
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
            begin = (stream + 1) * share - length  # the end of its share, which has the newest rows of a stream
            time = np.arange(length)
            rows[streams.index(np.full(length, stream), time)] = sequence[begin : begin + length]
            seams += [(stream, 0), *((stream, end - begin) for end in ends if 0 < end - begin < length)]
        return rows, np.array(seams, np.int64).reshape(-1, 2), length

    def _close_seams(self, seams: np.ndarray) -> None:
        """End the episodes at the seams, so that no transition and no frame stack crosses one."""
        stream, time = seams.T
        close_episodes(self.columns, self.streams, stream, time)
        for later in range(self.behind):
            self.columns["final"][self.streams.index(stream, time + later)] = True


def open_copy(
    folder: Path, kept: dict[str, Any], columns: Mapping[str, tuple[tuple[int, ...], str]]
) -> tuple[StreamLayout, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Open the rows that `ReplayCopy.save` wrote into a folder.

    Args:
        folder: of the copy.
        kept: what the save returned.
        columns: shape and NumPy dtype of each column of a row.

    Returns:
        Their layout; the columns, [rows, ...], read from the disk when they are used; and for each worker the first
        and the end of the times that are there, int64 [W] each.

    Raises:
        OSError, ValueError, ReadError: a file is missing, cut off or damaged.
    """
    streams, upto = StreamLayout(**kept["streams"]), np.array(kept["upto"])
    folder = folder / streams.folder
    first = np.clip(np.maximum(kept["first"], _written(folder, upto) - streams.ring + 1), 0, upto)
    stored: dict[str, np.ndarray] = {
        name: np.memmap(folder / f"{name}.bin", dtype, "r", shape=(streams.rows, *shape))
        for name, (shape, dtype) in columns.items()
    }
    if kept.get(CHECKSUMS):  # checkpoints of format 1 have none
        _verify(folder, streams, stored, first, upto)
    return streams, stored, first, upto


def _written(folder: Path, upto: np.ndarray) -> np.ndarray:
    """The time up to which each worker's rows may have been written after the checkpoint, int64 [W]."""
    path = folder / "upto.json"
    found = read_json(path).get("upto")
    if not isinstance(found, list) or not all(type(time) is int and 0 <= time < 2**62 for time in found):
        raise ReadError(f"{path} is damaged (it holds no numbers of rows)")
    if len(found) != len(upto) or (np.array(found) < upto).any():
        raise ReadError(f"{path} is damaged (it is of another checkpoint)")
    return np.array(found)


def _verify(
    folder: Path, streams: StreamLayout, stored: dict[str, np.ndarray], first: np.ndarray, upto: np.ndarray
) -> None:
    """Read every row that is needed, and compare its checksum.

    Raises:
        OSError, ValueError: the checksums are missing, or one is wrong.
    """
    blocks = {name: step_bytes(column, streams) for name, column in stored.items()}
    sums = np.memmap(folder / f"{CHECKSUMS}.bin", np.uint32, "r", shape=(streams.num_workers, streams.ring))
    for worker in range(streams.num_workers):
        for slot, count in chunks(int(first[worker]), int(upto[worker]), streams.ring, blocks):
            found = checksums({name: block[worker, slot : slot + count] for name, block in blocks.items()})
            wrong = np.flatnonzero(found != sums[worker, slot : slot + count])
            if len(wrong):
                raise ValueError(f"{folder} is damaged: vector step {slot + wrong[0]} of worker {worker}")


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
    """As `pieces`, cut into parts of at most `CHUNK_BYTES`; `blocks` are from `step_bytes`."""
    most = max(1, CHUNK_BYTES // sum(block.shape[2] for block in blocks.values()))
    for slot, count in pieces(begin, end, ring):
        for part in range(slot, slot + count, most):
            yield part, min(most, slot + count - part)


def pieces(begin: int, end: int, ring: int) -> list[tuple[int, int]]:
    """The slots of the times [begin, end), at most `ring` of them, as pairs (first slot, number of slots)."""
    if end <= begin:
        return []
    slot, count = begin % ring, end - begin
    if slot + count <= ring:
        return [(slot, count)]
    return [(slot, ring - slot), (0, slot + count - ring)]
