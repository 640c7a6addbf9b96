"""The collector: steps a world with its agents' exploration policies, writes each one's transitions into its replay.

Runs in: a process for each worker, inside TorchRL's ``MultiAsyncCollector``; in the main process for ``sequential``.
Receives: weights from each agent's weights board; orders from the control board.
Sends: rows into its own streams of each agent's replay, then their cursor; counters, episodes onto the agent's board.
Waits for: every agent's ``frame_limit`` (async) or the control board's ``round`` (sync).
Stops when: the control board says so; its own exception (left on the board); the parent's death.
A worker that replaces a dead one goes on behind what that one published; its open episodes have been closed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector

from trainer import envs
from trainer.acting.multi_agent import AgentPolicies
from trainer.algorithms import make_policy
from trainer.config.sections import Config
from trainer.envs import life
from trainer.envs.torchrl import VectorEnvironment
from trainer.envs.world import FirstAgent, Step
from trainer.host import seeds
from trainer.host.errors import error_text, split_error
from trainer.memory.boards import ControlBoard
from trainer.memory.weights import flatten_parameters
from trainer.replay.streams import worker_rows
from trainer.roles import child
from trainer.roles.agents import AgentPlan, model_id, shape_key
from trainer.roles.seat import Seat
from trainer.run_folder import checkpoint
from trainer.selfplay.opponents import PoolOpponents
from trainer.selfplay.pool import OpponentPool
from trainer.telemetry.trace import Trace, all_of, open_trace, save_or_say

WAIT_S = 2e-4  # between two looks at the control board
CLOCK = time.monotonic_ns  # of traces


@dataclass(frozen=True)
class CollectorPlan:
    """All that a worker is built from; crosses the process border once, at the start.

    Args:
        config: the run.
        agents: whose rollouts it makes, all of them in one world.
        worker: its number, 0 .. W - 1.
        start: how many processes had this number before, in this run and in those that it resumes.
        snapshot: where its state is kept for an exact resume; `trainer.roles.collector` writes it when asked.
        exact: go on from that state.
        pool: of opponents, in self-play.
        first_env: number of its first sub-environment among those of all local agents (``shared_gradient``).
    """

    config: Config
    agents: tuple[AgentPlan, ...]
    worker: int
    start: int = 0
    snapshot: Path | None = None
    exact: bool = False
    first_env: int = 0
    pool: OpponentPool | None = None

    @property
    def number(self) -> int:
        """Of the worker, or of the local agent whose only one it is."""
        return self.worker + self.first_env // self.agents[0].streams.envs_per_worker


class Rollout:
    """A worker's world and where it stands; :meth:`step` is the way of a transition into the replay.

    Args:
        plan: what to build.
        board: control board.
        rows: the worker's columns of each agent's replay.
        world: the environments, not yet reset.
        policies: the agents' actors; their parameters are replaced by the boards'.
    """

    def __init__(
        self,
        plan: CollectorPlan,
        board: ControlBoard,
        rows: Sequence[dict[str, np.ndarray]],
        world: Any,
        policies: Sequence[TensorDictModule],
    ) -> None:
        self.worker, self.schedule, self.snapshot = plan.worker, plan.config.schedule, plan.snapshot
        self.board, self.world, self.pool = board, world, plan.pool
        self.generators: dict[str, Any] | None = None  # its own, where the process is another's too (`seeds.apart`)
        self.seats = [Seat(agent, plan.worker, own, plan.start) for agent, own in zip(plan.agents, rows, strict=True)]
        if plan.pool is not None:
            agent = plan.agents[0]
            world.opponents = PoolOpponents(
                plan.config, agent.spec, plan.pool, agent.weights.reader(), plan.worker, world.num_envs,
                seeds.of_opponents(agent.seed, plan.worker, plan.start),
            )  # fmt: skip
        for seat, given in zip(self.seats, getattr(world, "given", [None] * len(self.seats)), strict=True):
            seat.given = given
        seeds.seed_globals(plan.config.seed, "collector", plan.number, plan.start, stage=1)
        observations = world.reset(first_seed(plan))
        for seat, observation, present in zip(self.seats, observations, world.present, strict=True):
            seat.begin(observation, present)
        self.policies = AgentPolicies(
            [policy.module[0].module for policy in policies],
            [flatten_parameters(policy) for policy in policies],
            [shape_key(agent) for agent in plan.agents],
            [(seat.stacks.seen(seat.observation), seat.observation.get("action_mask")) for seat in self.seats],
            [seeds.of_noise(agent.seed, plan.worker, plan.start) for agent in plan.agents],
        )
        if plan.exact:
            assert plan.snapshot is not None
            self.load_state_dict(checkpoint.load(plan.snapshot))
        self.by_episodes = any(agent.config.schedule.episodes_per_update is not None for agent in plan.agents)
        self.trace = open_trace(plan.config, "collector", str(plan.worker))
        if isinstance(self.trace, Trace):
            names = all_of([agent.name for agent in plan.agents])
            self._wait = self.trace.waiting(self._wait, "wait", names)  # type: ignore[method-assign]
            self._chain, self._record = self.trace.chain("write", "inference", "env step", "write", agent=names)
            self.step = self._traced_step  # type: ignore[method-assign]

    def state_dict(self) -> dict[str, Any]:
        """Where the worker stands between two rounds; ``world`` is None where the environment cannot tell."""
        assert self.policies.noise is not None
        with self._own_generators():
            generators = seeds.global_state()
        return {
            "generators": generators,
            "world": self.world.state() if hasattr(self.world, "state") else None,
            "opponents": None if self.pool is None else self.world.opponents.state_dict(),
            "seats": [seat.state_dict() for seat in self.seats],
            "noise": [rng.bit_generator.state for rng in self.policies.noise],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: the environment went another way.
        """
        assert self.policies.noise is not None
        for seat, own in zip(self.seats, state["seats"], strict=True):
            seat.load_state_dict(own)
        observations = self.world.set_state(
            state["world"], [episode_actions(seat.rows, seat.time, seat.age) for seat in self.seats]
        )
        for seat, observation in zip(self.seats, observations, strict=True):
            seat.observation = observation
        if self.pool is not None:
            self.world.opponents.load_state_dict(state["opponents"])
        for rng, own in zip(self.policies.noise, state["noise"], strict=True):
            rng.bit_generator.state = own
        with self._own_generators():
            seeds.set_global_state(state["generators"])

    def _own_generators(self) -> AbstractContextManager[None]:
        return nullcontext() if self.generators is None else seeds.apart(self.generators)

    def close(self) -> str:
        """Close the environments, and keep the trace; what went wrong with that, in a sentence."""
        save_or_say(self.trace)
        return closed(self.world)

    def save_snapshot(self, number: int) -> None:
        """Keep the state for the checkpoint of that number; where the disk refuses, that one is resumed without it."""
        assert self.snapshot is not None
        try:
            checkpoint.write_aside({**self.state_dict(), "number": number}, self.snapshot)
        except OSError:
            self.snapshot.unlink(missing_ok=True)  # the main process meets the same disk, and says so

    def step(self, frames: Sequence[int]) -> None:
        """One step of every sub-environment: a row of each agent, then its cursor.

        All agents are observed before any acts; their actions come from one forward pass where networks are alike.
        ``frames`` of each agent says how far its exploration has fallen.
        """
        self._write_seen()
        self._conclude(self.world.step(self._choose(frames)))

    def _traced_step(self, frames: Sequence[int]) -> None:
        """As :meth:`step`, and what of it took how long."""
        start = CLOCK()
        self._write_seen()
        seen = CLOCK()
        actions = self._choose(frames)
        chosen = CLOCK()
        steps = self.world.step(actions)
        stepped = CLOCK()
        self._conclude(steps)
        self._record((self._chain, start, seen, chosen, stepped, CLOCK()))

    def _write_seen(self) -> None:
        for seat in self.seats:
            seat.write_seen()

    def _choose(self, frames: Sequence[int]) -> list[np.ndarray]:
        chosen = self.policies.act(
            [(seat.stacks.seen(seat.observation), seat.observation.get("action_mask")) for seat in self.seats]
        )
        return [
            seat.explore(action, values, so_far)
            for seat, (action, values), so_far in zip(self.seats, chosen, frames, strict=True)
        ]

    def _conclude(self, steps: list[Step]) -> None:
        world = self.world
        for seat, step, present, reward in zip(self.seats, steps, world.present, world.raw_rewards, strict=True):
            seat.conclude(step, present, reward)
        self.board.lives(self.worker)

    def pull(self) -> None:
        """The newest complete weights of every agent."""
        for seat, flat in zip(self.seats, self.policies.weights, strict=True):
            seat.board.version[self.worker] = seat.reader.pull(flat)

    @torch.inference_mode()
    def run(self) -> None:
        """Asynchronous: step with the newest weights until told to stop, or paused by an agent's frame limit."""
        board, agents, by_episodes = self.board, [seat.board for seat in self.seats], self.by_episodes
        while not board.stopping():
            frames = [agent.total_frames() for agent in agents]
            held = any(so_far >= agent.frame_limit[0] for so_far, agent in zip(frames, agents, strict=True))
            if held or (by_episodes and any(own.total_episodes() >= own.episode_limit[0] for own in agents)):
                self._wait()
                continue
            self.pull()
            self.step(frames)

    def run_rounds(self) -> None:
        """Synchronous: collect a round whenever the main process asks for the next one."""
        board = self.board
        while not board.stopping():
            if board.round[0] > board.rounds_done[self.worker]:
                self.collect_round()
            elif board.snapshot[0] > board.snapshots_done[self.worker]:
                number = int(board.snapshot[0])
                self.save_snapshot(number)
                board.snapshots_done[self.worker] = number
            else:
                self._wait()

    def collect_round(self) -> None:
        """One round with the newest weights: a fixed number of vector steps, or of finished episodes."""
        with self._own_generators(), torch.inference_mode():
            self._collect_round()

    def _collect_round(self) -> None:
        board, worker = self.board, self.worker
        frames = [int(seat.board.schedule_frames[0]) for seat in self.seats]
        self.pull()
        if self.schedule.episodes_per_round is not None:
            done = self.seats[0].board.episodes_done
            target = done[worker] + self.schedule.episodes_per_round
            while done[worker] < target and not board.stopping():
                self.step(frames)
        else:
            assert self.schedule.frames_per_round is not None  # a run's configuration is resolved
            for _ in range(self.schedule.frames_per_round // len(self.seats[0].board.cursor)):
                if board.stopping():
                    return
                self.step(frames)
        board.rounds_done[worker] += 1

    def _wait(self) -> None:
        start = time.monotonic()
        time.sleep(WAIT_S)
        now = time.monotonic()
        self.board.waited_s[self.worker] += now - start
        self.board.heartbeat[self.worker] = now


class StreamCollector(Collector):
    """TorchRL's collector with our rollout loop; rows go into the replay inside :meth:`rollout`.

    Whatever goes wrong is left on the control board, where the main process finds it and names the worker.
    """

    _rollout: Rollout | None = None

    def __init__(self, *args: Any, create_env_kwargs: dict[str, Any], **kwargs: Any) -> None:
        try:
            super().__init__(*args, create_env_kwargs=create_env_kwargs, **kwargs)
            for agent in create_env_kwargs["plan"].agents[1:]:  # where TorchRL looks for them by their model's id
                setattr(self, model_id(agent), make_policy(agent.config, agent.spec))
        except BaseException as error:  # an environment may raise anything, SystemExit too
            create_env_kwargs["board"].write_error(create_env_kwargs["plan"].worker, error_text(error))
            if isinstance(error, Exception):
                raise
            sys.exit(1)

    def rollout(self) -> TensorDict:
        """Collect until told to stop; TorchRL's runner then finds the order to close in its pipe."""
        board, plan = self.env.board, self.env.plan
        if board.closed[plan.worker]:  # TorchRL asks once more until it has read that it is to close
            time.sleep(WAIT_S)
            return TensorDict({}, [1])
        try:
            if self._rollout is None:
                rows = [worker_rows(agent.storage, agent.streams, plan.worker) for agent in plan.agents]
                others = [getattr(self, model_id(agent)) for agent in plan.agents[1:]]
                self._rollout = Rollout(plan, board, rows, self.env.world, [self.policy, *others])
            life.tell(board.watcher(plan.worker))
            if plan.config.schedule.kind.rounds:
                self._rollout.run_rounds()
            else:
                self._rollout.run()
        except BaseException as error:  # an environment may raise anything, SystemExit too
            board.write_error(plan.worker, error_text(error))
            sys.exit(1)
        finally:
            if self._rollout is not None:
                save_or_say(self._rollout.trace)
            if problem := closed(self.env):
                print(problem, file=sys.stderr)
            board.closed[plan.worker] = 1
        return TensorDict({}, [1])


def closed(world: Any) -> str:
    """Close environments, and with them the programs that they run; what went wrong, in a sentence, or nothing."""
    try:
        world.close()
    except Exception as error:
        return f"an environment could not be closed: {split_error(error_text(error))[1]}"
    return ""


def episode_actions(rows: dict[str, np.ndarray], time: int, age: np.ndarray) -> list[np.ndarray]:
    """The actions since each sub-environment's episode began, int64 [steps] each.

    Args:
        rows: a worker's columns [ring, N, ...].
        time: rows that were written.
        age: steps of each episode, [N].

    Raises:
        ValueError: an episode is longer than the ring, where its actions lie.
    """
    ring = len(rows["action"])
    if (age >= ring).any():
        raise ValueError("an episode is longer than the part of the replay that holds its actions")
    times = [np.arange(time - steps, time) % ring for steps in age]
    return [rows["action"][slots, i].copy() for i, slots in enumerate(times)]


def first_seed(plan: CollectorPlan) -> int:
    """Seed of a worker's first sub-environment; another one for each time that it is started."""
    own = plan.first_env + plan.agents[0].streams.streams_of(plan.worker).start
    return seeds.of_worker(plan.config.seed, own, plan.start)


def make_environment(plan: CollectorPlan, board: ControlBoard) -> VectorEnvironment:
    """A worker's world, built in its process; also where the process gets its habits.

    What TorchRL is told of it is the first agent's part.
    """
    board.pid[plan.worker] = os.getpid()
    child.begin(plan.config, "collector", plan.number, plan.start)
    life.tell(partial(board.starts, plan.worker))
    world = envs.make_world(plan.config.env, plan.agents[0].streams.envs_per_worker)
    environment = VectorEnvironment(FirstAgent(world))
    environment.plan, environment.board, environment.world = plan, board, world
    return environment


def virtual_worker(plan: CollectorPlan, board: ControlBoard) -> Rollout:
    """A worker without a process, for ``sequential``; it draws from generators of its own."""
    rows = [worker_rows(agent.storage, agent.streams, plan.worker) for agent in plan.agents]
    generators: dict[str, Any] = {}
    with seeds.apart(generators):
        seeds.seed_globals(plan.config.seed, "collector", plan.number, plan.start)
        world = envs.make_world(plan.config.env, plan.agents[0].streams.envs_per_worker)
        policies = [make_policy(agent.config, agent.spec) for agent in plan.agents]
        rollout = Rollout(plan, board, rows, world, policies)
    rollout.generators = generators
    return rollout
