"""Backend `pettingzoo`: any PettingZoo parallel environment with Discrete actions, as a world (`trainer.envs.world`).

Ids are modules with a `parallel_env`: `mpe2/simple_spread_v3`, `sisl/pursuit_v4` (found in pettingzoo),
`magent2/environments/battle_v4`; or `package.module:function`, which makes a parallel environment (a class of AEC
environments is a turn-based game). The agents are `possible_agents`; they may die, join late and have different spaces.
The mask of an agent without a legal action becomes all True, as its choice has no effect. Modules with only an `env`
are turn-based games, see `trainer.envs.games.turn_based`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs import life, masks
from trainer.envs.closing import close_all
from trainer.envs.faults import ALONE, Unfit, is_its_own, is_looked_at, of_rewards, one_line, pair_of, warn, words_of
from trainer.envs.import_paths import is_path
from trainer.envs.modules import import_modules
from trainer.envs.spaces import Field, action_of, fields_of, mask_field
from trainer.envs.spec import EnvError, EnvSpec
from trainer.envs.world import Observation, Step
from trainer.envs.wrapping import arguments, maker_of, wrapped
from trainer.envs.writing import allocate, fault_of, outside, row_writer

MAKERS = {"ParallelEnv": "parallel_env", "AECEnv": "env"}  # class of PettingZoo -> its maker's name in a module
ADVICE = "; wrap it in a module of your own, whose parallel_env or env numbers what can be done"


class PettingZooVector:
    """Parallel environments, stepped one after another.

    Args:
        envs: the environments, each reset at least once.
        env_id: for messages.
        frame_stack: frames that a policy sees at once.
        clip_rewards: whether `step` returns the sign of rewards.
        mask_key: name of masks.
        infos: of a reset, by agent.
    """

    def __init__(
        self, envs: list[Any], env_id: str, frame_stack: int, clip_rewards: bool, mask_key: str = "action_mask",
        infos: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.envs, self.num_envs, self._id, self._clip = envs, len(envs), env_id, clip_rewards
        self.agents: tuple[str, ...] = tuple(envs[0].possible_agents)
        n, infos = self.num_envs, infos or {}
        seats = [_Seat(envs[0], a, env_id, frame_stack, n, mask_key, infos.get(a, {})) for a in self.agents]
        self._seats, self._said = seats, set[str]()  # and the warnings that were given
        self.specs: tuple[EnvSpec, ...] = tuple(seat.spec for seat in seats)
        self.present = [seat.present for seat in seats]
        self.raw_rewards = [seat.raw_reward for seat in seats]
        self._over = np.zeros(n, bool)
        self._seed: int | None = None
        self._vector_step = 0

    def reset(self, seed: int | None = None) -> list[Observation]:
        """Reset every sub-environment, number i with `seed + i`; with None unseeded.

        Raises:
            EnvError: one failed; the sentence says which.
        """
        self._seed = self._seed if seed is None else seed
        for i in range(self.num_envs):
            self._start(i, None if seed is None else seed + i)
            life.beat()
        return self._observe()

    def step(self, actions: list[NDArray[Any]]) -> list[Step]:
        """Step every sub-environment; one whose agents have all ended is reset instead.

        Raises:
            EnvError: a sub-environment failed; the sentence says which, its seed and the step.
        """
        self._vector_step += 1
        for seat in self._seats:
            seat.raw_reward[:], seat.terminated[:], seat.truncated[:] = 0, False, False
        for i, env in enumerate(self.envs):
            if self._over[i]:
                self._start(i, None)
            else:
                self._step_one(i, env, actions)
            life.beat()
        observations = self._observe()
        for seat in self._seats:
            if not np.isfinite(seat.raw_reward).all():
                i = int(np.flatnonzero(~np.isfinite(seat.raw_reward))[0])
                text = f"the reward of {seat.name} is {seat.raw_reward[i]}, which is no finite number"
                raise self._failure(i, Unfit(text))
            np.copyto(seat.reward, np.sign(seat.raw_reward) if self._clip else seat.raw_reward)
        return [
            (seen, seat.reward, seat.terminated, seat.truncated)
            for seen, seat in zip(observations, self._seats, strict=True)
        ]

    def render(self) -> Any:
        """The picture of sub-environment 0.

        Raises:
            EnvError: it failed.
        """
        try:
            return self.envs[0].render()
        except BaseException as error:
            raise self._failure(0, error) from error

    def info_of(self, agent: int, index: int) -> Mapping[Any, Any]:
        """The last `info` of an agent in a sub-environment."""
        return self._seats[agent].infos[index]

    def close(self) -> None:
        """Close all; a failure is only a warning, as nothing is lost by it."""
        close_all(self.envs, self._id)

    def _step_one(self, i: int, env: Any, actions: list[NDArray[Any]]) -> None:
        acting = [(a, seat) for a, seat in enumerate(self._seats) if seat.present[i]]
        result: Any = None
        try:
            chosen = {seat.name: seat.spec.action.for_env(actions[a][i]) for a, seat in acting}
            result = env.step(chosen)
            if (fault := _fault_of_step(result)) is not None:
                raise Unfit(fault)
            alive = set(env.agents)
            for seat in self._seats:
                seat.take(i, alive, *result)
        except BaseException as error:
            rewards = result[1] if isinstance(result, tuple | list) and len(result) == 5 else None
            raise self._failure(i, of_rewards(rewards, error)) from error
        self._over[i] = not any(seat.present[i] for seat in self._seats)

    def _start(self, i: int, seed: int | None) -> None:
        try:
            observations, infos = pair_of(self.envs[i].reset(seed=seed))
            if not isinstance(observations, dict):
                raise Unfit("its reset must give a dict of observations, one for each agent")
        except BaseException as error:
            raise self._failure(i, error) from error
        for seat in self._seats:
            seat.terminated[i] = seat.truncated[i] = False
            seat.present[i] = seat.name in observations
            if seat.present[i]:
                seat.rows[i], seat.infos[i] = observations[seat.name], infos.get(seat.name) or {}
        self._over[i] = False

    def _observe(self) -> list[Observation]:
        closely = is_looked_at(self._vector_step)
        for seat in self._seats:
            try:
                seat.write()
            except Exception as error:
                faults = [(i, fault_of(seat.fields, row)) for i, row in enumerate(seat.rows)]
                i, fault = next(((i, f) for i, f in faults if f is not None), (0, str(error)))
                i = seat.no_mask if seat.no_mask is not None else i
                raise self._failure(i, Unfit(f"of {seat.name}: {fault}")) from error
            for key, text in seat.suspicions() if closely else []:
                if key not in self._said:
                    self._said.add(key)
                    warn(f"{self._id}: {seat.name}: {text}")
        return [seat.observation for seat in self._seats]

    def _failure(self, i: int, error: BaseException) -> EnvError:
        if not is_its_own(error):
            raise error
        seed = "unseeded" if self._seed is None else f"seed {self._seed + i}"
        return EnvError(
            f"{self._id}: sub-environment {i} ({seed}) failed in step {self._vector_step}: {words_of(error)}"
        )


def _fault_of_step(result: Any) -> str | None:
    """What is wrong with the values that a parallel environment's `step` returned; None if nothing is."""
    if not isinstance(result, tuple | list) or len(result) != 5 or not all(isinstance(part, dict) for part in result):
        return (
            "its step must give five dicts (observations, rewards, terminations, truncations, infos) with an entry for "
            "each agent, as PettingZoo's of version 1.23 and later"
        )
    return None


