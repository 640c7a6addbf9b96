"""Self-play: opponents from a pool of past selves, whose weights live once in shared memory.

The main process adds a snapshot now and then and says how often whom to play; workers copy the weights of the few that
they play against at a time, evaluate all of them in one forward pass, and count how their games end. Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs import EnvSpec
from envs.games.players import Player, random_player
from envs.selfplay import Opponents, scripted
from trainer import checkpoint, run_folder
from trainer.acting import Policy, stacked_policy
from trainer.algorithms import ALGORITHMS
from trainer.boards import WeightsReader
from trainer.checkpoint import CheckpointError
from trainer.config import Config, OpponentsConfig
from trainer.metrics import wilson

RANDOM, SCRIPTED, LATEST, SNAPSHOTS = range(4)
KINDS = ("random", "scripted", "latest", "snapshots")
WIN, DRAW, LOSS = range(3)
PRIOR = 1.0  # games against a snapshot that count as half won before there are any


class OpponentPool:
    """Past weights of the learner and what came of games against them, in shared memory; crosses process borders.

    Args:
        config: the section.
        numel: of the weights.
        num_workers: W.

    Attributes:
        weights: float32 [size, numel]; main.
        version: int64 [size], odd while a snapshot is written, 0: empty; main.
        frames: int64 [size], at which it was taken; main.
        chances: float64 [size], how often each snapshot is drawn; main.
        mixture: float64 [4], how often each of `KINDS` is drawn; main.
        results: int64 [W, 3 + size, 3], games of the learner won, drawn and lost against random, scripted, latest,
            and each snapshot; its worker.
    """

    def __init__(self, config: OpponentsConfig, numel: int, num_workers: int) -> None:
        self.config = config
        size = config.pool_size
        self.weights = torch.zeros(size, numel).share_memory_()
        self._words = torch.zeros(2, size, dtype=torch.int64).share_memory_()
        self._chances = torch.zeros(size + len(KINDS), dtype=torch.float64).share_memory_()
        self._results = torch.zeros(num_workers, 3 + size, 3, dtype=torch.int64).share_memory_()
        self._open()
        self.mixture[:] = self._mixture()

    def _open(self) -> None:
        self.version, self.frames = self._words.numpy()
        chances = self._chances.numpy()
        self.chances, self.mixture = chances[: len(self.version)], chances[len(self.version) :]
        self.results = self._results.numpy()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("config", "weights", "_words", "_chances", "_results")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int((self.version > 0).sum())

    def add(self, flat: Tensor, frames: int) -> None:
        """Keep weights, float32 [numel], of now; the oldest snapshot makes room where there is none."""
        empty = np.flatnonzero(self.version == 0)
        slot = int(empty[0]) if len(empty) else int(self.frames.argmin())
        self.version[slot] += 1  # odd: whoever copies it now copies again
        self.weights[slot].copy_(flat)
        self.frames[slot] = frames
        self.results[:, 3 + slot] = 0
        self.version[slot] += 1
        self.rebalance()

    def rebalance(self) -> None:
        """Say anew how often whom to play."""
        known = self.version > 0
        chances = known.astype(np.float64)
        if self.config.sampling == "last":
            chances[np.argsort(self.frames + known)[: -self.config.last_k]] = 0.0
        elif self.config.sampling == "pfsp":  # Vinyals et al. 2019: (1 - win rate) ** 2, the harder the more often
            games = self.results[:, 3:].sum(0)
            rate = (games[:, WIN] + games[:, DRAW] / 2 + PRIOR / 2) / (games.sum(1) + PRIOR)
            chances *= (1.0 - rate) ** 2 + 1e-3
        if chances.any():  # never all 0 once there is a snapshot: workers may look at any moment
            self.chances[:] = chances / chances.sum()
        self.mixture[:] = self._mixture()

    def _mixture(self) -> np.ndarray:
        weights = np.array([getattr(self.config, kind) for kind in KINDS], np.float64)
        if not len(self):  # nobody to play against yet
            weights[LATEST] += weights[SNAPSHOTS]
            weights[SNAPSHOTS] = 0.0
        return weights / weights.sum()

    def copy(self, slot: int, into: Tensor) -> None:
        """One version of a snapshot's weights into float32 [numel]."""
        while True:
            version = int(self.version[slot])
            into.copy_(self.weights[slot])
            if version % 2 == 0 and int(self.version[slot]) == version:
                return

    def figures(self) -> dict[str, float]:
        """Share of games won (draws count half) against each kind of opponent, its 95 % interval, how many games."""
        games = self.results.sum(0)
        by_kind = {**{kind: games[i] for i, kind in enumerate(KINDS[:3])}, "snapshots": games[3:].sum(0)}
        found: dict[str, float] = {}
        for kind, counts in by_kind.items():
            if counts.any():
                found |= {f"{key}_{kind}": value for key, value in score(counts).items()}
        return found | {"pool_size": len(self)}

    def table(self) -> list[dict[str, Any]]:
        """What came of the games against each opponent, snapshots one by one: won, drawn, lost, and `score`."""
        games, known = self.results.sum(0), np.flatnonzero(self.version > 0)
        lines: list[tuple[str, int | None, np.ndarray]] = [(kind, None, games[i]) for i, kind in enumerate(KINDS[:3])]
        lines += [("snapshot", int(self.frames[slot]), games[3 + slot]) for slot in known[self.frames[known].argsort()]]
        return [
            {"kind": kind, "frames": frames, **dict(zip(("won", "drawn", "lost"), counts.tolist(), strict=True))}
            | (score(counts) if counts.any() else {})
            for kind, frames, counts in lines
        ]

    def save(self, folder: Path) -> None:
        """Every snapshot in a file of its own, which is written once; files of those that are gone are removed.

        What came of the games goes into results.json.
        """
        known = {f"snapshot_{frames:012d}.pt": slot for slot, frames in enumerate(self.frames) if self.version[slot]}
        for path in folder.glob("snapshot_*.pt"):
            if path.name not in known:
                path.unlink()
        for name, slot in known.items():
            if not (folder / name).exists():
                state = {"weights": self.weights[slot].clone(), "frames": int(self.frames[slot])}
                checkpoint.write_aside(state, folder / name)
        folder.mkdir(exist_ok=True)
        run_folder.write_json(folder / "results.json", {"opponents": self.table()})

    def load(self, folder: Path, warn: Callable[[str], None]) -> None:
        """The newest snapshots of a run that goes on; ``warn`` is told of those that are torn."""
        for path in sorted(folder.glob("snapshot_*.pt"))[-len(self.version) :]:
            try:
                state = checkpoint.load(path)
            except CheckpointError as error:
                warn(f"{error}; the other snapshots are used")
                continue
            self.add(state["weights"], state["frames"])


