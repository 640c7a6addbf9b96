"""A league: a run's snapshots, its policies and fixed players, every player against every other.

RUN/league.json has the share of games won of each pair and Elo ratings, RUN/league.png a picture of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvError, EnvSpec
from trainer.envs.games.players import Player, random_player
from trainer.envs.selfplay import scripted
from trainer.host import seeds
from trainer.reading import ReadError
from trainer.run_folder import checkpoint
from trainer.run_folder import folder as run_folder
from trainer.selfplay.matches import Choose, network_players, play_out, seated, weights_of, winners, world_of_games
from trainer.telemetry.metrics import wilson

GAMES_AT_ONCE = 8_192
PRIOR = 1.0  # drawn games that are added to each pair, so that a player who always wins has a finite rating
ELO = 400 / np.log(10)  # Elo for a difference of 1 in the logarithm of the odds

Watch = Callable[[int, int], bool]  # (games that are over, all games) -> whether to go on


@dataclass(frozen=True)
class Entry:
    """A player of a league.

    Args:
        name: unique in the league.
        kind: `random`, `scripted`, `snapshot` or `policy`.
        frames: at which the weights were taken; None for players without a network.
    """

    name: str
    kind: str
    frames: int | None = None


def league(
    config: Config, run_dir: Path, games: int, warn: Callable[[str], None], max_seconds: float = float("inf"),
    seed: int | None = None, watch: Watch = lambda done, of: True,
) -> dict[str, Any]:  # fmt: skip
    """Play a league, and write RUN/league.json and RUN/league.png.

    Args:
        config: of the run.
        run_dir: the run folder.
        games: least number for each pair; rounded up to an even one, so that both play each seat equally often.
        warn: takes a sentence about each snapshot that could not be read; it is left out.
        max_seconds: games that would take longer are not begun, except two of each pair.
        seed: of the games; None: that of the run.
        watch: called after every move with the number of games that are over and the number of all games. When it
            returns False, the league ends without the games that are not over.

    Returns:
        The content of RUN/league.json.

    Raises:
        ConfigError, EnvError: the run's environment is no turn-based game, or could not be made.
        ReadError: there is no policy.
        OSError: a file could not be written.
        TimeoutError: `watch` returned False before two games of each pair were over.
    """
    start = time.monotonic()
    with closing(world_of_games(config, 1)) as world:
        spec = world.specs[0]
    players, functions = fixed_players(config)
    networks, flats = entered(config, spec, run_dir, warn)
    entries = [*players, *networks]
    rng_seed = seeds.of_league(config.seed) if seed is None else seed
    seeds.seed_globals(rng_seed, "league")
    choose = network_players(config, spec, flats)
    wins, draws = round_robin(config, functions, choose, len(entries), games, rng_seed, max_seconds, watch)
    result = table(entries, wins, draws) | {
        "env_id": config.env.id, "epsilon": config.opponents.epsilon, "seconds": time.monotonic() - start,
    }  # fmt: skip
    run_folder.write_json(RunFolder(run_dir).league, result)
    from trainer.selfplay.league_picture import draw  # matplotlib takes half a second, and every run's end imports this
    from trainer.telemetry import pictures

    picture = draw(result, f"{config.env.id} · {config.algorithm.name} · seed {config.seed}")
    pictures.save(picture, RunFolder(run_dir).league_picture)
    return result


def fixed_players(config: Config) -> tuple[list[Entry], list[Player]]:
    """Random play, and the scripted player if the game has one: their entries, and their functions."""
    entries, functions = [Entry("random", "random")], [random_player]
    try:
        functions.append(scripted(config.env, config.opponents.scripted_player))
    except EnvError:  # the game has none
        return entries, functions
    return [*entries, Entry("scripted", "scripted")], functions


def entered(config: Config, spec: EnvSpec, run_dir: Path, warn: Callable[[str], None]) -> tuple[list[Entry], Tensor]:
    """The networks of a league: the pool's snapshots, the best policy, and the last policy if it is another one.

    Returns:
        The entries of the A networks, the snapshots by age, the oldest first; and their weights, float32 [A, numel].

    Raises:
        ReadError: the best or the last policy is missing, or of another network.
    """
    found: list[tuple[Entry, Tensor]] = []
    for path in sorted(RunFolder(run_dir).pool.glob("snapshot_*.pt")):
        try:
            frames = int(checkpoint.load(path)["frames"])
            found.append((Entry(f"snapshot_{frames}", "snapshot", frames), weights_of(path, config, spec)))
        except ReadError as error:
            warn(f"warning: {error}; the league is played without it")
    folder = RunFolder(run_dir)
    for name, path in (("best", checkpoint.best_policy(folder)), ("last", checkpoint.last_policy(folder))):
        frames = int(checkpoint.load(path)["frames"])
        if not any(entry.kind == "policy" and entry.frames == frames for entry, _ in found):
            found.append((Entry(name, "policy", frames), weights_of(path, config, spec)))
    return [entry for entry, _ in found], torch.stack([flat for _, flat in found])


def round_robin(
    config: Config, functions: Sequence[Player], networks: Choose, count: int, games: int, seed: int,
    max_seconds: float = float("inf"), watch: Watch = lambda done, of: True,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Let every player play every other.

    The two players of a pair take turns in sitting on the even seats; the other one sits on the odd seats. Networks are
    greedy, so two of them would play the same game again and again: between networks each move is random with
    probability `opponents.epsilon`.

    Args:
        config: of the run.
        functions: the first F players.
        networks: the other K - F players.
        count: K, the number of all players.
        games: least number for each pair.
        seed: of dice and draws.
        max_seconds: games that would take longer, judged by those before, are not begun.
        watch: as in `league`.

    Returns:
        Number of games that i won against j, and number of draws between them, int64 [K, K] each.

    Raises:
        TimeoutError: as in `league`.
    """
    start, rng = time.monotonic(), np.random.default_rng(seed)
    pairs = np.array(list(combinations(range(count), 2)))
    greedy = seated(functions, networks, rng)
    wins, draws = np.zeros((count, count), np.int64), np.zeros((count, count), np.int64)
    rounds = -(-games // 2)  # a round has two games for each pair
    done, next_rounds = 0, 1  # one round first, to measure how long it takes
    while next_rounds:
        with closing(world_of_games(config, 2 * next_rounds * len(pairs))) as world:
            game = world.game
            game.reset(seeds.of_game(seed, 2 * done * len(pairs)))
            pair = np.repeat(np.arange(len(pairs)), 2 * next_rounds)
            side = (np.arange(game.num_games)[:, None] + np.arange(game.num_players)) % 2  # [N, P]
            who = pairs[pair[:, None], side]
            choose = straying(greedy, (who >= len(functions)).all(1), config.opponents.epsilon, rng)
            if not play_out(game, who, choose, _watch(game, 2 * done * len(pairs), 2 * rounds * len(pairs), watch)):
                break
            won = winners(game, who)
        for one, other in ((0, 1), (1, 0)):
            np.add.at(wins, tuple(pairs[pair[won == pairs[pair, one]]][:, [one, other]].T), 1)
            np.add.at(draws, tuple(pairs[pair[won < 0]][:, [one, other]].T), 1)
        done += next_rounds
        spent = time.monotonic() - start
        fitting = min(rounds - done, max(1, GAMES_AT_ONCE // (2 * len(pairs))))
        next_rounds = int(min(fitting, (max_seconds - spent) / spent * done)) if spent < max_seconds else 0
    if not done:
        raise TimeoutError(
            f"{2 * len(pairs)} games, two of each pair, did not end within {time.monotonic() - start:.0f} s"
        )
    return wins, draws


def _watch(game: Any, before: int, of: int, watch: Watch) -> Callable[[], bool]:
    return lambda: watch(before + int(np.count_nonzero(game.over)), of)


def straying(choose: Choose, where: np.ndarray, epsilon: float, rng: np.random.Generator) -> Choose:
    """The players of `choose`, but in the games of a bool mask [N] each move is random with probability `epsilon`."""

    def strays(game: Any, rows: np.ndarray, who: np.ndarray) -> np.ndarray:
        actions = choose(game, rows, who)
        random = where[rows] & (rng.random(len(rows)) < epsilon)
        if random.any():
            actions[random] = random_player(game, rng, rows[random])
        return actions

    return strays


def table(entries: Sequence[Entry], wins: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
    """The results of `round_robin` with scores and ratings, as plain values for JSON. The first entry has 0 Elo."""
    games = wins + wins.T + draws
    shares = wins + draws / 2
    elo, error = ratings(shares, games)
    players = [
        {
            **asdict(entry), "elo": round(float(elo[i]), 1), "elo_half_width": round(1.96 * float(error[i]), 1),
            "score": float(shares[i].sum() / games[i].sum()), "games": int(games[i].sum()),
        }
        for i, entry in enumerate(entries)
    ]  # fmt: skip
    met = [[i != j for j in range(len(entries))] for i in range(len(entries))]

    def of_pairs(value: Callable[[int, int], float]) -> list[list[float | None]]:
        return [[value(i, j) if both else None for j, both in enumerate(row)] for i, row in enumerate(met)]

    return {
        "games_per_pair": int(games[0, 1]),
        "players": players,
        "wins": wins.tolist(),
        "draws": draws.tolist(),
        "score": of_pairs(lambda i, j: float(shares[i, j] / games[i, j])),
        "score_low": of_pairs(lambda i, j: wilson(shares[i, j], games[i, j])[0]),
        "score_high": of_pairs(lambda i, j: wilson(shares[i, j], games[i, j])[1]),
    }


def ratings(shares: np.ndarray, games: np.ndarray, prior: float = PRIOR) -> tuple[np.ndarray, np.ndarray]:
    """Elo ratings by maximum likelihood in the Bradley-Terry model, and their standard errors.

    Player i beats j with probability `1 / (1 + 10 ** ((elo[j] - elo[i]) / 400))`. Ratings by the iteration of Hunter
    2004 ("MM algorithms for generalized Bradley-Terry models", equation 3), errors by the observed information.

    Args:
        shares: number of games that i won against j, a draw counted as half, float [K, K].
        games: number of games that they played, [K, K].
        prior: drawn games added to each pair that played; with 0 a player who wins all games has no finite rating.

    Returns:
        Ratings and errors, float64 [K] each; both are 0 for the first player.
    """
    played = games > 0
    games, won = games + prior * played, (shares + prior / 2 * played).sum(1)
    strength = np.ones(len(games))
    for _ in range(100_000):
        new = won / (games / (strength[:, None] + strength)).sum(1)
        new /= np.exp(np.log(new).mean())
        moved = np.abs(np.log(new / strength)).max()
        strength = new
        if moved < 1e-10:
            break
    beats = strength[:, None] / (strength[:, None] + strength)
    information = -games * beats * (1 - beats)
    np.fill_diagonal(information, 0.0)
    np.fill_diagonal(information, -information.sum(1))
    error = np.zeros(len(games))
    error[1:] = np.sqrt(np.diag(np.linalg.inv(information[1:, 1:])))
    return ELO * np.log(strength / strength[0]), ELO * error


def rating_text(player: dict[str, Any]) -> str:
    """One line about a player of the result of `league`."""
    return f"{player['name']} {player['elo']:.0f} +- {player['elo_half_width']:.0f}"
