"""Backend ``pettingzoo``: any PettingZoo parallel environment with Discrete actions, as a world (see `envs.world`).

Ids are modules with a ``parallel_env``: ``mpe2/simple_spread_v3``, ``sisl/pursuit_v4`` (looked for in pettingzoo),
``magent2/environments/battle_v4``. Agents may die, join late and differ in spaces; ``possible_agents`` says who there
may be. An agent without a legal action is given all of them: what it chooses has no effect. Modules with an ``env``
only are turn-based games, which `envs.games.turn_based` makes playable against opponents.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs import life
from envs.spaces import Field, action_count, allocate, fault_of, fields_of, mask_field, row_writer
from envs.spec import EnvError, EnvSpec, import_modules
from envs.world import Observation, Step


class PettingZooVector:
    """``num_envs`` parallel environments, stepped in turn.

    Args:
        envs: they, each reset at least once.
        env_id: for messages.
        frame_stack: frames that a policy sees at once.
        clip_rewards: train on the sign of rewards.
    """

    def __init__(self, envs: list[Any], env_id: str, frame_stack: int, clip_rewards: bool) -> None:
        self.envs, self.num_envs, self._id, self._clip = envs, len(envs), env_id, clip_rewards
        self.agents: tuple[str, ...] = tuple(envs[0].possible_agents)
        n, seats = self.num_envs, [_Seat(envs[0], name, env_id, frame_stack, len(envs)) for name in self.agents]
        self._seats = seats
        self.specs: tuple[EnvSpec, ...] = tuple(seat.spec for seat in seats)
        self.present = [seat.present for seat in seats]
        self.raw_rewards = [seat.raw_reward for seat in seats]
        self._over = np.zeros(n, bool)
        self._seed: int | None = None
        self._vector_step = 0

    def reset(self, seed: int | None = None) -> list[Observation]:
        """Start every sub-environment anew, i with ``seed + i``.

        Raises:
            EnvError: one failed; it says which.
        """
        self._seed = self._seed if seed is None else seed
        for i in range(self.num_envs):
            self._start(i, None if seed is None else seed + i)
            life.beat()
        return self._observe()

    def step(self, actions: list[NDArray[np.int64]]) -> list[Step]:
        """One step of every sub-environment; where all agents have ended, the first of its next episode.

        Raises:
            EnvError: a sub-environment failed; it says which, its seed and the step.
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
                raise self._failure(i, ValueError(f"the reward of {seat.name} is {seat.raw_reward[i]}"))
            np.copyto(seat.reward, np.sign(seat.raw_reward) if self._clip else seat.raw_reward)
        return [
            (seen, seat.reward, seat.terminated, seat.truncated)
            for seen, seat in zip(observations, self._seats, strict=True)
        ]

    def render(self) -> Any:
        """The picture of sub-environment 0."""
        return self.envs[0].render()

    def close(self) -> None:
        """Close all."""
        for env in self.envs:
            env.close()
            life.beat()

    def _step_one(self, i: int, env: Any, actions: list[NDArray[np.int64]]) -> None:
        acting = [(a, seat) for a, seat in enumerate(self._seats) if seat.present[i]]
        try:
            chosen = {seat.name: actions[a][i] + seat.spec.action_start for a, seat in acting}
            observations, rewards, terminations, truncations, infos = env.step(chosen)
        except Exception as error:
            raise self._failure(i, error) from error
        alive = set(env.agents)
        for seat in self._seats:
            name = seat.name
            if name in observations:
                seat.rows[i], seat.infos[i] = observations[name], infos.get(name, {})
            if seat.present[i]:
                seat.raw_reward[i] = rewards.get(name, 0.0)
                seat.terminated[i] = terminations.get(name, False)
                # One that is gone without a word was cut off, and so is every one where nobody is left.
                gone = name not in alive and not seat.terminated[i]
                seat.truncated[i] = (bool(truncations.get(name, False)) or gone) and not seat.terminated[i]
            seat.present[i] = name in alive and not (seat.terminated[i] or seat.truncated[i])
        self._over[i] = not any(seat.present[i] for seat in self._seats)

    def _start(self, i: int, seed: int | None) -> None:
        try:
            observations, infos = self.envs[i].reset(seed=seed)
        except Exception as error:
            raise self._failure(i, error) from error
        for seat in self._seats:
            seat.present[i] = seat.name in observations
            if seat.present[i]:
                seat.rows[i], seat.infos[i] = observations[seat.name], infos.get(seat.name, {})
        self._over[i] = False

    def _observe(self) -> list[Observation]:
        for seat in self._seats:
            try:
                seat.write()
            except (ValueError, TypeError, KeyError, IndexError) as error:
                faults = [(i, fault_of(seat.fields, row)) for i, row in enumerate(seat.rows)]
                i, fault = next(((i, f) for i, f in faults if f is not None), (0, str(error)))
                raise self._failure(i, ValueError(f"of {seat.name}: {fault}")) from error
        return [seat.observation for seat in self._seats]

    def _failure(self, i: int, error: Exception) -> EnvError:
        seed = "unseeded" if self._seed is None else f"seed {self._seed + i}"
        return EnvError(
            f"{self._id}: sub-environment {i} ({seed}) failed in step {self._vector_step}: "
            f"{type(error).__name__}: {error}"
        )


