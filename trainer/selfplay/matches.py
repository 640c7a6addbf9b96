"""Games between any players: networks, many of them in one forward pass, and functions of `trainer.envs.games.players`.

Everything goes through the interface of `trainer.envs.games`; which game it is does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer import envs
from trainer.acting.multi_agent import stacked_policy
from trainer.algorithms import make_policy
from trainer.config.sections import Config, ConfigError
from trainer.envs import EnvSpec
from trainer.envs.games.players import Player
from trainer.memory.weights import flatten_parameters
from trainer.run_folder import checkpoint

# (game, rows int64 [M], who int64 [M] moves in each) -> actions int64 [M]
Choose = Callable[[Any, np.ndarray, np.ndarray], np.ndarray]

BLOCK = 64  # positions of one network in a pass; the last games of a batch fill few of them
MAX_MOVES = 27_000  # of a game, which greedy networks may never end; then it is drawn


def world_of_games(config: Config, num_games: int) -> Any:
    """The run's game, so many at a time, in `world.game`; it is to be closed.

    Raises:
        ConfigError: the run's environment is no turn-based game.
        EnvError: it cannot be made.
    """
    world = envs.make_world(config.env, num_games)
    if not hasattr(world, "game"):
        world.close()
        raise ConfigError(f"{config.env.id} is no turn-based game: it has neither opponents nor a league")
    return world


def weights_of(path: Path, config: Config, spec: EnvSpec) -> Tensor:
    """A policy's weights, float32 [numel], from a policy.pt or a snapshot of a pool.

    Raises:
        ReadError: the file is torn, is none of these, or is of another network than the run's.
    """
    return checkpoint.policy_weights(path, flatten_parameters(make_policy(config, spec)).numel())


def network_players(config: Config, spec: EnvSpec, flats: Tensor, block: int = BLOCK) -> Choose:
    """Greedy networks of one shape, who `0 .. A - 1` are; one forward pass for all of them.

    Args:
        config: of the run that they are of.
        spec: of the game.
        flats: float32 [A, numel], their weights.
        block: positions of each that a pass takes; more are taken in several passes.
    """
    count = len(flats)
    network = make_policy(config, spec).module[0].module
    seen = [np.zeros((count, block, *leaf.shape), leaf.dtype) for leaf in spec.leaves]
    mask = np.ones((count, block, spec.num_actions), bool)
    policy = stacked_policy([network] * count, flats, seen, mask)

    def choose(game: Any, rows: np.ndarray, who: np.ndarray) -> np.ndarray:
        observation, actions = game.observe(rows), np.zeros(len(rows), np.int64)
        order = np.argsort(who, kind="stable")
        counts = np.bincount(who, minlength=count)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)  # among those of the same network
        with torch.inference_mode():
            for begin in range(0, int(counts.max()), block):
                part = (place >= begin) & (place < begin + block)
                those = order[part]
                at = who[those], place[part] - begin
                for leaf, array in zip(spec.leaves, seen, strict=True):
                    array[at] = observation[leaf.name][those]
                if spec.action.has_mask:
                    mask[at] = observation["action_mask"][those]
                actions[those] = policy(seen, mask)[0][at]
        return actions

    return choose


def network_player(config: Config, spec: EnvSpec, flat: Tensor) -> Player:
    """One greedy network, weights float32 [numel], as a function of `trainer.envs.games.players`."""
    choose = network_players(config, spec, flat[None], block=1)
    return lambda game, generator, rows: choose(game, rows, np.zeros(len(rows), np.int64))


def seated(players: Sequence[Player], networks: Choose | None, generator: np.random.Generator) -> Choose:
    """Functions, who `0 .. F - 1` are, and behind them networks of `network_players`."""

    def choose(game: Any, rows: np.ndarray, who: np.ndarray) -> np.ndarray:
        actions = np.zeros(len(rows), np.int64)
        for number, player in enumerate(players):
            own = who == number
            if own.any():
                actions[own] = player(game, generator, rows[own])
        own = who >= len(players)
        if networks is not None and own.any():
            actions[own] = networks(game, rows[own], who[own] - len(players))
        return actions

    return choose


def play_out(
    game: Any, who: np.ndarray, choose: Choose, watch: Callable[[], bool] = lambda: True, max_moves: int = MAX_MOVES
) -> bool:
    """Play all games, which have begun, to their ends; False if `watch` did not let it.

    Args:
        game: N of `trainer.envs.games`.
        who: int64 [N, P], on each seat.
        choose: acts for them.
        watch: called after every move; the rest is not played once it says False.
        max_moves: of a game; one that is not over by then stays as it is, without a winner.
    """
    actions = np.zeros(game.num_games, np.int64)
    for _ in range(max_moves):
        running = ~game.over
        rows = np.flatnonzero(running)
        if not len(rows):
            return True
        actions[rows] = choose(game, rows, who[rows, game.to_move[rows]])
        game.step(actions, where=running)
        if not watch():
            return False
    return True


def winners(game: Any, who: np.ndarray) -> np.ndarray:
    """Who has won each of N games, int64 [N], by who sat where, int64 [N, P]; -1: nobody."""
    winner = game.winner
    return np.where(winner < 0, -1, who[np.arange(len(who)), winner])
