"""A turn-based game as a world of one agent, whose opponents move within its steps.

A transition leads from one decision of the agent to its next one, or to the end of the game, which is a termination.
Rewards during the opponents' moves in between are added, so a loser's last reward counts. A reward before the agent's
first decision is added to that of the first one, so the return is the sum of all rewards of the seat.

The agent's seat changes: sub-environment i plays its e-th episode on seat `(i + e) % num_players`. The opponents of the
other seats are drawn at the beginning of each episode. Seats that opponents mark as the agent's own are played back as
further episodes when the game is over (`trainer.envs.playback`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.envs.backends import backend_of
from trainer.envs.games import GAMES
from trainer.envs.games.players import PLAYERS, Player, random_player
from trainer.envs.import_paths import NoPart, function_at, is_path, part_at
from trainer.envs.modules import import_modules
from trainer.envs.pettingzoo import is_turn_based
from trainer.envs.playback import Playback
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.world import AGENT, Observation, Step
from trainer.envs.wrapping import arguments, maker_of, wrapped_games

ATTEMPTS = 1_000  # games that may end in a row without a decision of the agent

# (game, rows int64 [M], number of the opponent in each, int64 [M]) -> actions int64 [M]
NetworkPlayers = Callable[[Any, NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]


class Opponents:
    """The opponents on the other seats of N games of P seats: functions.

    Args:
        players: functions of `trainer.envs.games.players`.
        chances: how often each player is drawn, float64 [len(players)]; may be changed at any time.
        seed: of all random choices.

    Attributes:
        own: bool [N, P], seats whose decisions are the agent's, so that it learns from them; here none.
    """

    def __init__(self, players: Sequence[Player], chances: NDArray[np.float64], seed: int | list[int] = 0) -> None:
        self._players, self._chances = list(players), chances
        self._seed = [seed] if isinstance(seed, int) else seed
        self.generator = np.random.default_rng(self._seed)
        self.kind = np.zeros((0, 0), np.int64)  # [N, P], index of the player on each seat
        self.own = np.zeros((0, 0), bool)

    def reseed(self, seed: int) -> None:
        """Seed all random choices again, for games that are reset with `seed`."""
        self.generator = np.random.default_rng([*self._seed, seed])

    def draw(self, game: Any, rows: NDArray[np.int64]) -> None:
        """Choose an opponent for every seat of the games `rows`, int64 [M], which begin."""
        if self.kind.shape != (game.num_games, game.num_players):
            self.kind = np.zeros((game.num_games, game.num_players), np.int64)
            self.own = np.zeros(self.kind.shape, bool)
        chances = self._chances / self._chances.sum()
        self.kind[rows] = self.generator.choice(len(chances), (len(rows), game.num_players), p=chances)

    def act(self, game: Any, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Actions, int64 [M], of the opponents to move in the games `rows`, int64 [M]."""
        kinds = self.kind[rows, game.to_move[rows]]
        actions = np.zeros(len(rows), np.int64)
        for kind in np.unique(kinds):
            theirs = kinds == kind
            actions[theirs] = self._players[kind](game, self.generator, rows[theirs])
        return actions

    def ended(self, game: Any, rows: NDArray[np.int64], seats: NDArray[np.int64]) -> None:
        """Do nothing; called when the games `rows`, int64 [M], are over, with the agent's seats, int64 [M]."""