class _Seat:
    """One agent's arrays, over all sub-environments."""

    def __init__(self, env: Any, name: str, env_id: str, frame_stack: int, n: int) -> None:
        self.name = name
        space, where = env.observation_space(name), f"{env_id}, {name}"
        num_actions, start = action_count(env.action_space(name), where)
        fields: tuple[Field, ...] = fields_of(space, frame_stack, where)
        mask = mask_field(space, num_actions, where)
        leaves = tuple(field.leaf for field in fields)
        self.fields = fields if mask is None else (*fields, mask)
        self.infos: list[dict[str, Any]] = [{} for _ in range(n)]
        in_info = mask is None and "action_mask" in getattr(env, "_trainer_infos", {}).get(name, {})
        self.mask_in_info = in_info
        self.spec = EnvSpec(where, leaves, num_actions, start, mask is not None or in_info)
        self.observation = allocate(self.fields, n)
        self.writers = [row_writer(field, self.observation[field.leaf.name]) for field in self.fields]
        if in_info:
            self.observation["action_mask"] = np.ones((n, num_actions), bool)
        space.seed(0)
        self.rows: list[Any] = [space.sample() for _ in range(n)]  # until it is seen for the first time
        self.present = np.zeros(n, bool)
        self.raw_reward, self.reward = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.terminated, self.truncated = np.zeros(n, bool), np.zeros(n, bool)

    def write(self) -> None:
        """Rows into arrays."""
        for write in self.writers:
            write(self.rows)
        mask = self.observation.get("action_mask")
        if mask is None:
            return
        if self.mask_in_info:
            for i, info in enumerate(self.infos):
                mask[i] = info.get("action_mask", True)
        mask[~mask.any(1)] = True


def make(env: Any, num_envs: int, render_mode: str | None = None) -> PettingZooVector:
    """A world of ``num_envs`` parallel environments; ``env`` has the attributes of EnvConfig.

    Raises:
        EnvError: it cannot be made or not be trained on; one sentence says why and what to do.
    """
    module = module_of(env)
    options = {**env.kwargs} if render_mode is None else {**env.kwargs, "render_mode": render_mode}
    try:
        made = []
        for _ in range(num_envs):
            made.append(module.parallel_env(**options))
            _, infos = made[-1].reset(seed=0)  # some know their spaces only then
            made[-1]._trainer_infos = infos
            life.beat()
    except Exception as error:
        text = " ".join(str(error).split())
        raise EnvError(f"{env.id}: it could not be made with env.kwargs={env.kwargs}: {text}") from error
    return PettingZooVector(made, env.id, env.frame_stack, env.clip_rewards)


def is_turn_based(env: Any) -> bool:
    """Whether it is a turn-based environment: one that has no ``parallel_env``.

    Raises:
        EnvError: there is no such module.
    """
    return not hasattr(module_of(env), "parallel_env")


def module_of(env: Any) -> Any:
    """The module that an id names; ``env`` has the attributes of EnvConfig.

    Raises:
        EnvError: there is none, or none of PettingZoo's.
    """
    path = env.id.replace("/", ".")
    import_modules(env)
    tried = []
    for name in (path, f"pettingzoo.{path}"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            tried.append(f"{name}: {error}")
            continue
        if not any(hasattr(module, maker) for maker in ("parallel_env", "env", "raw_env")):
            raise EnvError(f"{env.id}: {name} has neither parallel_env nor env, and so is no PettingZoo environment.")
        return module
    raise EnvError(
        f"{env.id}: there is no such module ({'; '.join(tried)}); install what holds it, as with `pip install -e "
        "'.[agents]'`, and write its path, as mpe2/simple_spread_v3 or classic/connect_four_v3."
    )
