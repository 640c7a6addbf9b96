"""Learning from both seats: what the newest weights decided for the other side is in the replay as the agent's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer import envs
from trainer.algorithms import make_policy
from trainer.config.sections import Config
from trainer.envs.games import GAMES
from trainer.envs.games.players import random_player
from trainer.envs.selfplay import Opponents, SelfPlay
from trainer.learning.feed import flat
from trainer.memory.boards import ControlBoard
from trainer.roles.agents import plan_agents
from trainer.roles.learner import Learner
from trainer.roles.rollout import CollectorPlan, Rollout
from trainer.roles.shared_memory import SharedMemoryLink
from trainer.selfplay.opponents import against_pool
from trainer.selfplay.pool import LATEST, open_pool

GAME = {"id": "tictactoe", "backend": "game"}
N, STEPS, GAMMA = 4, 300, 0.5
Moves = list[tuple[int, int]]  # (seat, cell) of a game


def transitions_of(moves: Moves, seat: int) -> dict[str, np.ndarray]:
    """What a seat saw, did and was paid in a finished game, worked out move by move; one more row for the end."""
    game = GAMES["tictactoe"](1)
    game.reset(0)
    found: dict[str, list[Any]] = {"observation": [], "action_mask": [], "action": [], "reward": []}

    def look() -> None:
        seen = game.observe(np.zeros(1, np.int64), np.array([seat]))
        for name in ("observation", "action_mask"):
            found[name].append(seen[name][0].copy())

    for mover, cell in moves:
        if mover == seat:
            look()
            found["action"].append(cell)
            found["reward"].append(0.0)
        game.step(np.array([cell]))
        if found["reward"]:
            found["reward"][-1] += game.rewards[0, seat]
    assert game.over[0]
    look()
    return {name: np.array(values) for name, values in found.items()}


def played(config: Config, folder: Path) -> tuple[Rollout, Any, list[list[Moves]]]:
    """A worker of `N` games after `STEPS` steps, its agent's plan, and the moves of all its games."""
    (plan,) = plan_agents(config, envs.describe_world(config.env), folder, folder)
    torch.manual_seed(7)
    world = envs.make_world(config.env, N)
    games: list[list[Moves]] = [[[]] for _ in range(N)]
    step = world.game.step

    def watched(action: np.ndarray, where: np.ndarray) -> None:
        for row in np.flatnonzero(where & ~world.game.over):
            if world.game.length[row] == 0 and games[row][-1]:
                games[row].append([])
            games[row][-1].append((int(world.game.to_move[row]), int(action[row])))
        step(action, where=where)

    world.game.step = watched
    pool = open_pool(config, folder, plan.weights.numel, 1)
    link = SharedMemoryLink(ControlBoard(1), [plan], 0)
    worker = CollectorPlan(config, (plan,), 0, opponents=partial(against_pool, pool))
    rollout = Rollout(worker, link, world, [make_policy(config, plan.spec)])
    for _ in range(STEPS):
        rollout.step([0])
    return rollout, plan, games


@pytest.fixture
def config(small_config: Callable[..., Config]) -> Config:
    """Against the newest weights alone, both sides moving at random now and then."""
    return small_config(
        env=GAME, algorithm={"n_step": 3, "gamma": GAMMA},
        collector={"num_workers": 1, "envs_per_worker": N, "epsilon_start": 0.5, "epsilon_end": 0.5},
        replay={"capacity_frames": 2 * N * STEPS},
        opponents={"random": 0.0, "latest": 1.0, "snapshots": 0.0, "epsilon": 0.5},
    )  # fmt: skip


def test_both_seats_of_every_game_are_in_the_replay(config: Config, tmp_path: Path) -> None:
    rollout, plan, games = played(config, tmp_path)
    (rows,) = [agent.link.rows for agent in rollout.agents]
    outcomes, seats = set(), set()
    for env in range(N):
        final = rows["final"][:STEPS, env]
        ends = np.flatnonzero(final)
        starts = np.concatenate([[0], ends[:-1] + 1])
        assert len(ends) > 40
        for episode, (start, end) in enumerate(zip(starts, ends, strict=True)):
            number, back = divmod(episode, 2)  # a game's own seat, and then the other one
            own = (env + number) % 2  # the seats go round
            seat = own ^ back
            expected = transitions_of(games[env][number], seat)
            assert rows["action"][start:end, env].tolist() == expected["action"].tolist()
            assert rows["reward"][start:end, env].tolist() == expected["reward"].tolist()
            assert rows["terminated"][start:end, env].tolist() == [False] * (end - start - 1) + [True]
            assert not rows["truncated"][start : end + 1, env].any()
            for name in ("observation", "action_mask"):  # of every decision, and the final one
                assert (rows[name][start : end + 1, env] == expected[name]).all()
            outcomes.add(expected["reward"][-1])
            seats.add((seat, back))
    assert outcomes == {-1.0, 0.0, 1.0} and seats == {(0, 0), (1, 0), (0, 1), (1, 1)}


def test_returns_over_them_are_those_of_the_games(config: Config, tmp_path: Path) -> None:
    """The n-step return of a decision is the discounted outcome where the game ends within n of its decisions."""
    rollout, plan, _ = played(config, tmp_path)
    (rows,) = [agent.link.rows for agent in rollout.agents]
    replay = Learner(plan, torch.device("cpu")).replay
    batch = flat(replay.sample(40 * replay.batch_size))
    stream, time = batch["stream"].numpy().ravel(), batch["time"].numpy().ravel()
    returns, done = batch["next", "reward"].numpy().ravel(), batch["next", "terminated"].numpy().ravel()
    assert len(time) > 400
    for env, start, value, ended in zip(stream, time, returns, done, strict=True):
        left = int(
            np.flatnonzero(rows["final"][start : start + 10, env])[0]
        )  # decisions until the end, this one counted
        assert ended == (left <= 3)
        assert value == (GAMMA ** (left - 1) * rows["reward"][start + left - 1, env] if left <= 3 else 0.0)
    assert set(returns.tolist()) == {0.0, *(sign * GAMMA**k for k in range(3) for sign in (-1, 1))}