class PoolOpponents:
    """A worker's opponents: random, scripted, the newest weights, and some snapshots, all networks in one pass.

    Args:
        config: the run.
        spec: of the game.
        pool: of snapshots.
        reader: of the learner's weights.
        worker: whose results it counts.
        num_games: N.
        seed: of the draws.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, pool: OpponentPool, reader: WeightsReader, worker: int, num_games: int,
        seed: list[int],
    ) -> None:  # fmt: skip
        self._pool, self._reader, self._worker = pool, reader, worker
        self._epsilon = config.opponents.epsilon
        self._rng = np.random.default_rng(seed)
        self._players: list[Player | None] = [random_player, None]
        if config.opponents.scripted:
            self._players[SCRIPTED] = scripted(config.env.id)
        count = config.opponents.active + 1
        algorithm = ALGORITHMS[config.algorithm.name]
        with torch.random.fork_rng(devices=[]):
            actors = [algorithm(config.algorithm, config.learner, spec).policy for _ in range(count)]
        self._members = torch.zeros(count, pool.weights.shape[1])  # first the newest weights
        self._slots = np.full(count, -1)  # snapshot that each member holds
        self._seen = [np.zeros((count, num_games, *leaf.shape), leaf.dtype) for leaf in spec.leaves]
        self._mask = np.ones((count, num_games, spec.num_actions), bool)
        self._policy: Policy = stacked_policy(
            [actor.module[0].module for actor in actors], self._members, self._seen, self._mask
        )
        self._names = [leaf.name for leaf in spec.leaves]
        self.kind = np.zeros((0, 0), np.int64)  # [N, P], of `KINDS`
        self.member = np.zeros((0, 0), np.int64)  # [N, P], of the members

    def draw(self, game: Any, rows: np.ndarray) -> None:
        """Choose for every seat of the games ``rows``, int64 [M], whose episodes begin."""
        shape = (game.num_games, game.num_players)
        if self.kind.shape != shape:
            self.kind, self.member = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._reader.pull(self._members[0])
        self.kind[rows] = self._rng.choice(len(KINDS), (len(rows), shape[1]), p=shares(self._pool.mixture))
        self.member[rows] = 0
        for row, seat in zip(*np.nonzero(self.kind[rows] == SNAPSHOTS), strict=True):
            self.member[rows[row], seat] = self._member()

    def _member(self) -> int:
        """The member that holds a snapshot drawn from the pool; one that is loaded where none can be put aside."""
        slot = int(self._rng.choice(len(self._pool.chances), p=shares(self._pool.chances)))
        held = np.flatnonzero(self._slots == slot)
        if len(held):
            return int(held[0])
        used = set(self.member[self.kind == SNAPSHOTS].tolist())
        free = [member for member in range(1, len(self._slots)) if member not in used]
        if not free:
            return int(self._rng.integers(1, len(self._slots)))
        self._pool.copy(slot, self._members[free[0]])
        self._slots[free[0]] = slot
        return free[0]

    def act(self, game: Any, rows: np.ndarray) -> np.ndarray:
        """Actions int64 [M] of whoever is to move in the games ``rows``, int64 [M]."""
        seats = game.to_move[rows]
        kinds, actions = self.kind[rows, seats], np.zeros(len(rows), np.int64)
        learned = kinds >= LATEST
        if learned.any():
            own = rows[learned]
            observation = game.observe(own)
            for name, seen in zip(self._names, self._seen, strict=True):
                seen[:, own] = observation[name]
            self._mask[:, own] = observation["action_mask"]
            chosen, _ = self._policy(self._seen, self._mask)
            actions[learned] = chosen[self.member[own, seats[learned]], own]
            strays = learned & (self._rng.random(len(rows)) < self._epsilon)
            if strays.any():
                actions[strays] = random_player(game, self._rng, rows[strays])
        for kind in (RANDOM, SCRIPTED):
            theirs = kinds == kind
            if theirs.any():
                player = self._players[kind]
                assert player is not None  # it is drawn only where there is one
                actions[theirs] = player(game, self._rng, rows[theirs])
        return actions

    def ended(self, game: Any, rows: np.ndarray, seats: np.ndarray) -> None:
        """Count the games ``rows`` [M] that are over, in which the agent sat on ``seats``, int64 [M]."""
        results = self._pool.results[self._worker]
        for row, seat, winner in zip(rows, seats, game.winner[rows], strict=True):
            outcome = DRAW if winner < 0 else WIN if winner == seat else LOSS
            for other in range(game.num_players):
                if other != seat:
                    kind = self.kind[row, other]
                    line = 3 + self._slots[self.member[row, other]] if kind == SNAPSHOTS else kind
                    results[line, outcome] += 1


def score(counts: np.ndarray) -> dict[str, float]:
    """Of games won, drawn and lost, int64 [3]: share won, draws counting half, its 95 % interval, and how many."""
    points, games = float(counts[WIN] + counts[DRAW] / 2), int(counts.sum())
    low, high = wilson(points, games)
    return {"score": points / games, "score_low": low, "score_high": high, "games": games}


def shares(chances: np.ndarray) -> np.ndarray:
    """Chances that sum to 1, float64 [n], also while the main process is writing them."""
    copy = chances.copy()
    return copy / copy.sum()


def opponents_of_evaluation(config: Config) -> Opponents:
    """Whom evaluations are played against: never the pool, so that their returns can be compared."""
    player = random_player if config.opponents.evaluate_against == "random" else scripted(config.env.id)
    return Opponents([player], np.ones(1), config.seed)