class _Seat:
    """One agent's arrays, over all sub-environments."""

    def __init__(
        self, env: Any, name: str, env_id: str, frame_stack: int, n: int, mask_key: str, info: Mapping[str, Any]
    ) -> None:
        self.name, self.mask_key = name, mask_key
        space, where = env.observation_space(name), f"{env_id}, {name}"
        action = action_of(env.action_space(name), where, ADVICE)
        fields: tuple[Field, ...] = fields_of(space, frame_stack, where, mask_key)
        mask = mask_field(space, action, where, mask_key)
        leaves = tuple(field.leaf for field in fields)
        self.fields = fields if mask is None else (*fields, mask)
        self.infos: list[dict[str, Any]] = [{} for _ in range(n)]
        action, source, notes = masks.masked(action, mask is not None, info or {}, space, None, mask_key)
        self.mask_in_info = source == "info"
        self.no_mask: int | None = None  # sub-environment whose mask is wrong
        self.spec = EnvSpec(where, leaves, action, None, source, notes)
        self.observation = allocate(self.fields, n)
        self.writers = [row_writer(field, self.observation[field.leaf.name]) for field in self.fields]
        if action.has_mask:
            self.mask_before = np.ones((n, self.spec.num_actions), bool)
            self.observation.setdefault("action_mask", self.mask_before.copy())
        space.seed(0)
        self.rows: list[Any] = [space.sample() for _ in range(n)]  # until its first observation
        self.present = np.zeros(n, bool)
        self.raw_reward, self.reward = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.terminated, self.truncated = np.zeros(n, bool), np.zeros(n, bool)

    def take(
        self, i: int, alive: set[str], observations: dict[str, Any], rewards: dict[str, Any],
        terminations: dict[str, Any], truncations: dict[str, Any], infos: dict[str, Any],
    ) -> None:  # fmt: skip
        """Take what a step of sub-environment i returned."""
        name = self.name
        if name in observations:
            self.rows[i], self.infos[i] = observations[name], infos.get(name) or {}
        if self.present[i]:
            self.raw_reward[i] = rewards.get(name, 0.0)
            self.terminated[i] = terminations.get(name, False)
            # An agent that is gone without a termination was truncated.
            gone = name not in alive and not self.terminated[i]
            self.truncated[i] = (bool(truncations.get(name, False)) or gone) and not self.terminated[i]
        self.present[i] = name in alive and not (self.terminated[i] or self.truncated[i])

    def write(self) -> None:
        """Write the rows of all sub-environments into the arrays of the observation.

        Raises:
            Exception: a row or a mask is wrong; for a mask `no_mask` is the sub-environment.
        """
        mask = self.observation.get("action_mask")
        if mask is not None:
            np.copyto(self.mask_before, mask)
        for write in self.writers:
            write(self.rows)
        if mask is None:
            return
        if self.mask_in_info:
            for i, info in enumerate(self.infos):
                given = info.get(self.mask_key)
                if given is not None:
                    self.no_mask = i
                    masks.take(given, mask[i], f"info[{self.mask_key!r}]")
                    self.no_mask = None
                else:
                    mask[i] = self.present[i]  # all True; if it has ended all False, which `complete` replaces
        masks.complete(mask, self.mask_before, self.terminated, self.truncated)

    def suspicions(self) -> list[tuple[str, str]]:
        """What the environment may mean in another way: a key and a sentence for each."""
        told = []
        for field in self.fields:
            if (found := outside(field, self.observation[field.leaf.name])) is not None:
                told.append((f"{self.name} {field.leaf.name}", f"sub-environment {found[0]}: {found[1]}"))
        if not self.spec.action.has_mask:
            for info in self.infos:
                for like in masks.look_alikes(info, self.spec.action):
                    told.append((f"{self.name} {like}", like))
        return told


