"""Play games of a run's policy against one opponent, which may be a human in the terminal; used by trainer.play."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trainer import envs
from trainer.config.fields import ConfigError
from trainer.config.run_config import from_yaml
from trainer.config.run_files import run_of
from trainer.config.sections import Config
from trainer.envs import EnvError, EnvSpec
from trainer.envs.games.players import Player
from trainer.envs.import_paths import is_path
from trainer.host import seeds
from trainer.run_folder import checkpoint, policy_file
from trainer.selfplay.human import action_text, human
from trainer.selfplay.matches import network_player, play_out, seated, weights_of, winners
from trainer.selfplay.opponents import player_named
from trainer.telemetry.video import pictures_of


@dataclass(frozen=True)
class Table:
    """The games to be played.

    Args:
        policy: name of the run's policy.
        opponent: human, random, scripted, or the file of a policy or snapshot; None: that of the run's evaluations.
        seat: of the opponent, the policy has all others; None: another seat in every game.
        games: number of games.
        max_moves: of all games together.
        seed: of the first game.
        filmed: whether there is a picture of every move.
    """

    policy: str
    opponent: str | None
    seat: int | None
    games: int
    max_moves: int
    seed: int
    filmed: bool


def play_games(config: Config, flat: Tensor, world: Any, table: Table) -> list[np.ndarray]:
    """Play the games and print their results; with a human also every position, as text.

    Ctrl-C, or the end of the input (Ctrl-D), end the games.

    Args:
        config: of the run.
        flat: weights of its policy, float32 [numel].
        world: of one game.
        table: the games to be played.

    Returns:
        Pictures, uint8 [height, width, 3]: of the beginning of each game and after each move; none unless `filmed`.

    Raises:
        ConfigError, ReadError: there is no such opponent or seat; the opponent's file could not be read.
        EnvError: the game has no scripted player, no text, or no pictures.
    """
    game, generator = world.game, np.random.default_rng(table.seed)
    named = table.opponent or config.opponents.evaluate_against
    opponent, told = opponent_of(named, config, game), named == "human"
    _check(table, config, game)
    names = [table.policy, "you" if told else named]
    act = seated([network_player(config, game.spec, flat), opponent], None, generator)
    pictures: list[np.ndarray] = []

    def choose(game: Any, rows: np.ndarray, who: np.ndarray) -> np.ndarray:
        actions = act(game, rows, who)
        if told and who[0] == 0:
            print(f"{names[0]} (seat {game.to_move[0]}) plays {action_text(game, 0, int(actions[0]))}")
        return actions

    def watch() -> bool:
        if told:
            print(f"{game.text(0)}\n")
        if table.filmed:
            pictures.extend(pictures_of(game.render(0), config.env.id))
        return True

    won, left = {0: 0, 1: 0, -1: 0}, table.max_moves
    try:
        for number in range(table.games):
            who = _begin(game, table, number)
            if told:
                print(f"game {number + 1} of {config.env.id}: you have seat {who[0].argmax()}; seat 0 begins")
            watch()
            play_out(game, who, choose, watch, left)
            left -= int(game.length[0])
            if game.over[0]:
                winner = int(winners(game, who)[0])
                won[winner] += 1
                print(f"game {number + 1}: {'drawn' if winner < 0 else f'{names[winner]} won'}, {game.length[0]} moves")
            if left <= 0:
                break
    except (EOFError, KeyboardInterrupt):
        print("\nthe game is ended")
    count = f"won {won[0]}, drew {won[-1]} and lost {won[1]} of {sum(won.values())} finished games"
    print(f"{names[0]} {count} against {names[1]}")
    return pictures


def _check(table: Table, config: Config, game: Any) -> None:
    if table.seat is not None and not 0 <= table.seat < game.num_players:
        raise ConfigError(f"--seat {table.seat} is not there: {config.env.id} has seats 0 to {game.num_players - 1}")
    if table.filmed and not hasattr(game, "render"):
        raise EnvError(f"{config.env.id} has no pictures: use --opponent human without --out.")


def _begin(game: Any, table: Table, number: int) -> np.ndarray:
    """Begin a game; who sits on each seat, int64 [1, P]: 0 the policy, 1 the opponent."""
    who = np.zeros((1, game.num_players), np.int64)
    who[0, number % game.num_players if table.seat is None else table.seat] = 1
    game.reset(seeds.of_game(table.seed, number))
    return who


def _trained(path: Path, config: Config) -> tuple[Config, EnvSpec]:
    """The configuration of the run that a policy is of, and what it sees and does; `config` where nothing says it."""
    header = policy_file.header_in(checkpoint.load(path))
    if header is not None:
        return policy_file.config_of(header, path), policy_file.agents_of(header, path)[0].spec
    theirs = run_of(path).config
    trained = from_yaml(theirs) if theirs.is_file() else config
    return trained, envs.describe(trained.env)


def opponent_of(named: str, config: Config, game: Any) -> Player:
    """The player that `--opponent` names.

    Raises:
        ConfigError: there is no such opponent, or it plays another game.
        ReadError: its file could not be read.
        EnvError: the game has no scripted player, or no text.
    """
    if named == "human":
        return human(config.env.id, game)
    if named in ("random", "scripted") or is_path(named):
        return player_named(named, config)
    path = Path(named)
    if not path.is_file():
        raise ConfigError(
            f"--opponent {named} is neither human, random, scripted, an import path of a player nor the file of a "
            "policy or snapshot"
        )
    trained, spec = _trained(path, config)
    if (spec.leaves, spec.action) != (game.spec.leaves, game.spec.action):
        raise ConfigError(
            f"--opponent {named} was trained on {trained.env.id} with other observations or actions than this game: "
            "name another one"
        )
    return network_player(trained, game.spec, weights_of(path, trained, game.spec))
