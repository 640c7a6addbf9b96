"""A batch of games of OpenSpiel (Lanctot et al. 2019, arXiv:1908.09453) with the interface of `trainer.envs.games`.

It takes every sequential game of OpenSpiel for two players or more. Chance is drawn inside. The reward of a move is
what it adds to the players' returns; `winner` is the seat with the largest return, if there is only one. The
observation is float32 [size of the tensor + P]: the information state's tensor if the game has one, else the
observation's; then the seat one-hot, as one network plays every seat, and few of these tensors contain the seat.

No other file imports OpenSpiel.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs import life
from trainer.envs.actions import DiscreteAction
from trainer.envs.games import text_picture
from trainer.envs.games.rows import Rows, choice, chosen, look, require, to_advance
from trainer.envs.modules import import_modules
from trainer.envs.spec import EnvError, EnvSpec, Leaf
from trainer.envs.wrapping import wrapped_games

TENSORS = ("information_state", "observation")
SIMULATIONS, UCT_C = 50, 2.0  # of `mcts_player`


class OpenSpielGames:
    """`num_games` games of one kind; the arrays and methods are those of `trainer.envs.games`.

    Attributes:
        game: of OpenSpiel.
        states: of OpenSpiel, one for each game, at a player's decision or at the end.
        text: only for games in which nothing is hidden.
    """

    def __init__(self, num_games: int, game_id: str, observation: str | None = None, **parameters: Any) -> None:
        """Create them in the state after `reset(0)`.

        Args:
            num_games: number of games.
            game_id: name in OpenSpiel, with or without parameters, as `breakthrough(rows=6,columns=6)`.
            observation: the tensor that is observed, one of `TENSORS`; None: the first of them that the game has.
            parameters: further ones of the game.

        Raises:
            EnvError: OpenSpiel is not installed, has no such game or tensor, or the game is not played by turns.
        """
        require(num_games >= 1, f"{game_id}: num_games={num_games} must be at least 1.")
        self._id, self.game = game_id, load(game_id, parameters)
        self._tensor, size = _tensor(self.game, game_id, observation)
        n, p = num_games, self.game.num_players()
        self.num_games, self.num_players, self.num_actions = n, p, self.game.num_distinct_actions()
        self.spec = EnvSpec(
            game_id, (Leaf("observation", (size + p,), "float32", "vector"),),
            DiscreteAction(self.num_actions, has_mask=True), max_episode_steps=self.game.max_game_length(),
        )  # fmt: skip
        self.to_move = np.zeros(n, np.int64)
        self.action_mask = np.ones((n, self.num_actions), bool)
        self.rewards = np.zeros((n, p), np.float32)
        self.over = np.zeros(n, bool)
        self.winner = np.full(n, -1)
        self.length = np.zeros(n, np.int64)
        self.states: list[Any] = [None] * n
        self._returns = np.zeros((n, p))
        self._generators = [np.random.default_rng(i) for i in range(n)]
        if self.game.get_type().information == _pyspiel().GameType.Information.PERFECT_INFORMATION:
            self.text = self._text  # in other games it would show the opponent's cards
        self._every = np.arange(n)
        self._seen = {"observation": np.zeros((n, size + p), np.float32), "action_mask": np.ones_like(self.action_mask)}
        self.reset(0)

    def reset(self, seed: int | None = None) -> None:
        """Start every game; the chance of game i is drawn with `seed + i`."""
        if seed is not None:
            self._generators = [np.random.default_rng(seed + i) for i in range(self.num_games)]
        self.reset_where(np.ones(self.num_games, bool))

    def reset_where(self, mask: NDArray[np.bool_]) -> None:
        """Start the games of a bool mask [N]."""
        self.rewards[:] = 0
        self.length[mask], self._returns[mask], self.winner[mask] = 0, 0, -1
        for i in np.flatnonzero(mask):
            self.states[i] = self.game.new_initial_state()
            self._arrive(int(i))
            self.rewards[i] = 0  # there was no decision yet

    def step(self, action: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> None:
        """Advance games by one decision, as `trainer.envs.games` describes.

        Raises:
            EnvError: an action is illegal.
        """
        rows = to_advance(self._every, self.over, where)
        actions = chosen(self._id, action, self.action_mask, rows)
        self.rewards[:] = 0
        self.length[rows] += 1
        for i, taken in zip(rows.tolist(), actions.tolist(), strict=True):
            self.states[i].apply_action(taken)
            self._arrive(i)

    def observe(self, rows: Rows | None = None, seats: NDArray[np.int64] | None = None) -> dict[str, NDArray[Any]]:
        """Observations of seats, as `trainer.envs.games` describes.

        Raises:
            EnvError: the game has no tensor for every seat.
        """
        rows, seats, _, seen = look(self, self._every, self._seen, rows, seats)
        shown = seen["observation"]
        shown[:, -self.num_players :] = seats[:, None] == np.arange(self.num_players)
        try:
            for line, i, seat in zip(shown, rows.tolist(), seats.tolist(), strict=True):
                line[: -self.num_players] = getattr(self.states[i], self._tensor)(seat)
        except RuntimeError as error:  # pyspiel.SpielError
            raise EnvError(f"{self._id}: OpenSpiel shows no {self._tensor} of every seat: {_first(error)}") from error
        return seen

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """OpenSpiel's text of one game as a picture, rgb uint8 [height, width, 3]."""
        return text_picture.picture(str(self.states[index]))

    def action_text(self, index: int, action: int) -> str:
        """An action of the seat to move, in OpenSpiel's words."""
        return str(self.states[index].action_to_string(int(self.to_move[index]), int(action)))

    def _text(self, index: int = 0) -> str:
        return str(self.states[index])

    def state(self) -> dict[str, Any]:
        """The state of all games, as tensors and plain values."""
        return {
            "states": [state.serialize() for state in self.states],
            "generators": [generator.bit_generator.state for generator in self._generators],
            "length": self.length.tolist(),
            "to_move": self.to_move.tolist(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one."""
        self.to_move[:] = state["to_move"]
        for i, (text, generator) in enumerate(zip(state["states"], state["generators"], strict=True)):
            self.states[i] = self.game.deserialize_state(text)
            self._arrive(i)
            self._generators[i].bit_generator.state = generator
        self.rewards[:] = 0
        self.length[:] = state["length"]

    def put(self, states: Sequence[Any]) -> None:
        """Continue every game from a copy of a state of OpenSpiel, with length 0."""
        for i, state in enumerate(states):
            self.states[i] = state.clone()
            self._arrive(i)
        self.rewards[:], self.length[:] = 0, 0

    def _arrive(self, i: int) -> None:
        """Draw chance until a player decides, and update the arrays of game i."""
        state = self.states[i]
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            drawn = np.searchsorted(np.cumsum(chances), self._generators[i].random() * sum(chances), side="right")
            state.apply_action(outcomes[min(int(drawn), len(outcomes) - 1)])
        returns = np.array(state.returns())
        self.rewards[i] = returns - self._returns[i]
        self._returns[i] = returns
        self.over[i] = state.is_terminal()
        if self.over[i]:
            self.action_mask[i] = True
            best = np.flatnonzero(returns == returns.max())
            self.winner[i] = best[0] if len(best) == 1 else -1
        else:
            self.to_move[i], self.winner[i] = state.current_player(), -1
            self.action_mask[i] = False
            self.action_mask[i, state.legal_actions()] = True


def load(game_id: str, parameters: dict[str, Any]) -> Any:
    """Load a game of OpenSpiel.

    Raises:
        EnvError: there is no such game, or it is of a kind that is not supported; the sentence says why.
    """
    pyspiel = _pyspiel()
    name = game_id.partition("(")[0]
    # OpenSpiel's own error lists all of its games.
    if name not in (names := pyspiel.registered_names()):
        near = difflib.get_close_matches(name, names, n=1)
        raise EnvError(f"{game_id}: OpenSpiel has no such game{f'; did you mean {near[0]}?' if near else '.'}")
    try:
        given = {**pyspiel.game_parameters_from_string(game_id), **parameters}
        del given["name"]
        game = pyspiel.load_game(name, given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise EnvError(f"{game_id}: OpenSpiel cannot make it with {parameters}: {_first(error)}") from error
    kind = game.get_type()
    if kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        raise EnvError(
            f"{game_id}: its players move at the same time; by turns it is "
            f"env.id=turn_based_simultaneous_game(game={game_id if '(' in game_id else f'{game_id}()'})."
        )
    require(kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL, f"{game_id}: mean-field games have no opponents.")
    require(game.num_players() >= 2, f"{game_id}: it is for one player, and self-play takes two or more.")
    require(
        kind.chance_mode != pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC,
        f"{game_id}: it draws its chances itself, so that no seed would repeat a game; take another one.",
    )
    return game


def mcts_player(game: OpenSpielGames, generator: np.random.Generator, rows: Rows | None = None) -> NDArray[np.int64]:
    """OpenSpiel's Monte Carlo tree search: 50 simulations for each move, each with one random rollout; `uct_c` is 2.

    It searches from the true state, which is fair only in games of perfect information.
    """
    rows = np.arange(game.num_games) if rows is None else rows
    bot = mcts_bot(game.game, int(generator.integers(2**31)))
    actions = np.zeros(len(rows), np.int64)
    for place, i in enumerate(rows.tolist()):
        actions[place] = 0 if game.over[i] else bot.step(game.states[i])
        life.beat()
    return actions


def mcts_bot(game: Any, seed: int, simulations: int = SIMULATIONS) -> Any:
    """OpenSpiel's tree search for one of its games, which backs up proven values; `bot.step(state)` is an action."""
    pyspiel = _pyspiel()
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    return pyspiel.MCTSBot(game, evaluator, UCT_C, simulations, 16, True, seed, False)


def scripted(env: Any) -> Any:
    """The scripted player, `mcts_player`, see `trainer.envs.games.players`.

    Raises:
        EnvError: the game has hidden information, which the search would see.
    """
    pyspiel = _pyspiel()
    parameters = {name: value for name, value in env.kwargs.items() if name != "observation"}
    if load(env.id, parameters).get_type().information != pyspiel.GameType.Information.PERFECT_INFORMATION:
        raise EnvError(
            f"{env.id}: there is no scripted player of a game with hidden cards; set opponents.scripted=0 and "
            "evaluate_against=random."
        )
    return mcts_player


def make_game(env: Any, num_games: int, render_mode: str | None = None) -> Any:
    """Backend `openspiel`: `OpenSpielGames` within the user's wrappers; `env` has the attributes of EnvConfig.

    For games written in Python, `env.import_modules` must name open_spiel.python.games.

    Raises:
        EnvError: as in `OpenSpielGames`, or `env.kwargs` do not fit.
    """
    import_modules(env)
    try:
        made = OpenSpielGames(num_games, env.id, **env.kwargs)
    except TypeError as error:
        raise EnvError(f"{env.id}: env.kwargs={env.kwargs} do not fit: {_first(error)}") from error
    return wrapped_games(made, env)


def _tensor(game: Any, game_id: str, asked: str | None) -> tuple[str, int]:
    """Name of the state's method that returns the tensor, and the tensor's size."""
    if asked is not None:
        choice(game_id, "observation", asked, TENSORS)
    kind = game.get_type()
    names = [name for name in TENSORS if getattr(kind, f"provides_{name}_tensor") and asked in (None, name)]
    require(bool(names), f"{game_id}: OpenSpiel has no {asked or 'observation'} tensor of it; take another one.")
    return f"{names[0]}_tensor", int(np.prod(getattr(game, f"{names[0]}_tensor_shape")()))


def _pyspiel() -> Any:
    try:
        import pyspiel
    except ImportError as error:
        raise EnvError("env.backend=openspiel needs OpenSpiel: pip install open-spiel.") from error
    return pyspiel


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
