"""Everyone against everyone: a run's past selves, its policies and fixed players.

RUN/league.json has the matrix of games won and Elo ratings, RUN/league.png shows them.
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
from trainer.selfplay.league_picture import draw
from trainer.selfplay.matches import Choose, network_players, play_out, seated, weights_of, winners, world_of_games
from trainer.telemetry import pictures
from trainer.telemetry.metrics import wilson

GAMES_AT_ONCE = 8_192
PRIOR = 1.0  # drawn games of each pair that ratings are given beforehand: someone who always wins stays finite
ELO = 400 / np.log(10)  # of a rating whose difference is the log of the odds

Watch = Callable[[int, int], bool]  # (games that are over, games of all) -> whether to go on


@dataclass(frozen=True)
class Entry:
    """Who takes part.

    Args:
        name: unique.
        kind: `random`, `scripted`, `snapshot` or `policy`.
        frames: at which its weights were taken; None for functions.
    """

    name: str
    kind: str
    frames: int | None = None


def league(
    config: Config, run_dir: Path, games: int, warn: Callable[[str], None], max_seconds: float = float("inf"),
    seed: int | None = None, watch: Watch = lambda done, of: True,
) -> dict[str, Any]:  # fmt: skip
    """Play it, and write RUN/league.json and RUN/league.png.

    Args:
        config: the run's.
        run_dir: its folder.
        games: of each pair, at least; rounded up so that everyone sits on every seat equally often.
        warn: is told of snapshots that cannot be read, and are left out.
        max_seconds: games that would take longer are not begun; two of each pair are played in any case.
        seed: of the games; None: the run's.
        watch: called after every move with the games that are over and those that are begun or will be; once it says
            False, the games that are going on are not counted.

    Returns:
        what RUN/league.json holds.

    Raises:
        ConfigError, EnvError: it is no run of a game.
        ReadError: there is no policy.
        OSError: the disk refuses.
        TimeoutError: `watch` said False before two games of each pair were over.
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
    picture = draw(result, f"{config.env.id} · {config.algorithm.name} · seed {config.seed}")
    pictures.save(picture, RunFolder(run_dir).league_picture)
    return result


def fixed_players(config: Config) -> tuple[list[Entry], list[Player]]:
    """Random play, and the scripted player where the game has one."""
    entries, functions = [Entry("random", "random")], [random_player]
    try:
        functions.append(scripted(config.env))
    except EnvError:  # which is how it says that there is none
        return entries, functions
    return [*entries, Entry("scripted", "scripted")], functions


def entered(config: Config, spec: EnvSpec, run_dir: Path, warn: Callable[[str], None]) -> tuple[list[Entry], Tensor]:
    """The networks that take part, the oldest first, and their weights, float32 [A, numel].

    These are the pool's snapshots, the best policy, and the last one where it is another.

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
    for name, path in (("best", RunFolder(run_dir).best_policy), ("last", RunFolder(run_dir).last_policy)):
        frames = int(checkpoint.load(path)["frames"])
        if not any(entry.kind == "policy" and entry.frames == frames for entry, _ in found):
            found.append((Entry(name, "policy", frames), weights_of(path, config, spec)))
    return [entry for entry, _ in found], torch.stack([flat for _, flat in found])


def round_robin(
    config: Config, functions: Sequence[Player], networks: Choose, count: int, games: int, seed: int,
    max_seconds: float = float("inf"), watch: Watch = lambda done, of: True,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Everyone plays everyone.

    Of a pair's games one sits on the even seats of every second game, and on the odd seats of the others; with more
    than two seats each of them has every second one. Functions draw their moves and networks are greedy, so that two
    networks might play one game over and over: among themselves they move at random with probability
    `opponents.epsilon`.

    Args:
        config: the run's.
        functions: F players.
        networks: the players behind them.
        count: K, of all players.
        games: of each pair, at least.
        seed: of dice and draws.
        max_seconds: games that would take longer, by those before, are not begun.
        watch: as in `league`.

    Returns:
        games that i won against j, int64 [K, K], and games that they drew.

    Raises:
        TimeoutError: as `league`.
    """
    start, rng = time.monotonic(), np.random.default_rng(seed)
    pairs = np.array(list(combinations(range(count), 2)))
    greedy = seated(functions, networks, rng)
    wins, draws = np.zeros((count, count), np.int64), np.zeros((count, count), np.int64)
    rounds = -(-games // 2)  # of two games for each pair
    done, next_rounds = 0, 1  # the first one says how long they take
    while next_rounds:
        with closing(world_of_games(config, 2 * next_rounds * len(pairs))) as world:
            game = world.game
            game.reset(seed + 2 * done * len(pairs))
            pair = np.repeat(np.arange(len(pairs)), 2 * next_rounds)
            side = (np.arange(game.num_games)[:, None] + np.arange(game.num_players)) % 2  # [N, P]
            who = pairs[pair[:, None], side]
            choose = straying(greedy, (who >= len(functions)).all(1), config.opponents.epsilon, rng)
            if not play_out(game, who, choose, _watch(game, 2 * done * len(pairs), 2 * rounds * len(pairs), watch)):
                break
            won = winners(game, who)
        for own, other in ((0, 1), (1, 0)):
            np.add.at(wins, tuple(pairs[pair[won == pairs[pair, own]]][:, [own, other]].T), 1)
            np.add.at(draws, tuple(pairs[pair[won < 0]][:, [own, other]].T), 1)
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
    """The same, but in the games of a bool mask [N] any move is a random one with probability `epsilon`."""

    def strays(game: Any, rows: np.ndarray, who: np.ndarray) -> np.ndarray:
        actions = choose(game, rows, who)
        random = where[rows] & (rng.random(len(rows)) < epsilon)
        if random.any():
            actions[random] = random_player(game, rng, rows[random])
        return actions

    return strays


def table(entries: Sequence[Entry], wins: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
    """What came of the games, as plain values; see `round_robin`. The first entry is rated 0."""
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
    """Elo ratings by maximum likelihood of the Bradley-Terry model, and their standard errors, float64 [K].

    Player i beats j with probability `1 / (1 + 10 ** ((elo[j] - elo[i]) / 400))`. Found by the iteration of Hunter
    2004 ("MM algorithms for generalized Bradley-Terry models", equation 3); errors by the observed information. The
    first player is rated 0, with no error.

    Args:
        shares: of games that i won against j, float [K, K], draws counting half.
        games: that they played, [K, K].
        prior: drawn games added to each pair that played; with 0, who wins all games has no finite rating.
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
    """A line about one player of the table."""
    return f"{player['name']} {player['elo']:.0f} +- {player['elo_half_width']:.0f}"
