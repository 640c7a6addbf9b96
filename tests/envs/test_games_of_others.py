"""Games of OpenSpiel's and turn-based environments of PettingZoo's, behind the interface of `trainer.envs.games`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
import pytest

from trainer import envs
from trainer.commands import eval as evaluate
from trainer.commands import play
from trainer.config.sections import Config
from trainer.envs.games.players import random_player
from trainer.envs.selfplay import Opponents, SelfPlay, game_of
from trainer.envs.selfplay import make as make_selfplay
from trainer.training.train import train

pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")

MADE = [
    ("openspiel", "leduc_poker"),
    ("openspiel", "kuhn_poker(players=3)"),
    ("openspiel", "connect_four"),
    ("openspiel", "backgammon"),
    ("pettingzoo", "classic/tictactoe_v3"),
    ("pettingzoo", "classic/connect_four_v3"),
    ("pettingzoo", "three_v0"),
]
ALL = pytest.mark.parametrize(("backend", "env_id"), MADE, ids=[env_id for _, env_id in MADE])
ARRAYS = ("to_move", "action_mask", "rewards", "over", "winner", "length")


class Three:
    """Three players count; `b` is out after its second move, and a move pays the mover 1 and takes 1 from the next.

    `a` and `c` move `limit` times each, after which the one is terminated and the other cut off; with `folds`
    the last action ends the game at once.
    """

    metadata: dict[str, Any] = {"name": "three_v0"}
    possible_agents = ["a", "b", "c"]

    def __init__(self, limit: int = 5, odd: bool = False, folds: bool = False, render_mode: str | None = None) -> None:
        self.limit, self.odd, self.folds = limit, odd, folds

    def observation_space(self, agent: str) -> gym.Space:
        return gym.spaces.Box(0, 100, (2 + (self.odd and agent == "c"),), np.float32)

    def action_space(self, agent: str) -> gym.Space:
        return gym.spaces.Discrete(3, start=4)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.moves = list(self.possible_agents), dict.fromkeys("abc", 0)
        self.terminations, self.truncations = dict.fromkeys("abc", False), dict.fromkeys("abc", False)
        self.rewards, self.first = dict.fromkeys("abc", 0.0), (seed or 0) % 2
        self.agent_selection = "ab"[self.first]
        self._say()

    def _say(self) -> None:
        self.infos = {name: {"action_mask": np.array([1, self.moves[name] % 2, 1], np.int8)} for name in self.agents}

    def observe(self, agent: str) -> np.ndarray:
        assert agent in self.agents
        return np.array([self.moves[agent], sum(self.moves.values())], np.float32)

    def step(self, action: int | None) -> None:
        name = self.agent_selection
        following = self.agents[(self.agents.index(name) + 1) % len(self.agents)]
        if self.terminations[name] or self.truncations[name]:
            assert action is None
            self.agents.remove(name)
            self.rewards = dict.fromkeys(self.agents, 0.0)
        else:
            assert action in (4, 5, 6) and self.infos[name]["action_mask"][action - 4]
            self.moves[name] += 1
            self.rewards = {**dict.fromkeys(self.agents, 0.0), name: 1.0, following: -1.0}
            self.terminations["b"] = self.moves["b"] == 2
            if all(self.moves[one] >= self.limit for one in "ac"):
                self.terminations["a"] = self.truncations["c"] = True
            if self.folds and action == 6:
                self.terminations = dict.fromkeys("abc", True)
        self.agent_selection = following
        self._say()

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("three_v0")
    module.raw_env = Three  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "three_v0", module)


@pytest.fixture
def make(config: Callable[..., Any]) -> Callable[..., Any]:
    def made(backend: str, env_id: str, num_games: int, **kwargs: Any) -> Any:
        return game_of(config(env_id, backend=backend, kwargs=kwargs), num_games, None)

    return made


def everything(game: Any) -> dict[str, np.ndarray]:
    """Copies of all that a game shows."""
    shown = {name: getattr(game, name).copy() for name in ARRAYS}
    return shown | {name: array.copy() for name, array in game.observe().items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any], rows: Any = slice(None)) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name][rows], other[name][rows], err_msg=name)


@ALL
def test_play_to_the_end(backend: str, env_id: str, make: Callable[..., Any]) -> None:
    game, rng = make(backend, env_id, 20), np.random.default_rng(0)
    assert game.spec.action.has_mask and game.spec.num_actions == game.num_actions
    game.reset(9)
    returns, lengths = np.zeros((20, game.num_players)), np.zeros(20, np.int64)
    arrays = {name: getattr(game, name) for name in ARRAYS}
    while not game.over.all():
        assert game.action_mask.any(1).all() and (game.winner[~game.over] == -1).all()
        mover, running = game.to_move.copy(), ~game.over
        game.step(random_player(game, rng))
        assert (game.rewards[~running] == 0).all()
        returns += game.rewards
        lengths += running
        ended = running & game.over
        assert (game.to_move[ended] == mover[ended]).all()
    assert all(getattr(game, name) is array for name, array in arrays.items())  # made once
    assert game.action_mask.all() and (game.length == lengths).all()
    best = returns.max(1, keepdims=True) == returns
    assert (game.winner == np.where(best.sum(1) == 1, best.argmax(1), -1)).all()
    if backend == "openspiel":
        assert np.allclose(returns, [state.returns() for state in game.states])
    assert np.allclose(returns.sum(1), 0)
    for leaf in game.spec.leaves:
        array = game.observe()[leaf.name]
        assert array.shape == (20, *leaf.shape) and array.dtype == leaf.dtype
    # Also at the end every seat can be asked what it sees, and sees who it is.
    seat_of = "observation" if backend == "openspiel" else "observation.seat"
    for seat in range(game.num_players):
        seen = game.observe(seats=np.full(20, seat))
        assert (seen[seat_of][:, -game.num_players :].argmax(1) == seat).all() and seen["action_mask"].all()
    shown = everything(game)
    game.step(np.zeros(20, np.int64))
    shown["rewards"][:] = 0
    assert_equal(shown, everything(game))


@ALL
def test_a_seed_is_a_game_whatever_the_batch(backend: str, env_id: str, make: Callable[..., Any]) -> None:
    batch, singles = make(backend, env_id, 3), [make(backend, env_id, 1) for _ in range(3)]
    batch.reset(40)
    for i, single in enumerate(singles):
        single.reset(40 + i)
    rng, where = np.random.default_rng(0), np.ones(3, bool)
    for turn in range(200):  # several games, one after the other
        action = random_player(batch, rng)
        where[1] = turn % 3 > 0  # one is left alone now and then
        batch.step(action, where)
        shown = everything(batch)
        for i in np.flatnonzero(where):
            singles[i].step(action[i : i + 1])
            assert_equal(everything(singles[i]), {key: array[i : i + 1] for key, array in shown.items()})
        assert where[1] or not batch.rewards[1].any()
        over = batch.over.copy()
        batch.reset_where(over)
        assert not batch.over.any() and not batch.rewards[over].any()
        for i in np.flatnonzero(over):
            singles[i].reset_where(np.array([True]))


@ALL
def test_a_state_goes_on_elsewhere(backend: str, env_id: str, make: Callable[..., Any], tmp_path: Path) -> None:
    from trainer.run_folder import checkpoint

    game, other = make(backend, env_id, 4), make(backend, env_id, 4)
    game.reset(6)
    rng = np.random.default_rng(0)
    for _ in range(33):
        game.step(random_player(game, rng))
        game.reset_where(game.over.copy())
    checkpoint.write_aside(game.state(), tmp_path / "state.pt")  # as resume does
    other.set_state(checkpoint.load(tmp_path / "state.pt"))
    for _ in range(60):
        action = random_player(game, rng)
        for each in (game, other):
            each.step(action)
            each.reset_where(each.over.copy())
        assert_equal(everything(game), everything(other))


@ALL
def test_illegal_actions_are_refused_before_anything_changes(
    backend: str, env_id: str, make: Callable[..., Any]
) -> None:
    game, rng = make(backend, env_id, 4), np.random.default_rng(0)
    for _ in range(1 if game.num_actions == 2 else 100):  # both of Kuhn's actions are legal always
        if not game.action_mask[2].all():
            break
        game.step(random_player(game, rng))
        game.reset_where(game.over.copy())
    before, action = everything(game), random_player(game, rng)
    action[2] = np.flatnonzero(~game.action_mask[2])[0] if game.num_actions > 2 else 2
    with pytest.raises(envs.EnvError, match=f"action {action[2]} is illegal in game 2; its action_mask allows"):
        game.step(action)
    assert_equal(before, everything(game))


@ALL
def test_every_reward_of_every_game_reaches_the_agent(backend: str, env_id: str, make: Callable[..., Any]) -> None:
    """Also the loser's last one, which is paid when another one has moved."""
    game = make(backend, env_id, 6)
    world = SelfPlay(game, Opponents([random_player], np.ones(1), 3))
    rng, totals, outcomes, moved_last = np.random.default_rng(0), np.zeros(6), set(), set()
    paid = np.zeros((6, game.num_players))
    step, start = game.step, game.reset_where

    def watched(action: np.ndarray, where: np.ndarray) -> None:
        step(action, where=where)
        paid[where] += game.rewards[where]

    def started(mask: np.ndarray) -> None:
        start(mask)
        paid[mask], totals[mask] = 0, 0

    game.step, game.reset_where = watched, started
    (seen,) = world.reset(11)
    for _ in range(600):
        mask = seen["action_mask"]
        ((seen, reward, terminated, truncated),) = world.step([np.where(mask, rng.random(mask.shape), -1.0).argmax(1)])
        totals += reward
        own = paid[np.arange(6), world.seat]
        over = terminated | truncated
        assert not (terminated & truncated).any() and (over == game.over).all()
        assert env_id == "three_v0" or not truncated.any()
        if env_id != "three_v0":
            assert np.allclose(totals[over], own[over])
        for row in np.flatnonzero(over):
            outcomes.add(float(np.sign(totals[row])))
            moved_last.add((bool(totals[row] < 0), bool(game.to_move[row] == world.seat[row])))
    if env_id != "three_v0":
        assert {1.0, -1.0} <= outcomes
        assert (True, False) in moved_last  # lost by another's move