def make(env: Any, num_envs: int, render_mode: str | None = None) -> PettingZooVector:
    """A world of `num_envs` parallel environments; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: it could not be made, or training on it is not possible; the sentence says why and what to do.
    """
    module = module_of(env)
    made: list[Any] = []
    infos = []
    try:
        for number in range(num_envs):
            made.append(wrapped(module.parallel_env(**arguments(env, number, render_mode)), env))
            infos.append(pair_of(made[-1].reset(seed=0))[1])  # some have their spaces only after a reset
            life.beat()
        return PettingZooVector(made, env.id, env.frame_stack, env.clip_rewards, env.mask_key, infos[0])
    except BaseException as error:
        close_all(made, env.id)
        raise not_made(env, error, len(made)) from error


def not_made(env: Any, error: BaseException, made: int) -> BaseException:
    """The error to raise for a failure in making environments, after `made` of them were made."""
    if isinstance(error, EnvError) or not is_its_own(error):
        return error
    words = words_of(error)
    alone = f"; {ALONE}" if made and ALONE not in words else ""
    return EnvError(f"{env.id}: it could not be made with env.kwargs={env.kwargs}: {words}{alone}")


def is_turn_based(env: Any) -> bool:
    """Whether an environment is turn-based: its module has no `parallel_env`.

    Raises:
        EnvError: there is no such module.
    """
    return not hasattr(module_of(env), "parallel_env")


def module_of(env: Any) -> Any:
    """The module that an id names; `env` has the attributes of EnvConfig.

    Raises:
        EnvError: there is none, it could not be imported, or it is no PettingZoo environment.
    """
    path = env.id.replace("/", ".")
    import_modules(env)
    if is_path(env.id):
        maker = maker_of(env)
        kind = next((base.__name__ for base in getattr(maker, "__mro__", ()) if base.__name__ in MAKERS), "ParallelEnv")
        return SimpleNamespace(**{MAKERS[kind]: maker})
    tried = []
    for name in (path, f"pettingzoo.{path}"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            tried.append(f"{name}: {one_line(error)}")
            continue
        except BaseException as error:
            if not is_its_own(error):
                raise
            raise EnvError(f"{env.id}: {name} cannot be imported: {words_of(error)}") from error
        if not any(hasattr(module, maker) for maker in ("parallel_env", "env", "raw_env")):
            raise EnvError(f"{env.id}: {name} has neither parallel_env nor env, and so is no PettingZoo environment.")
        return module
    raise EnvError(
        f"{env.id}: there is no such module ({'; '.join(tried)}); install what holds it, as with `pip install -e "
        "'.[agents]'`, and write its path, as mpe2/simple_spread_v3 or classic/connect_four_v3."
    )
