"""A batch of turn-based PettingZoo environments (AEC) with the interface of `trainer.envs.games`.

It takes every environment whose agents have the same spaces. The rewards of all agents are summed after every step, so
that a loser's last reward counts. An agent that ends before the others does not move again; its episode ends with the
game. `winner` is the seat with the largest return, if there is only one. The observation has the arrays of
`trainer.envs.spaces`, and `observation.seat`, bool [P], the seat one-hot, as one network plays every seat.

Every reset has a seed, `seed + i` first and then numbers drawn from it: so an episode is determined by its seed and its
actions, and can be played again in another process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs import life, masks
from trainer.envs.actions import DiscreteAction
from trainer.envs.closing import close_all
from trainer.envs.faults import Unfit, is_its_own, of_rewards, words_of
from trainer.envs.games.rows import Rows, chosen, look, require, to_advance
from trainer.envs.pettingzoo import ADVICE, module_of, not_made
from trainer.envs.spaces import Field, discrete_of, fields_of, mask_field
from trainer.envs.spec import EnvError, EnvSpec, Leaf
from trainer.envs.wrapping import arguments, wrapped
from trainer.envs.writing import allocate, fault_of, row_writer

SEAT = "observation.seat"


class TurnBasedGames:
    """`num_games` AEC environments; the arrays and methods are those of `trainer.envs.games`.

    Attributes:
        truncated: bool [N, P], whether a game that is over was cut off for a seat, as by a limit of moves.
    """

    def __init__(self, envs: list[Any], env_id: str, mask_key: str = "action_mask") -> None:
        """Take over environments, and reset them with seed 0.

        Args:
            envs: environments that were made alike.
            env_id: for messages.
            mask_key: name of masks in observations or infos.

        Raises:
            EnvError: the agents have different spaces, or there is only one.
        """
        self.envs, self._id, n = envs, env_id, len(envs)
        envs[0].reset(seed=0)  # some have their spaces only after a reset
        self.agents = list(envs[0].possible_agents)
        p = len(self.agents)
        require(p >= 2, f"{env_id}: it is for one player, and self-play takes two or more.")
        self._seats = {name: seat for seat, name in enumerate(self.agents)}
        self.num_games, self.num_players = n, p
        self.spec, self._fields, self._start, self._mask_of = _shown_by(envs[0], env_id, mask_key)
        self._mask_key, self.num_actions = mask_key, self.spec.num_actions
        self.to_move = np.zeros(n, np.int64)
        self.action_mask = np.ones((n, self.num_actions), bool)
        self.rewards = np.zeros((n, p), np.float32)
        self.over = np.zeros(n, bool)
        self.winner = np.full(n, -1)
        self.length = np.zeros(n, np.int64)
        self.truncated = np.zeros((n, p), bool)
        self._returns = np.zeros((n, p))
        self._shown: list[Any] = [None] * n  # observation of the agent to move
        self._last: list[dict[int, Any]] = [{} for _ in envs]  # final observations of agents that were removed
        self._seeds, self._actions = [0] * n, [[] for _ in envs]  # type: list[int], list[list[int]]
        self._every = np.arange(n)
        self._seen = {**allocate(self._fields, n), SEAT: np.zeros((n, p), bool)}
        self._seen["action_mask"] = np.ones((n, self.num_actions), bool)
        self.reset(0)

    def reset(self, seed: int | None = None) -> None:
        """Reset every environment, number i with `seed + i`; without a seed with numbers drawn from the last one.

        Raises:
            EnvError: one failed; the sentence says which.
        """
        self.rewards[:] = 0
        if seed is not None:
            self._generators = [np.random.default_rng(seed + i) for i in range(self.num_games)]
        for i in range(self.num_games):
            self._begin(i, int(self._generators[i].integers(2**31)) if seed is None else seed + i)

    def reset_where(self, mask: NDArray[np.bool_]) -> None:
        """Start the environments of a bool mask [N]."""
        self.rewards[:] = 0
        for i in np.flatnonzero(mask).tolist():
            self._begin(i, int(self._generators[i].integers(2**31)))

    def step(self, action: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> None:
        """Advance games by one decision, as `trainer.envs.games` describes.

        Raises:
            EnvError: an action is illegal, or an environment failed.
        """
        rows = to_advance(self._every, self.over, where)
        actions = chosen(self._id, action, self.action_mask, rows)
        self.rewards[:] = 0
        for i, taken in zip(rows.tolist(), actions.tolist(), strict=True):
            self._play(i, taken)

    def observe(self, rows: Rows | None = None, seats: NDArray[np.int64] | None = None) -> dict[str, NDArray[Any]]:
        """Observations of seats, as `trainer.envs.games` describes.

        Raises:
            EnvError: an observation does not fit its space.
        """
        rows, seats, deciding, seen = look(self, self._every, self._seen, rows, seats)
        shown = [
            self._shown[i] if now else self._view(i, seat)
            for i, seat, now in zip(rows.tolist(), seats.tolist(), deciding.tolist(), strict=True)
        ]
        seen[SEAT][:] = seats[:, None] == np.arange(self.num_players)
        if not len(rows):
            return seen
        try:
            for field in self._fields:
                row_writer(field, seen[field.leaf.name])(shown)
        except Exception as error:
            i, fault = _first_fault(self._fields, rows, shown, error)
            raise self._failure(i, Unfit(fault)) from error
        return seen

    def render(self, index: int = 0) -> Any:
        """The picture of one game, in the render mode that it was made with.

        Raises:
            EnvError: it failed.
        """
        try:
            return self.envs[index].render()
        except BaseException as error:
            raise self._failure(index, error) from error

    def close(self) -> None:
        """Close all; a failure is only a warning, as nothing is lost by it."""
        close_all(self.envs, self._id)

    def state(self) -> dict[str, Any]:
        """Where all games stand: how the running ones began, and their actions."""
        return {
            "seeds": list(self._seeds),
            "actions": [list(actions) for actions in self._actions],
            "generators": [generator.bit_generator.state for generator in self._generators],
            "masks": self.action_mask.tolist(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the `state` of another one, by playing its running games again.

        Raises:
            EnvError: an environment failed.
            ValueError: the legal actions are others than before: the environment is not fully seeded.
        """
        for i, (seed, actions) in enumerate(zip(state["seeds"], state["actions"], strict=True)):
            self._begin(i, seed)
            for action in actions:
                self._play(i, action)
            self._generators[i].bit_generator.state = state["generators"][i]
            if self.action_mask[i].tolist() != state["masks"][i]:
                raise ValueError(f"{self._id} allowed other actions when its episodes were played again")
        self.rewards[:] = 0

    def _begin(self, i: int, seed: int) -> None:
        self._seeds[i], self._actions[i], self._last[i] = seed, [], {}
        self.length[i], self.winner[i], self.over[i] = 0, -1, False
        self.truncated[i], self._returns[i] = False, 0
        try:
            self.envs[i].reset(seed=seed)
            life.beat()
            self._arrive(i)
        except BaseException as error:
            raise self._failure(i, error) from error

    def _play(self, i: int, action: int) -> None:
        env = self.envs[i]
        self._actions[i].append(action)
        self.length[i] += 1
        try:
            env.step(action + self._start)
            life.beat()
            for name, reward in env.rewards.items():
                self.rewards[i, self._seats[name]] = reward
            if not np.isfinite(self.rewards[i]).all():
                raise Unfit(f"its rewards are {env.rewards}, which are no finite numbers")
            self._returns[i] += self.rewards[i]
            self._arrive(i)
        except BaseException as error:
            raise self._failure(i, of_rewards(env.rewards, error)) from error

    def _arrive(self, i: int) -> None:
        """Remove agents that have ended, and update the arrays of game i."""
        env = self.envs[i]
        ended = _ended(env, self._seats, self.truncated[i])
        while len(ended) < len(env.agents) and env.agent_selection in ended:
            name = env.agent_selection
            self._last[i][self._seats[name]] = env.observe(name)
            env.step(None)  # PettingZoo's way to remove an agent
            ended = _ended(env, self._seats, self.truncated[i])
        if len(ended) < len(env.agents):
            name = env.agent_selection
            self.to_move[i], self._shown[i] = self._seats[name], env.observe(name)
            told = self._shown[i] if self._mask_of == "observation" else env.infos.get(name) or {}
            self.action_mask[i] = True
            if (mask := told.get(self._mask_key)) is not None:
                masks.take(mask, self.action_mask[i], self._mask_key)
            if not self.action_mask[i].any():
                self.action_mask[i] = True  # its action has no effect
            return
        self.over[i], self.action_mask[i] = True, True
        best = np.flatnonzero(self._returns[i] == self._returns[i].max())
        self.winner[i] = best[0] if len(best) == 1 else -1

    def _view(self, i: int, seat: int) -> Any:
        if seat in self._last[i]:
            return self._last[i][seat]
        try:
            return self.envs[i].observe(self.agents[seat])
        except BaseException as error:
            raise self._failure(i, error) from error

    def _failure(self, i: int, error: BaseException) -> EnvError:
        if not is_its_own(error):
            raise error
        which = f"{self._id}: environment {i} (seed {self._seeds[i]})"
        return EnvError(f"{which} failed after {self.length[i]} moves: {words_of(error)}")


