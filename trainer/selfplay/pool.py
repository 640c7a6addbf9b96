"""The pool of self-play in the main process: snapshots of the policy in shared memory, once for all workers.

The main process adds snapshots and sets how often each kind of opponent is drawn. Workers
(`trainer.selfplay.opponents`) copy the weights of the few snapshots that they play against, and count the results.
No messages are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config.run_files import RunFolder
from trainer.config.sections import Config, OpponentsConfig
from trainer.memory.boards import MAIN, WORKER
from trainer.memory.fields import allocate, float32_tensor, float64, int64, shared_fields
from trainer.reading import ReadError
from trainer.run_folder import checkpoint, manifest
from trainer.run_folder import folder as run_folder
from trainer.run_folder.checkpoint import named_weights, policy_weights
from trainer.telemetry.metrics import wilson

RANDOM, SCRIPTED, LATEST, SNAPSHOTS, CHECKPOINTS = range(5)
KINDS = ("random", "scripted", "latest", "snapshots", "checkpoints")
WIN, DRAW, LOSS = range(3)
PRIOR = 1.0  # games, half of them won, that are added to those against each snapshot


@shared_fields
class PoolBoard:
    """The shared memory of an `OpponentPool` with S slots.

    Args:
        slots: S.
        numel: N, number of weights.
        num_workers: W.
    """

    weights = float32_tensor(("S", "N"), "of the slots", by=MAIN)
    version = int64(("S",), "0 for an empty slot, odd while the slot is written", by=MAIN)
    frames = int64(("S",), "at which the snapshot was taken, 0 for checkpoints", by=MAIN)
    chances = float64(("S",), "how often each snapshot is drawn among the snapshots, and each checkpoint among the "
                      "checkpoints", by=MAIN)  # fmt: skip
    mixture = float64((len(KINDS),), "how often each of `KINDS` is drawn", by=MAIN)
    results = int64(("W", "R", 3), "games that the learner won, drew and lost against random, scripted, latest and "
                    "each slot: R is 3 + S", by=WORKER)  # fmt: skip

    def __init__(self, slots: int, numel: int, num_workers: int) -> None:
        allocate(self, S=slots, N=numel, W=num_workers, R=3 + slots)


class OpponentPool:
    """Snapshots of the policy and the results of games against them, in shared memory; children get it by pickle.

    The first `size` slots hold snapshots or nothing; C more slots hold checkpoints of other runs, which never change.

    Args:
        config: the section `opponents`.
        numel: number of weights.
        num_workers: W.
        checkpoints: weights of other runs, float32 [numel] each.

    Attributes:
        size: number of slots for snapshots.
        board: the shared memory; its fields are attributes of the pool too.
    """

    def __init__(
        self, config: OpponentsConfig, numel: int, num_workers: int, checkpoints: Sequence[Tensor] = ()
    ) -> None:
        self.config, self.size, self._done = config, config.pool_size, 0.0
        self.written: set[str] = set()  # files that this process has written or loaded
        slots = self.size + len(checkpoints)
        self.board = PoolBoard(slots, numel, num_workers)
        self._open()
        for slot, flat in enumerate(checkpoints, self.size):
            self.weights[slot].copy_(flat)
            self.version[slot] = 2
        self.rebalance()

    def _open(self) -> None:
        board = self.board
        self.weights, self.version, self.frames = board.weights, board.version, board.frames
        self.chances, self.mixture, self.results = board.chances, board.mixture, board.results

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("config", "size", "_done", "board")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        self.written = set()

    def __len__(self) -> int:
        return int((self.version[: self.size] > 0).sum())

    def add(self, flat: Tensor, frames: int) -> None:
        """Add a snapshot: weights, float32 [numel], taken at `frames`. A full pool drops its oldest one."""
        empty = np.flatnonzero(self.version[: self.size] == 0)
        slot = int(empty[0]) if len(empty) else int(self.frames[: self.size].argmin())
        self.version[slot] += 1  # odd: a worker that is copying it starts again
        self.weights[slot].copy_(flat)
        self.frames[slot] = frames
        self.results[:, 3 + slot] = 0
        self.version[slot] += 1
        self.rebalance()

    def rebalance(self, done: float | None = None) -> None:
        """Set how often each opponent is drawn, by the results so far.

        Args:
            done: share of the budget that is used up, 0 to 1; None: that of the call before.
        """
        self._done = self._done if done is None else min(1.0, done)
        known = self.version > 0
        chances = known.astype(np.float64)
        if self.config.sampling == "last":
            snapshots = (self.frames + known)[: self.size]
            chances[np.argsort(snapshots)[: -self.config.last_k]] = 0.0
        elif self.config.sampling == "pfsp":  # (1 - win rate) ** 2, Vinyals et al. 2019
            games = self.results[:, 3:].sum(0)
            rate = (games[:, WIN] + games[:, DRAW] / 2 + PRIOR / 2) / (games.sum(1) + PRIOR)
            chances *= (1.0 - rate) ** 2 + 1e-3
        for part in (slice(None, self.size), slice(self.size, None)):
            if chances[part].any():  # else none of this kind is drawn
                self.chances[part] = chances[part] / chances[part].sum()
        self.mixture[:] = self._mixture()

    def _mixture(self) -> np.ndarray:
        weights = np.array([_weight(self.config, kind, self._done) for kind in KINDS], np.float64)
        if not len(self):  # no snapshot yet
            weights[LATEST] += weights[SNAPSHOTS]
            weights[SNAPSHOTS] = 0.0
        return weights / weights.sum()

    def copy(self, slot: int, into: Tensor) -> int:
        """Copy a slot's weights into a tensor, float32 [numel], and return their version."""
        while True:
            version = int(self.version[slot])
            into.copy_(self.weights[slot])
            if version % 2 == 0 and int(self.version[slot]) == version:
                return version

    def metrics(self) -> dict[str, float]:
        """Metrics of a row: for each kind of opponent the results of `score`; and the number of snapshots."""
        games = self.results.sum(0)
        by_kind = {kind: games[i] for i, kind in enumerate(KINDS[:3])}
        by_kind |= {"snapshots": games[3 : 3 + self.size].sum(0), "checkpoints": games[3 + self.size :].sum(0)}
        found: dict[str, float] = {}
        for kind, counts in by_kind.items():
            if counts.any():
                found |= {f"{key}_{kind}": value for key, value in score(counts).items()}
        return found | {"pool_size": len(self)}

    def table(self) -> list[dict[str, Any]]:
        """Results against each opponent, each snapshot and each checkpoint: games won, drawn, lost, and `score`."""
        games, known = self.results.sum(0), np.flatnonzero(self.version[: self.size] > 0)
        lines: list[tuple[dict[str, Any], np.ndarray]] = [
            ({"kind": kind, "frames": None}, games[i]) for i, kind in enumerate(KINDS[:3])
        ]
        for slot in known[self.frames[known].argsort()]:
            lines.append(({"kind": "snapshot", "frames": int(self.frames[slot])}, games[3 + slot]))
        for slot, path in enumerate(self.config.checkpoint_paths, self.size):
            lines.append(({"kind": "checkpoint", "frames": None, "path": path}, games[3 + slot]))
        return [
            who
            | dict(zip(("won", "drawn", "lost"), counts.tolist(), strict=True))
            | (score(counts) if counts.any() else {})
            for who, counts in lines
        ]

    def save(self, folder: Path) -> None:
        """Write each slot that has no file yet into one, and the results of the games into results.json.

        Raises:
            OSError: a file could not be written.
        """
        others = {f"checkpoint_{slot - self.size}.pt": slot for slot in range(self.size, len(self.version))}
        for name, slot in {**self._files(), **others}.items():
            known = name in self.written or name in others  # else it may be a later file, from before a resume
            if not known or not (folder / name).exists():
                state = {"weights": self.weights[slot].clone(), "frames": int(self.frames[slot])}
                checkpoint.write_aside(state, folder / name)
                self.written.add(name)
        folder.mkdir(exist_ok=True)
        run_folder.write_json(folder / "results.json", {"opponents": self.table()})

    def forget(self, folder: Path) -> None:
        """Remove the files of snapshots that are no longer in the pool, once no checkpoint refers to them."""
        known = self._files()
        manifest.remove(*(path for path in folder.glob("snapshot_*.pt") if path.name not in known))

    def _files(self) -> dict[str, int]:
        return {
            f"snapshot_{frames:012d}.pt": slot
            for slot, frames in enumerate(self.frames[: self.size].tolist())
            if self.version[slot]
        }

    def state_dict(self) -> dict[str, Any]:
        """Versions, frames and results of all slots; the weights are in the files of `save`."""
        arrays = {
            "words": np.stack([self.version, self.frames]),
            "chances": np.concatenate([self.chances, self.mixture]),
            "results": self.results.copy(),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def load(self, folder: Path, kept: dict[str, Any] | None, warn: Callable[[str], None]) -> None:
        """Load the pool of a run that is resumed.

        Args:
            folder: of the snapshots' files. Those that `kept` does not list were written after the checkpoint, and are
                removed: another snapshot may now be taken at the same frames.
            kept: from `state_dict`; None: the newest snapshots in `folder` are loaded.
            warn: takes a sentence about each snapshot that is damaged or missing.
        """
        if kept is None:
            load_newest(self, folder, warn)
            return
        words, chances, results = (kept[name].numpy() for name in ("words", "chances", "results"))
        checkpoints = self.version[self.size :].copy()
        self.version[:], self.frames[:] = words
        self.version[self.size :] = checkpoints
        self.results[:] = 0
        if results.shape == self.results.shape:
            self.results[:] = results
        else:  # the number of workers has changed
            self.results[0] = results.sum(0)
        self.forget(folder)
        for name, slot in self._files().items():
            try:
                self.weights[slot].copy_(policy_weights(folder / name, self.weights.shape[1]))
                self.written.add(name)
            except ReadError as error:
                warn(f"{error}; the other snapshots are used")
                self.version[slot] = self.frames[slot] = 0
                self.results[:, 3 + slot] = 0
        if np.array_equal([self.version, self.frames], words):
            self.chances[:], self.mixture[:] = np.split(chances, [len(self.chances)])
        else:
            self.rebalance()


class NoPool:
    """In place of an `OpponentPool` where nobody is played against."""

    def add(self, flat: Tensor, frames: int) -> None:
        """Do nothing: there are no snapshots."""

    def rebalance(self, done: float) -> None:
        """Nobody is played against."""

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def save(self, folder: Path) -> None:
        """There is nothing to keep."""

    def forget(self, folder: Path) -> None:
        """There is nothing to remove."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, folder: Path, kept: dict[str, Any] | None, warn: Callable[[str], None]) -> None:
        """There is nothing to go on from."""


def load_newest(pool: OpponentPool, folder: Path, warn: Callable[[str], None]) -> None:
    """Fill a pool with the newest snapshots in `folder`; `warn` takes a sentence about each one that is damaged."""
    paths = sorted(folder.glob("snapshot_*.pt"))
    if paths:
        pool.version[: pool.size] = pool.frames[: pool.size] = 0
    for path in paths[-pool.size :]:
        try:
            weights, frames = policy_weights(path, pool.weights.shape[1]), checkpoint.load(path, "frames")["frames"]
        except ReadError as error:
            warn(f"{error}; the other snapshots are used")
            continue
        pool.add(weights, frames)
        pool.written.add(path.name)


def open_pool(config: Config, run_dir: Path, numel: int, num_workers: int) -> OpponentPool:
    """The pool at the start of a run, with `opponents.checkpoint_paths`, and `opponents.start_from` as first snapshot.

    Args:
        config: of the run.
        run_dir: the run folder; a run that is resumed has copies of the checkpoints there.
        numel: number of weights.
        num_workers: W.

    Raises:
        ConfigError: a file could not be read, or is of another network.
    """
    section, kept = config.opponents, RunFolder(run_dir).pool
    others = []
    for number, path in enumerate(section.checkpoint_paths):
        copy = kept / f"checkpoint_{number}.pt"
        others.append(named_weights(copy if copy.exists() else Path(path), numel, "opponents.checkpoint_paths"))
    pool = OpponentPool(section, numel, num_workers, others)
    if section.start_from is not None and not any(kept.glob("snapshot_*.pt")):
        pool.add(named_weights(Path(section.start_from), numel, "opponents.start_from"), 0)
    return pool


def score(counts: np.ndarray) -> dict[str, float]:
    """Share of games won, a draw counted as half, its 95 % interval, and the number of games.

    Args:
        counts: games won, drawn and lost, int64 [3].
    """
    points, games = float(counts[WIN] + counts[DRAW] / 2), int(counts.sum())
    low, high = wilson(points, games)
    return {"score": points / games, "score_low": low, "score_high": high, "games": games}


def _weight(config: OpponentsConfig, kind: str, done: float) -> float:
    """How often a kind of opponent is drawn when the share `done` of the budget is used up."""
    start, end = getattr(config, kind), getattr(config, f"{kind}_end")
    return float(start if end is None else start + (end - start) * done)
