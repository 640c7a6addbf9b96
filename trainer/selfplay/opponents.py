"""Self-play in a worker: opponents, from the pool and others; all their networks act in one forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.acting.multi_agent import stacked_policy
from trainer.acting.policies import Policy
from trainer.algorithms import make_policy
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.envs.games.players import Player, random_player
from trainer.envs.selfplay import Opponents, player_at, scripted
from trainer.host import seeds
from trainer.selfplay.pool import DRAW, KINDS, LATEST, LOSS, RANDOM, SCRIPTED, SNAPSHOTS, WIN, OpponentPool

# Gives a worker's world its opponents: configuration, spec, world, what copies the newest weights, worker, seed.
Seating = Callable[[Config, EnvSpec, Any, Callable[[Tensor], object], int, list[int]], "PoolOpponents | NoOpponents"]

BLOCK = 16  # rows of each network in one pass; few games wait for the same opponent at a time

_STATE = ("kind", "member", "own", "_slots", "_versions", "_loaded", "_leaving")


class PoolOpponents:
    """A worker's opponents: random, scripted, the newest weights, and some snapshots, all networks in one pass.

    Args:
        config: the run.
        spec: of the game.
        pool: of snapshots.
        read_weights: copies the learner's newest weights into float32 [numel].
        worker: whose results it counts.
        num_games: N.
        seed: of the draws.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, pool: OpponentPool, read_weights: Callable[[Tensor], object],
        worker: int, num_games: int, seed: list[int],
    ) -> None:  # fmt: skip
        self.pool, self._read_weights, self._worker = pool, read_weights, worker
        self._epsilon, self._both_seats = config.opponents.epsilon, config.opponents.both_seats
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self._players: list[Player | None] = [random_player, None]
        if config.opponents.scripted or config.opponents.scripted_end:
            self._players[SCRIPTED] = scripted(config.env, config.opponents.scripted_player)
        count = config.opponents.active + 1
        actors = [make_policy(config, spec) for _ in range(count)]
        self._members = torch.zeros(count, pool.weights.shape[1], dtype=torch.float32)  # first the newest weights
        self._slots = np.full(count, -1)  # of the pool, that each member holds
        self._versions = np.zeros(count, np.int64)  # of it: the slot may hold another snapshot by now
        self._loaded = np.zeros(count, np.int64)  # when it was given it: 1, 2, ...
        self._leaving = np.zeros(1, np.int64)  # a member that no new game is given, to make room; 0: none
        self._block = min(BLOCK, num_games)
        self._seen = [np.zeros((count, self._block, *leaf.shape), leaf.dtype) for leaf in spec.leaves]
        self._mask = np.ones((count, self._block, spec.num_actions), bool)
        self._policy: Policy = stacked_policy(
            [actor.module[0].module for actor in actors], self._members, self._seen, self._mask
        )
        self._names = [leaf.name for leaf in spec.leaves]
        self.kind = np.zeros((0, 0), np.int64)  # [N, P], of `KINDS`
        self.member = np.zeros((0, 0), np.int64)  # [N, P], of the members
        self.own = np.zeros((0, 0), bool)  # [N, P], seats whose decisions are the agent's own, to be learned from

    def reseed(self, seed: int) -> None:
        """Seed all random choices again, for games that are reset with `seed`."""
        self._rng = np.random.default_rng(seeds.of_reset_opponents(self._seed, seed))

    def draw(self, game: Any, rows: np.ndarray) -> None:
        """Choose an opponent for every seat of the games `rows`, int64 [M], which begin."""
        shape = (game.num_games, game.num_players)
        if self.kind.shape != shape:
            self.kind, self.member = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            self.own = np.zeros(shape, bool)
        self._read_weights(self._members[0])
        self.kind[rows] = self._rng.choice(len(KINDS), (len(rows), shape[1]), p=shares(self.pool.mixture))
        self.own[rows] = self._both_seats and self.kind[rows] == LATEST
        self.member[rows] = 0
        for row, seat in zip(*np.nonzero(self.kind[rows] >= SNAPSHOTS), strict=True):
            self.member[rows[row], seat] = self._member(int(self.kind[rows[row], seat]))

    def _member(self, kind: int) -> int:
        """Draw a snapshot or checkpoint from the pool, and return the member that holds it.

        Where it is not loaded and no member is free, another loaded one is drawn instead.
        """
        pool = self.pool
        first, last = (0, pool.size) if kind == SNAPSHOTS else (pool.size, len(pool.version))
        slot = first + int(self._rng.choice(last - first, p=shares(pool.chances[first:last])))
        held = np.flatnonzero((self._slots == slot) & (self._versions == pool.version[slot]))
        if len(held) and held[0] != self._leaving[0]:
            return int(held[0])
        used = set(self.member[self.kind >= SNAPSHOTS].tolist())
        free = [member for member in range(1, len(self._slots)) if member not in used]
        if not free or len(held):
            return self._instead(first, last)
        self._versions[free[0]] = pool.copy(slot, self._members[free[0]])
        self._slots[free[0]], self._loaded[free[0]] = slot, self._loaded.max() + 1
        if free[0] == self._leaving[0]:
            self._leaving[0] = 0
        return free[0]

    def _instead(self, first: int, last: int) -> int:
        """Draw a loaded member, but not the one that was loaded first: that one becomes free when its games are over.

        Without this, many games at a time would use all members for ever, and no other snapshot would be loaded. A
        member with one of the slots `first` .. `last - 1` is preferred.
        """
        members = np.arange(1, len(self._slots))
        if not self._leaving[0]:
            self._leaving[0] = members[self._loaded[1:].argmin()]
        staying = members[members != self._leaving[0]]
        alike = staying[(self._slots[staying] >= first) & (self._slots[staying] < last)]
        return int(self._rng.choice(alike if len(alike) else staying if len(staying) else members))

    def state_dict(self) -> dict[str, Any]:
        """The opponent on each seat, and the members with their weights, as the pool may have replaced them."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in _STATE}
        return {"arrays": arrays, "members": self._members.clone(), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        for name, tensor in state["arrays"].items():
            getattr(self, name)[:] = tensor.numpy()
        self._members.copy_(state["members"])
        self._rng.bit_generator.state = state["rng"]

    def act(self, game: Any, rows: np.ndarray) -> np.ndarray:
        """Actions, int64 [M], of the opponents to move in the games `rows`, int64 [M]."""
        seats = game.to_move[rows]
        kinds, actions = self.kind[rows, seats], np.zeros(len(rows), np.int64)
        learned = kinds >= LATEST
        if learned.any():
            games = rows[learned]
            actions[learned] = self._by_networks(game.observe(games), self.member[games, seats[learned]])
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

    def _by_networks(self, observation: dict[str, np.ndarray], members: np.ndarray) -> np.ndarray:
        """Greedy actions, int64 [M], of `members`, int64 [M], for observations, arrays [M, ...], in blocks."""
        actions, place = np.zeros(len(members), np.int64), np.zeros(len(members), np.int64)
        for member in range(len(self._members)):
            asked = members == member
            place[asked] = np.arange(np.count_nonzero(asked))
        for block in range(int(place.max()) // self._block + 1):
            now = np.flatnonzero(place // self._block == block)
            who, where = members[now], place[now] % self._block
            for name, seen in zip(self._names, self._seen, strict=True):
                seen[who, where] = observation[name][now]
            self._mask[who, where] = observation["action_mask"][now]
            chosen, _ = self._policy(self._seen, self._mask)
            actions[now] = chosen[who, where]
        return actions

    def ended(self, game: Any, rows: np.ndarray, seats: np.ndarray) -> None:
        """Count the results of games that are over, `rows`, int64 [M], with the agent's seats, int64 [M]."""
        results = self.pool.results[self._worker]
        for row, seat, winner in zip(rows, seats, game.winner[rows], strict=True):
            outcome = DRAW if winner < 0 else WIN if winner == seat else LOSS
            for other in range(game.num_players):
                if other != seat:
                    line, member = self.kind[row, other], self.member[row, other]
                    if line >= SNAPSHOTS:
                        line = 3 + self._slots[member]
                        if self._versions[member] != self.pool.version[self._slots[member]]:
                            continue  # it is gone from the pool, and another one has its place
                    results[line, outcome] += 1