def test_they_count_as_frames_and_not_as_games(config: Config, tmp_path: Path) -> None:
    rollout, plan, games = played(config, tmp_path)
    (rows,), board = [agent.link.rows for agent in rollout.agents], plan.board
    final = rows["final"][:STEPS]
    assert board.total_frames() == (~final).sum()
    finished = int(board.episodes_done[0])
    assert finished == rollout.opponents.pool.results[0, LATEST].sum()
    assert sum(len(own) for own in games) - N <= finished <= sum(len(own) for own in games)
    assert abs(2 * finished - final.sum()) <= 2 * N  # half of the episodes
    returns = board.episodes[0, :finished, 0]
    won, drawn, lost = rollout.opponents.pool.results[0, LATEST]
    assert [(returns == sign).sum() for sign in (1, 0, -1)] == [won, drawn, lost]


def test_without_both_seats_nothing_is_played_back(
    small_config: Callable[..., Config], config: Config, tmp_path: Path
) -> None:
    from dataclasses import replace

    config = replace(config, opponents=replace(config.opponents, both_seats=False))
    rollout, plan, games = played(config, tmp_path)
    assert (rollout.world.given[0] == -1).all()
    assert abs(int(plan.board.episodes_done[0]) - rollout.agents[0].link.rows["final"][:STEPS].sum()) <= N


def all_recorded() -> Opponents:
    """Random players, whose decisions all count as the agent's own."""
    opponents = Opponents([random_player], np.ones(1), 3)
    draw = opponents.draw

    def drawn(game: Any, rows: np.ndarray) -> None:
        draw(game, rows)
        opponents.own[rows] = True

    opponents.draw = drawn  # type: ignore[method-assign]
    return opponents


def test_several_other_seats_are_played_back_one_after_another() -> None:
    """Ludo of four: every seat's reward over an episode is what the game paid it; nothing moves meanwhile."""
    game = GAMES["ludo"](3, num_players=4, reward="dense")
    opponents = all_recorded()
    world, step = SelfPlay(game, opponents), game.step
    paid = np.zeros((3, 4))

    def watched(action: np.ndarray, where: np.ndarray) -> None:
        assert not (where & (world.given[0] >= 0)).any()
        step(action, where=where)
        paid[where] += game.rewards[where]

    game.step = watched  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    (seen,) = world.reset(1)
    total, episode = np.zeros(3), np.zeros(3, np.int64)
    while episode.min() < 8:
        over = ~world.present[0]
        paid[over & (episode % 4 == 0)] = 0
        mask = seen["action_mask"]
        assert mask[world.given[0] >= 0, world.given[0][world.given[0] >= 0]].all()  # what is given was legal
        ((seen, reward, terminated, _),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        total += reward
        for row in np.flatnonzero(terminated):
            others = [seat for seat in range(4) if seat != world.seat[row]]
            seat = [world.seat[row], *others][episode[row] % 4]
            assert total[row] == pytest.approx(paid[row, seat], abs=1e-3)
            total[row] = 0
            episode[row] += 1


def test_a_game_that_is_cut_off_for_a_seat_is_truncated_for_it() -> None:
    """A game that says so of one seat: its episode is truncated, be it the agent's own or played back."""
    game = GAMES["tictactoe"](4)
    game.truncated = np.zeros((4, 2), bool)  # type: ignore[attr-defined]
    game.truncated[:, 1] = True  # type: ignore[attr-defined]
    opponents = all_recorded()
    world, rng = SelfPlay(game, opponents), np.random.default_rng(0)
    (seen,) = world.reset(1)
    episode = np.zeros(4, np.int64)
    while episode.min() < 8:
        mask = seen["action_mask"]
        ((seen, _, terminated, truncated),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        for row in np.flatnonzero(terminated | truncated):
            seat = world.seat[row] ^ (episode[row] % 2)
            assert truncated[row] == (seat == 1) and terminated[row] == (seat == 0)
            episode[row] += 1


def test_a_game_that_ends_before_the_agent_is_asked_is_followed_by_the_next() -> None:
    """Where the first move may end the game at once, the agent's next observation is of a game that it can play."""
    game = GAMES["tictactoe"](6)
    step = game.step

    def at_once(action: np.ndarray, where: np.ndarray) -> None:
        first = where & (game.length == 0) & (action < 4)
        step(action, where=where)
        game.over[first], game.winner[first], game.action_mask[first] = True, 0, True
        game.to_move[first] = 0

    game.step = at_once  # type: ignore[method-assign]
    opponents, counted = Opponents([random_player], np.ones(1), 3), []
    opponents.ended = lambda game, rows, seats: counted.extend(zip(rows, seats, strict=True))  # type: ignore
    world, rng = SelfPlay(game, opponents), np.random.default_rng(0)
    (seen,) = world.reset(1)
    ends, before = 0, np.ones(6, bool)
    for _ in range(100):
        mask = seen["action_mask"]
        ((seen, _, terminated, _),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        assert before[terminated].all()  # a final observation is followed by one that is not
        assert (game.to_move == world.seat)[~terminated].all()
        ends += int(terminated.sum())
        before = ~terminated
    assert len(counted) > ends > 100  # those that the agent was not asked in are counted as games, too