def _ended(env: Any, seats: dict[str, int], truncated: NDArray[np.bool_]) -> set[str]:
    """Agents that have ended and are not removed yet; `truncated`, bool [P], is updated."""
    ended = {name for name in env.agents if env.terminations[name] or env.truncations[name]}
    for name in ended:
        truncated[seats[name]] = not env.terminations[name]
    return ended


def _first_fault(fields: tuple[Field, ...], rows: Rows, shown: list[Any], error: Exception) -> tuple[int, str]:
    """The first environment that showed what it must not, and what is wrong with it; else the first, and the error."""
    faults = [(i, fault_of(fields, one)) for i, one in zip(rows.tolist(), shown, strict=True)]
    return next(((i, f) for i, f in faults if f is not None), (int(rows[0]), words_of(error)))


def _shown_by(env: Any, env_id: str, mask_key: str) -> tuple[EnvSpec, tuple[Field, ...], int, str]:
    """What an environment's agents see and do.

    Returns:
        The spec, the fields of an observation, the number of the first action, and where masks are: in the
        `observation`, or in the `info`.

    Raises:
        EnvError: its agents differ, or it cannot be played by one network.
    """
    agents = list(env.possible_agents)
    space, actions = env.observation_space(agents[0]), env.action_space(agents[0])
    for name in agents[1:]:
        same = env.observation_space(name) == space and env.action_space(name) == actions
        require(same, f"{env_id}: {agents[0]} and {name} differ in spaces, and one network is to play both.")
    action = discrete_of(actions, env_id, ADVICE)
    fields = fields_of(space, 1, env_id, mask_key)
    mask = mask_field(space, action, env_id, mask_key)
    info = env.infos.get(env.agent_selection) or {}
    _, source, notes = masks.masked(action, mask is not None, info, space, None, mask_key)
    leaves = (*(field.leaf for field in fields), Leaf(SEAT, (len(agents),), "bool", "binary"))
    spec = EnvSpec(env_id, leaves, DiscreteAction(action.n, has_mask=True), mask_source=source, notes=notes)
    return spec, fields, action.start, "observation" if mask is not None else "info"


def make_game(env: Any, num_games: int, render_mode: str | None = None) -> TurnBasedGames:
    """Backend `pettingzoo`, a turn-based environment; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: it could not be made, or is no such game; the sentence says why and what to do.
    """
    module = module_of(env)
    made: list[Any] = []
    try:
        make = module.env if hasattr(module, "env") else module.raw_env
        for number in range(num_games):
            made.append(wrapped(make(**arguments(env, number, render_mode)), env))
        return TurnBasedGames(made, env.id, env.mask_key)
    except BaseException as error:
        close_all(made, env.id)
        raise not_made(env, error, len(made)) from error