def test_pettingzoo_pays_what_last_says(make: Callable[..., Any]) -> None:
    """The same moves in the environment itself, stepped as PettingZoo's documentation does."""
    from pettingzoo.classic import connect_four_v3

    game, env, rng = make("pettingzoo", "classic/connect_four_v3", 1), connect_four_v3.env(), np.random.default_rng(0)
    lost = 0
    for seed in range(5):
        game.reset(seed)
        env.reset(seed=seed)
        paid, got = np.zeros(2), dict.fromkeys(env.possible_agents, 0.0)
        for agent in env.agent_iter():
            seen, reward, terminated, _, _ = env.last()
            got[agent] += reward
            if terminated:
                env.step(None)
                continue
            assert agent == game.agents[game.to_move[0]]
            np.testing.assert_array_equal(game.observe()["observation.observation"][0], seen["observation"])
            np.testing.assert_array_equal(game.action_mask[0], seen["action_mask"])
            action = random_player(game, rng)
            game.step(action)
            env.step(int(action[0]))
            paid += game.rewards[0]
        assert paid.tolist() == list(got.values()) and game.over[0]
        lost += int(-1 in paid[[1 - game.to_move[0]]])
    assert lost == 5  # every loser had moved before


def test_who_is_out_moves_no_more_and_is_cut_off_only_where_it_was(make: Callable[..., Any]) -> None:
    game = make("pettingzoo", "three_v0", 2)
    assert game.spec.num_actions == 3 and game.spec.action.start == 0  # the start 4 is added inside
    game.reset(6)
    assert game.to_move.tolist() == [0, 1]  # seed 7 lets the second begin
    movers = []
    while not game.over[0]:
        movers.append("abc"[game.to_move[0]])
        assert game.action_mask[0].tolist() == [True, movers.count(movers[-1]) % 2 == 0, True]
        game.step(np.zeros(2, np.int64), np.array([True, False]))
    assert "".join(movers) == "abcab" + "cacacac"
    assert game.truncated[0].tolist() == [False, False, True]
    # It was there until its third turn, after 7 moves; what it saw then is kept.
    assert game.observe(np.array([0]), np.array([1]))["observation"].tolist() == [[2, 7]]
    world = SelfPlay(make("pettingzoo", "three_v0", 3), Opponents([random_player], np.ones(1)))
    (seen,) = world.reset(0)
    ends = [0, 0, 0]
    for _ in range(6):
        ((seen, _, terminated, truncated),) = world.step([np.zeros(3, np.int64)])
        assert (terminated & (world.seat == 2)).sum() == 0 == (truncated & (world.seat < 2)).sum()
        ends = [end + int(over) for end, over in zip(ends, terminated | truncated, strict=True)]
    assert ends[1] >= 1  # the one that is out waits for the end of the game


