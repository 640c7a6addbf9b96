"""Strength in figures that can be checked: Elo of hand-made matrices, Wilson's intervals, a league of a real run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
import torch

from trainer.algorithms import make_policy
from trainer.commands import league as league_command
from trainer.config.run_config import from_yaml
from trainer.config.sections import Config, EnvConfig
from trainer.envs.games import GAMES
from trainer.envs.games.players import PLAYERS, random_player
from trainer.memory.weights import flatten_parameters
from trainer.selfplay.league import ratings, round_robin
from trainer.selfplay.matches import network_players, seated
from trainer.telemetry.metrics import wilson
from trainer.training.train import train

GAME = {"id": "tictactoe", "backend": "game"}


def test_elo_of_matrices_made_by_hand() -> None:
    # 75 % is odds of 3: 400 log10(3) = 190.85; its error 400 / ln(10) / sqrt(100 x .75 x .25) = 40.12.
    elo, error = ratings(np.array([[0, 25], [75, 0]]), np.array([[0, 100], [100, 0]]), prior=0)
    assert elo.tolist() == pytest.approx([0, 190.849], abs=0.001)
    assert error.tolist() == pytest.approx([0, 40.118], abs=0.001)
    # Odds of 3, 3 and 9 fit one another: twice the distance.
    shares = 100 * np.array([[0, 1 / 4, 1 / 10], [3 / 4, 0, 1 / 4], [9 / 10, 3 / 4, 0]])
    elo, _ = ratings(shares, 100 - 100 * np.eye(3), prior=0)
    assert elo.tolist() == pytest.approx([0, 190.849, 381.697], abs=0.001)
    # Who wins all of 100 is given one drawn game: odds of 100.5 to .5.
    elo, error = ratings(np.array([[0, 0], [100, 0]]), np.array([[0, 100], [100, 0]]))
    assert elo[1] == pytest.approx(400 * np.log10(201)) and np.isfinite(error).all()


def test_ratings_are_the_most_likely_ones() -> None:
    rng = np.random.default_rng(0)
    games = np.triu(rng.integers(10, 50, (6, 6)), 1)
    wins = rng.binomial(games, rng.random((6, 6)))
    shares, games = np.triu(wins, 1) + np.triu(games - wins, 1).T, games + games.T
    elo, _ = ratings(shares, games, prior=0)
    # Where the likelihood is largest everyone has won as many games as the model expects.
    expected = games / (1 + 10 ** ((elo - elo[:, None]) / 400))
    assert expected.sum(1) == pytest.approx(shares.sum(1), abs=1e-6)


def test_wilsons_interval() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_many_networks_in_one_pass_choose_as_each_would_alone() -> None:
    config, game, rng = Config(env=EnvConfig(**GAME)), GAMES["tictactoe"](40), np.random.default_rng(0)
    for _ in range(2):
        game.step(random_player(game, rng))
    policies, flats = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        policies.append(make_policy(config, game.spec))
        flats.append(flatten_parameters(policies[-1]))
    choose = network_players(config, game.spec, torch.stack(flats), block=8)  # some are asked more than that
    rows = np.flatnonzero(rng.random(40) < 0.8)
    who = np.where(rng.random(len(rows)) < 0.6, 2, rng.integers(0, 2, len(rows)))
    actions = choose(game, rows, who)
    seen = game.observe(rows)
    for row, number in enumerate(who):
        with torch.no_grad():
            values = policies[number].module[0].module(torch.from_numpy(seen["observation"][row : row + 1]))[0]
        values[~torch.from_numpy(seen["action_mask"][row])] = -torch.inf
        assert actions[row] == int(values.argmax())


def test_everyone_begins_as_often_as_the_other() -> None:
    begun = [0, 0, 0]

    def player(number: int) -> Any:
        def act(game: Any, generator: np.random.Generator, rows: np.ndarray) -> np.ndarray:
            begun[number] += int((game.length[rows] == 0).sum())
            return random_player(game, generator, rows)

        return act

    config = Config(env=EnvConfig(**GAME))
    none = seated([], None, np.random.default_rng(0))
    wins, draws = round_robin(config, [player(number) for number in range(3)], none, 3, 9, seed=1)
    assert begun == [10, 10, 10]  # 9 games a pair are rounded up to 10, of which each begins 5
    assert (wins + wins.T + draws + 10 * np.eye(3) == 10).all() and (draws == draws.T).all()


def test_with_four_seats_each_has_two_of_them() -> None:
    config = Config(env=EnvConfig(id="ludo", backend="game", kwargs={"num_players": 4}))
    none = seated([], None, np.random.default_rng(0))
    wins, draws = round_robin(config, list(PLAYERS["ludo"].values()), none, 2, 40, seed=1)
    assert wins.sum() == 40 and not draws.any()
    assert wins[1, 0] >= 30  # the heuristic wins some 90 % against random play


def test_a_run_ends_with_its_league(game_run: Path) -> None:
    summary, result = (json.loads((game_run / name).read_text()) for name in ("summary.json", "league.json"))
    assert summary["status"] == "finished" and summary["league_games"] == result["games_per_pair"] == 6
    names = [player["name"] for player in result["players"]]
    assert names[:2] == ["random", "scripted"] and "best" in names
    kept = [torch.load(path)["frames"] for path in sorted((game_run / "pool").glob("snapshot_*.pt"))]
    assert names[2:5] == [f"snapshot_{frames}" for frames in kept] and len(kept) == 3
    assert list(summary["elo"]) == names and summary["elo"]["random"] == 0
    wins, draws = np.array(result["wins"]), np.array(result["draws"])
    assert (wins + wins.T + draws + 6 * np.eye(len(names)) == 6).all()
    assert not wins[:, names.index("scripted")].any()  # nobody beats perfect play
    assert result["score"][0][1] == (wins[0, 1] + draws[0, 1] / 2) / 6
    assert result["score_low"][0][1] < result["score"][0][1] + 1e-9 < result["score_high"][0][1]
    assert imageio.imread(game_run / "league.png").shape[0] > 400
    rows = [json.loads(line) for line in (game_run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["elo_best"] == summary["elo"]["best"] and rows[-1]["elo_scripted"] == summary["elo"]["scripted"]


def test_results_against_each_opponent_are_kept(game_run: Path) -> None:
    lines = json.loads((game_run / "pool" / "results.json").read_text())["opponents"]
    assert [line["kind"] for line in lines] == ["random", "scripted", "latest", *["snapshot"] * 3]
    rows = [json.loads(line) for line in (game_run / "metrics.jsonl").read_text().splitlines()]
    row = [row for row in rows if "games_random" in row][-1]
    for line in lines[:3]:
        kind, games = line["kind"], line["won"] + line["drawn"] + line["lost"]
        assert games == line["games"] == row[f"games_{kind}"] > 0
        low, high = wilson(line["won"] + line["drawn"] / 2, games)
        assert (row[f"score_low_{kind}"], row[f"score_high_{kind}"]) == pytest.approx((low, high))
        assert low <= row[f"score_{kind}"] <= high
    snapshots = sum(line["won"] + line["drawn"] + line["lost"] for line in lines[3:])
    assert snapshots == row["games_snapshots"]


def test_the_command_plays_it_again_and_leaves_torn_snapshots_out(
    game_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(game_run, run)
    torn, *_ = sorted((run / "pool").glob("snapshot_*.pt"))
    torn.write_bytes(b"torn")
    assert league_command.main([str(run), "--games", "12"]) == 0
    out, err = capsys.readouterr()
    assert f"warning: checkpoint {torn} is torn" in err and "the league is played without it" in err
    result = json.loads((run / "league.json").read_text())
    assert result["games_per_pair"] == 12
    assert [player["kind"] for player in result["players"]].count("snapshot") == 2
    assert out.splitlines()[0].startswith("Elo above random play, 12 games a pair")
    assert len(out.splitlines()) == len(result["players"]) + 2
    first = result["wins"]
    assert league_command.main([str(run), "--games", "12"]) == 0
    assert json.loads((run / "league.json").read_text())["wins"] == first  # the same seed, the same games
    (run / "best" / "policy.safetensors").write_bytes(b"torn")
    assert league_command.main([str(run)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: checkpoint ")


def test_it_is_refused_without_a_game(
    small_config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert league_command.main([str(tmp_path)]) == 2
    assert "is no run's folder" in capsys.readouterr().err
    config = small_config(budget_frames=400, schedule={"name": "sequential"})
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and "elo" not in summary
    assert league_command.main([str(config.run_dir)]) == 2
    assert "Counting is no turn-based game" in capsys.readouterr().err


def test_a_league_that_fails_costs_the_run_nothing(game_run: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    config = from_yaml(game_run / "config.yaml")
    config = replace(config, run_dir=str(tmp_path / "run"), budget_frames=400)
    (tmp_path / "run" / "league.json").mkdir(parents=True)  # so that it cannot be written
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and summary["eval_episodes"] == 2 and "elo" not in summary
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "warning: the league was not played (IsADirectoryError: " in log
    assert "Traceback" not in log


def test_time_that_is_up_leaves_two_games_a_pair_with_seats_balanced() -> None:
    config = Config(env=EnvConfig(**GAME))
    none = seated([], None, np.random.default_rng(0))
    wins, draws = round_robin(config, [random_player] * 3, none, 3, 50, seed=1, max_seconds=0.0)
    assert (wins + wins.T + draws + 2 * np.eye(3) == 2).all()