class SelfPlay:
    """`num_games` games of one agent against `Opponents`; see `trainer.envs.world`.

    Args:
        game: N games with the interface of `trainer.envs.games`.
        opponents: with the interface of `Opponents`; may be replaced before a reset.

    Attributes:
        given: [int64 [N]], recorded actions that are taken whatever the agent chooses, in episodes that are played
            back; -1 where the agent chooses. Such an episode is not counted again.
    """

    agents: tuple[str, ...] = (AGENT,)

    def __init__(self, game: Any, opponents: Any) -> None:
        self.game, self.opponents = game, opponents
        n = game.num_games
        self.num_envs: int = n
        self.specs: tuple[EnvSpec, ...] = (replace(game.spec, against_opponents=True),)
        self.present = [np.ones(n, bool)]
        self.raw_rewards = [np.zeros(n, np.float32)]
        self.seat = np.zeros(n, np.int64)
        self._playback = Playback(n, game.num_players, game.spec.action)
        self.given = [self._playback.given]
        self._episode = np.zeros(n, np.int64)
        self._early = np.zeros(n, np.float32)  # rewards before the agent's first decision
        self._over, self._terminated, self._cut = (np.zeros(n, bool) for _ in range(3))
        self._rows, self._actions = np.arange(n), np.zeros(n, np.int64)
        self._legal = np.ones((n, game.spec.num_actions), bool)  # at the agent's last decision

    def reset(self, seed: int | None = None) -> list[Observation]:
        """Start every game. With a seed, the agent's seats and the random choices of the opponents start again too."""
        if seed is not None:
            self._episode[:] = 0
            self.opponents.reseed(seed)
        self.game.reset(seed)
        self._playback.reset()
        self._begin(self._rows)
        self._over[:], self._cut[:], self.present[0][:] = False, False, True
        return [self._observe()]

    def step(self, actions: list[NDArray[np.int64]]) -> list[Step]:
        """Take the agent's move in every game, and the opponents' until it is to move again; restart ended games."""
        reward, fresh, back = self.raw_rewards[0], self._over.copy(), self._playback
        reward[:] = 0
        shown = back.showing & ~fresh
        playing = ~fresh & ~shown
        self.game.step(actions[0], where=playing)
        reward[playing] = self._early[playing]
        self._early[playing] = 0
        self._pay(playing, reward)
        back.advance(np.flatnonzero(shown), reward)
        if fresh.any():
            rows = np.flatnonzero(fresh)
            starting = rows[~back.begin(rows)]
            fresh[:] = False
            fresh[starting] = True
            self.game.reset_where(fresh)
            self._begin(starting)
        self._others_move(playing, reward)
        self._end(np.flatnonzero(self.game.over & playing))
        self._over[:] = np.where(back.showing, back.over, self.game.over)
        np.logical_not(self._over, out=self.present[0])
        truncated = getattr(self.game, "truncated", None)  # bool [N, P], for games that can be cut off
        cut = False if truncated is None else self._over & truncated[self._rows, self.seat]
        self._cut[:] = np.where(back.showing, back.cut, cut)
        np.logical_and(self._over, ~self._cut, out=self._terminated)
        return [(self._observe(), reward, self._terminated, self._cut)]

    def state(self) -> dict[str, Any] | None:
        """The state without the opponents'; None if the game has none."""
        game = self.game.state()
        kept = ("seat", "_episode", "_early", "_over", "_cut", "_legal")
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in kept}
        return None if game is None else {"game": game, "own": arrays, "playback": self._playback.state()}

    def set_state(self, state: dict[str, Any], actions: Any) -> list[Observation]:
        """Restore the `state` of another one, and return the observation there."""
        self.game.set_state(state["game"])
        for name, tensor in state["own"].items():
            getattr(self, name)[:] = tensor.numpy()
        self._playback.set_state(state["playback"])
        np.logical_not(self._over, out=self.present[0])
        return [self._observe()]

    def render(self) -> Any:
        """The picture of game 0."""
        return self.game.render(0)

    def close(self) -> None:
        """Close the game, if it has a `close`."""
        if hasattr(self.game, "close"):
            self.game.close()

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Play the games `rows` up to the agent's first decision; a game that ends before it is restarted."""
        if not len(rows):
            return
        self.seat[rows] = (rows + self._episode[rows]) % self.game.num_players
        self._episode[rows] += 1
        for _ in range(ATTEMPTS):
            self.opponents.draw(self.game, rows)
            starting = np.zeros(self.num_envs, bool)
            starting[rows] = True
            self._early[rows] = 0
            self._others_move(starting, self._early)
            rows = rows[self.game.over[rows]]
            if not len(rows):
                return
            self._end(rows)
            self.game.reset_where(starting & self.game.over)
        raise EnvError(f"{self.game.spec.id}: {ATTEMPTS} games had no decision for the agent; take another game.")

    def _end(self, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        self.opponents.ended(self.game, rows, self.seat[rows])
        self._playback.ended(rows, self.game.observe, getattr(self.game, "truncated", None))

    def _others_move(self, where: NDArray[np.bool_], reward: NDArray[np.float32]) -> None:
        """Until the agent is to move or the game is over; what the agent is paid is added to `reward`, [N]."""
        game = self.game
        while True:
            waiting = where & ~game.over & (game.to_move != self.seat)
            rows = np.flatnonzero(waiting)
            if not len(rows):
                return
            self._actions[rows] = self.opponents.act(game, rows)
            learned = rows[self.opponents.own[rows, game.to_move[rows]]]
            if len(learned):
                self._playback.decided(learned, game.to_move[learned], game.observe(learned), self._actions[learned])
            game.step(self._actions, where=waiting)
            self._pay(waiting, reward)

    def _pay(self, where: NDArray[np.bool_], reward: NDArray[np.float32]) -> None:
        rows = np.flatnonzero(where)
        reward[rows] += self.game.rewards[rows, self.seat[rows]]
        self._playback.paid(rows, self.game.rewards[rows])

    def _observe(self) -> Observation:
        seen = {name: array.copy() for name, array in self.game.observe(self._rows, self.seat).items()}
        if "action_mask" in seen:
            # A game that was cut off is bootstrapped from, and nobody decides there: it is the mask before that holds.
            seen["action_mask"][self._cut] = self._legal[self._cut]
            np.copyto(self._legal, seen["action_mask"])
        self._playback.show(seen)
        return seen


def make(env: Any, num_envs: int, render_mode: str | None = None) -> SelfPlay:
    """`num_envs` games against random players; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: there is no such game, its settings are impossible, or a module of `env.import_modules`, which may
            put games of its own into `GAMES`, cannot be imported.
    """
    if render_mode == "human":
        raise EnvError(f"{env.id}: a game has no window; let it write a video instead.")
    if env.frame_stack > 1:
        raise EnvError(f"{env.id}: opponents see one frame at a time; set env.frame_stack=1.")
    if env.clip_rewards:
        raise EnvError(f"{env.id}: a game is played as it is; leave out env.clip_rewards=True.")
    return SelfPlay(game_of(env, num_envs, render_mode), Opponents([random_player], np.ones(1)))


def against_opponents(env: Any) -> bool:
    """Whether an environment is a game that one agent plays against opponents.

    Raises:
        EnvError: there is no such PettingZoo environment.
    """
    backend = backend_of(env.backend)
    return backend.is_game or (bool(backend.make_game) and is_turn_based(env))


def game_of(env: Any, num_games: int, render_mode: str | None = None) -> Any:
    """`num_games` games of the interface of `trainer.envs.games`; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: there is no such game, or its settings are impossible.
    """
    return part_at(backend_of(env.backend).make_game)(env, num_games, render_mode)


def scripted(env: Any, path: str = "auto") -> Player:
    """The scripted player of a game.

    Args:
        env: anything with the attributes of EnvConfig.
        path: `package.module:function`; auto: the heuristic player of the game, the perfect one, or OpenSpiel's tree
            search.

    Raises:
        EnvError: the game has none, or the path leads to none.
    """
    if path != "auto":
        return player_at(path)
    maker = backend_of(env.backend).scripted
    player: Player | None = part_at(maker)(env) if maker else None
    if player is None:
        raise EnvError(
            f"{env.id}: there is no scripted player of this game; set opponents.scripted=0 and "
            "evaluate_against=random, or name one of yours: opponents.scripted_player=package.module:function."
        )
    return player


def player_at(path: str) -> Player:
    """A player by its import path, see `trainer.envs.games.players`.

    Raises:
        EnvError: the path leads to none.
    """
    try:
        player: Player = function_at(path, ("game", "generator", "rows"))
    except NoPart as error:
        raise EnvError(f"the player {error}.") from error
    return player


def scripted_listed(env: Any) -> Player | None:
    """The scripted player of one of `GAMES`; None where it has none."""
    players = [player for player in PLAYERS.get(env.id, {}).values() if player is not random_player]
    return players[0] if players else None


def make_listed(env: Any, num_games: int, render_mode: str | None = None) -> Any:
    """`num_games` games of one of `GAMES`.

    Raises:
        EnvError: there is no such game, or its settings are impossible.
    """
    import_modules(env)  # which may put games of their own into GAMES
    if is_path(env.id):
        return wrapped_games(maker_of(env, ("num_games",))(num_games, **arguments(env)), env)
    if env.id not in GAMES:
        near = difflib.get_close_matches(env.id, GAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise EnvError(f"{env.id}: env.backend=game has {', '.join(GAMES)}{hint}")
    try:
        made = GAMES[env.id](num_games, **arguments(env))
    except TypeError as error:
        raise EnvError(f"{env.id}: env.kwargs={env.kwargs} do not fit: {error}") from error
    return wrapped_games(made, env)