def test_a_game_that_is_over_before_the_agent_decides_is_no_episode(make: Callable[..., Any]) -> None:
    game = make("pettingzoo", "three_v0", 30, folds=True)
    world = SelfPlay(game, Opponents([random_player], np.ones(1), 3))
    world.reset(0)
    assert not game.over.any() and (game.to_move == world.seat).all()
    ends = 0
    for _ in range(50):
        fresh = ~world.present[0]
        ((_, _, terminated, truncated),) = world.step([np.zeros(30, np.int64)])
        assert world.present[0][fresh].all() and (game.to_move == world.seat)[fresh].all()
        ends += int((terminated | truncated).sum())
    assert ends > 100

    def first(game: Any, generator: np.random.Generator, rows: np.ndarray) -> np.ndarray:
        return np.full(len(rows), 2)

    world = SelfPlay(make("pettingzoo", "three_v0", 3, folds=True), Opponents([first], np.ones(1)))
    with pytest.raises(envs.EnvError, match="three_v0: 1000 games had no decision for the agent; take another game"):
        world.reset(0)


@pytest.mark.parametrize(
    ("backend", "env_id", "kwargs", "sentence"),
    [
        ("openspiel", "leduk_poker", {}, "OpenSpiel has no such game; did you mean leduc_poker?"),
        ("openspiel", "breakthrough", {"rowz": 6}, "cannot make it with .*Unknown parameter 'rowz'"),
        ("openspiel", "kuhn_poker", {"num_games": 3}, "env.kwargs={'num_games': 3} do not fit: .*multiple values"),
        ("openspiel", "goofspiel", {}, r"move at the same time; by turns it is env.id=turn_based_simultaneous_game"),
        ("openspiel", "mfg_crowd_modelling", {}, "mean-field games have no opponents"),
        ("openspiel", "blackjack", {}, "it is for one player"),
        ("openspiel", "tarok", {}, "it draws its chances itself"),
        ("openspiel", "tic_tac_toe", {"observation": "information_state"}, "has no information_state tensor"),
        ("openspiel", "tic_tac_toe", {"observation": "tensor"}, "observation=tensor is none of"),
        ("pettingzoo", "classic/tictactoe_v4", {}, "there is no such module"),
        ("pettingzoo", "classic", {}, "has neither parallel_env nor env"),
        ("pettingzoo", "classic/tictactoe_v3", {"rows": 4}, "it could not be made with env.kwargs={'rows': 4}"),
        ("pettingzoo", "three_v0", {"odd": True}, "a and c differ in spaces, and one network is to play both"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(
    backend: str, env_id: str, kwargs: dict[str, Any], sentence: str, config: Callable[..., Any]
) -> None:
    with pytest.raises(envs.EnvError, match=sentence) as refused:
        envs.make_world(config(env_id, backend=backend, kwargs=kwargs), 1)
    assert "\n" not in str(refused.value)


def test_an_environment_that_fails_is_named(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    game = make("pettingzoo", "three_v0", 2)
    game.reset(30)
    game.step(np.zeros(2, np.int64))
    monkeypatch.setattr(Three, "_say", lambda self: 1 / 0)
    with pytest.raises(envs.EnvError, match=r"environment 0 \(seed 30\) failed after 2 moves: ZeroDivisionError"):
        game.step(np.zeros(2, np.int64))
    with pytest.raises(envs.EnvError, match="opponents see one frame at a time; set env.frame_stack=1"):
        stacked = {"backend": "openspiel", "id": "hex", "frame_stack": 2, "kwargs": {}, "import_modules": []}
        make_selfplay(type("Env", (), stacked), 1)


@pytest.mark.parametrize(
    ("backend", "env_id", "kwargs"),
    [
        ("openspiel", "breakthrough", {"rows": 6, "columns": 6}),
        pytest.param("pettingzoo", "classic/tictactoe_v3", {}, marks=pytest.mark.slow),
    ],
)
def test_games_of_others_train_unchanged(
    backend: str, env_id: str, kwargs: dict[str, Any], small_config: Callable[..., Config],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = small_config(
        env={"id": env_id, "backend": backend, "kwargs": kwargs}, budget_frames=600,
        opponents={"snapshot_every_frames": 200, "scripted": 0.2 * (backend == "openspiel")},
    )  # fmt: skip
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and summary["updates"] > 0
    assert -1.0 <= summary["eval_return_mean"] <= 1.0
    assert {"random", "best"} <= set(summary["elo"])  # so that the league was played
    run_dir = Path(str(config.run_dir))
    assert len(list((run_dir / "pool").glob("snapshot_*.pt"))) >= 2
    assert evaluate.main([str(run_dir), "--episodes", "4", "--num-envs", "2"]) == 0
    assert '"episodes": 4' in capsys.readouterr().out
    assert play.main([str(run_dir), "--opponent", "random", "--out", str(run_dir / "game.gif")]) == 0
    assert "of 1 finished games against random" in capsys.readouterr().out
    pictures = imageio.imread(run_dir / "game.gif")
    assert len(pictures) > 5 and (pictures[0] != pictures[-1]).any()