class NoOpponents:
    """In place of `PoolOpponents` where nobody is played against."""

    def state_dict(self) -> None:
        """There is none."""

    def load_state_dict(self, state: None) -> None:
        """Do nothing: there is no state."""


def against_nobody(
    config: Config, spec: EnvSpec, world: Any, read_weights: Callable[[Tensor], object], worker: int, seed: list[int]
) -> NoOpponents:
    """A `Seating` for a world without opponents."""
    return NoOpponents()


def against_pool(
    pool: OpponentPool, config: Config, spec: EnvSpec, world: Any, read_weights: Callable[[Tensor], object],
    worker: int, seed: list[int],
) -> PoolOpponents:  # fmt: skip
    """A `Seating`, once its first argument is given: the world plays against `pool`; others as `PoolOpponents`."""
    world.opponents = PoolOpponents(config, spec, pool, read_weights, worker, world.num_envs, seed)
    return world.opponents


def shares(chances: np.ndarray) -> np.ndarray:
    """A copy of chances, float64 [n], scaled to the sum 1. The main process may be writing them."""
    while not (copy := chances.copy()).any():  # half written: one was set to 0, the other is not yet above it
        time.sleep(0)
    return copy / copy.sum()


def opponents_of_evaluation(config: Config) -> Opponents:
    """The opponents of evaluations: one player, never the pool, so that returns are comparable."""
    return Opponents([player_named(config.opponents.evaluate_against, config)], np.ones(1), config.seed)


def player_named(name: str, config: Config) -> Player:
    """A player that needs no weights: `random`, `scripted`, or an import path.

    Raises:
        EnvError: the game has no scripted player, or the path leads to none.
    """
    if name == "scripted":
        return scripted(config.env, config.opponents.scripted_player)
    return random_player if name == "random" else player_at(name)
