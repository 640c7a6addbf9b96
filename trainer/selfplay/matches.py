"""Games between any players: networks, all in one forward pass, and functions of `trainer.envs.games.players`.

It works for every game with the interface of `trainer.envs.games`.
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
from trainer.config.fields import ConfigError
from trainer.config.instances import env_of_others
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.envs.games.players import Player
from trainer.memory.weights import flatten_parameters
from trainer.run_folder import checkpoint

# (game, rows int64 [M], number of the player to move in each, int64 [M]) -> actions int64 [M]
Choose = Callable[[Any, np.ndarray, np.ndarray], np.ndarray]

BLOCK = 64  # positions of each network in one forward pass
MAX_MOVES = 27_000  # then a game is a draw, as greedy networks may never end it


def world_of_games(config: Config, num_games: int) -> Any:
    """A world with games of the run's environment, in `world.game`; the caller closes it.

    Raises:
        ConfigError: the run's environment is no turn-based game.
        EnvError: the game could not be made.
    """
    world = envs.make_world(env_of_others(config), num_games)
    if not hasattr(world, "game"):
        world.close()
        raise ConfigError(f"{config.env.id} is no turn-based game: it has neither opponents nor a league")
    return world


def weights_of(path: Path, config: Config, spec: EnvSpec) -> Tensor:
    """Load a policy's weights, float32 [numel], from a policy file or a snapshot of a pool.

    Raises:
        ReadError: the file is damaged, of another kind, or of another network than the run's.
    """
    return checkpoint.policy_weights(path, flatten_parameters(make_policy(config, spec)).numel())


def network_players(config: Config, spec: EnvSpec, flats: Tensor, block: int = BLOCK) -> Choose:
    """Players 0 .. A - 1: greedy networks of one shape, all in one forward pass.

    Args:
        config: of the run that trained them.
        spec: of the game.
        flats: their weights, float32 [A, numel].
        block: positions of each network in a pass; more positions take several passes.
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
    """One greedy network with weights float32 [numel] as a player, see `trainer.envs.games.players`."""
    choose = network_players(config, spec, flat[None], block=1)
    return lambda game, generator, rows: choose(game, rows, np.zeros(len(rows), np.int64))


def seated(players: Sequence[Player], networks: Choose | None, generator: np.random.Generator) -> Choose:
    """Players 0 .. F - 1 are functions, all further ones the networks of `network_players`."""

    def choose(game: Any, rows: np.ndarray, who: np.ndarray) -> np.ndarray:
        actions = np.zeros(len(rows), np.int64)
        for number, player in enumerate(players):
            turns = who == number
            if turns.any():
                actions[turns] = player(game, generator, rows[turns])
        turns = who >= len(players)
        if networks is not None and turns.any():
            actions[turns] = networks(game, rows[turns], who[turns] - len(players))
        return actions

    return choose


def play_out(
    game: Any, who: np.ndarray, choose: Choose, watch: Callable[[], bool] = lambda: True, max_moves: int = MAX_MOVES
) -> bool:
    """Play games that have begun to their ends; False if `watch` ended them before.

    Args:
        game: N games, see `trainer.envs.games`.
        who: number of the player on each seat, int64 [N, P].
        choose: the players.
        watch: called after every move; playing ends when it returns False.
        max_moves: of each game; a game that is not over then has no winner.
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
    """The player who has won each game, int64 [N], -1 for a draw; `who` as in `play_out`."""
    winner = game.winner
    return np.where(winner < 0, -1, who[np.arange(len(who)), winner])
