"""The replay's rows on the run's disk, for resuming: only what was written since the last time is copied.

A column's file has the storage's own layout, so that a ring's new rows lie in one piece, or in two where it wraps. The
files may be ahead of the newest checkpoint, when a process was killed between the two: ``upto.json``, written before
any row is, says which older rows may be gone. Nobody waits: collectors go on writing meanwhile, and rows that they
overtook are not counted as kept.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from torchrl.data import LazyMemmapStorage

from trainer.replay import StreamLayout, close_episodes
from trainer.run_folder import write_json

AT_ONCE = 65_536  # rows that are read at once


class ReplayCopy:
    """Keeps a copy of an agent's replay in ``folder``.

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
        folder.mkdir(parents=True, exist_ok=True)
        upto = self.cursor[:: streams.envs_per_worker].copy()
        write_json(folder / "upto.json", {"upto": upto.tolist()})
        self.bytes_written = 0
        for name, column in self.columns.items():
            self.beat()
            file = os.open(folder / f"{name}.bin", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.ftruncate(file, column.nbytes)
                for worker, block in enumerate(column.reshape(streams.num_workers, ring, -1)):
                    # The last two may have been closed since: `close_episodes`.
                    begin = max(int(self._upto[worker]) - 2, int(upto[worker]) - ring, 0)
                    end = int(upto[worker])
                    for slot, count in pieces(begin, end, ring):
                        self._write(file, block[slot : slot + count], (worker * ring + slot) * block[0].nbytes)
                os.fsync(file)
            finally:
                os.close(file)
        self._upto = upto
        overtaken = self.cursor[:: streams.envs_per_worker] - ring + 1  # the row behind the newest may be half written
        self._first = np.maximum.reduce([self._first, overtaken, self._oldest[:: streams.envs_per_worker]])
        return {"upto": upto.tolist(), "first": self._first.tolist(), "streams": asdict(streams)}

    def forget_other_layouts(self) -> None:
        """Once a checkpoint names this layout, the rows of those before it are of no use."""
        for other in self._folder.iterdir():
            if other != self._of(self.streams):
                shutil.rmtree(other)

    def _write(self, file: int, rows: np.ndarray, offset: int) -> None:
        left = memoryview(cast(Any, rows.view(np.uint8).reshape(-1)))
        while left:
            written = os.pwrite(file, left, offset)
            self.bytes_written += written
            left, offset = left[written:], offset + written

    def _of(self, streams: StreamLayout) -> Path:
        return self._folder / f"{streams.num_workers}x{streams.envs_per_worker}x{streams.ring}"

    def load(self, kept: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Fill the storage and set the cursors; other workers, environments or capacities are no hindrance.

        Args:
            kept: from :meth:`save`.

        Returns:
            For each storage row, the row that it was when it was saved, or -1 where it is empty, int64 [rows]; and for
            each stream the time of its oldest whole row, int64 [S].

        Raises:
            OSError, ValueError: the files are gone or cut off.
        """
        old, streams = StreamLayout(**kept["streams"]), self.streams
        written = np.array(json.loads((self._of(old) / "upto.json").read_text())["upto"])
        upto = np.array(kept["upto"])
        first = np.clip(np.maximum(kept["first"], written - old.ring + 1), 0, upto)
        stored = {
            name: np.memmap(self._of(old) / f"{name}.bin", column.dtype, "r", shape=(old.rows, *column.shape[1:]))
            for name, column in self.columns.items()
        }
        if old == streams:
            rows, seams = self._same(upto, first), np.zeros((0, 2), np.int64)
            self._upto, self._first = upto, first
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


def pieces(begin: int, end: int, ring: int) -> list[tuple[int, int]]:
    """The places of the times [begin, end), at most a ring full of them, as (first slot, number of slots)."""
    if end <= begin:
        return []
    slot, count = begin % ring, end - begin
    if slot + count <= ring:
        return [(slot, count)]
    return [(slot, ring - slot), (0, slot + count - ring)]
