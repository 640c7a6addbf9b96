"""A rollout: a worker's world, its agents' policies, and the steps that they make together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict.nn import TensorDictModule

from trainer.acting.acting import acting_of
from trainer.acting.multi_agent import AgentPolicies
from trainer.config.instances import env_of_collector
from trainer.config.sections import Config, EnvConfig
from trainer.envs import life
from trainer.host import seeds
from trainer.host.errors import error_text, split_error
from trainer.memory.weights import flatten_parameters
from trainer.roles.agent_rollout import AgentRollout
from trainer.roles.agents import AgentPlan, shape_key
from trainer.roles.link import WorkerLink
from trainer.run_folder import checkpoint
from trainer.selfplay.opponents import Seating, against_nobody
from trainer.telemetry.trace import all_of, open_trace, save_or_say

WAIT_S, LONGEST_WAIT_S = 2e-4, 2e-3  # shortest and longest sleep of a waiting worker


@dataclass(frozen=True)
class CollectorPlan:
    """All that a worker is built from; it is pickled to the worker's process at the start.

    Args:
        config: of the run.
        agents: of the worker's world.
        worker: number of the worker, 0 .. W - 1.
        start: how often the worker was restarted, in this run and in those that it resumes.
        snapshot: file of the worker's state, for an exact resume.
        exact: whether to go on from that state.
        first_env: number of its first sub-environment among those of all local agents (`shared_gradient`).
        opponents: gives its world opponents, in self-play.
    """

    config: Config
    agents: tuple[AgentPlan, ...]
    worker: int
    start: int = 0
    snapshot: Path | None = None
    exact: bool = False
    first_env: int = 0
    opponents: Seating = against_nobody

    @property
    def number(self) -> int:
        """Number of the worker, or of the local agent of which it is the only worker."""
        return self.worker + self.first_env // self.num_envs

    @property
    def num_envs(self) -> int:
        """N, the number of its sub-environments."""
        return self.agents[0].config.collector.envs_per_worker

    @property
    def stream(self) -> int:
        """Number of its first sub-environment among those of all workers and local agents."""
        return self.first_env + self.worker * self.num_envs

    @property
    def env(self) -> EnvConfig:
        """The section `env` with the number of its first sub-environment."""
        return env_of_collector(self.config, self.stream)

    @property
    def first_seed(self) -> int:
        """Seed of its first sub-environment, another one after each restart."""
        return seeds.of_worker(self.config.seed, self.stream, self.start)


class Rollout:
    """A worker's world and its agents; `step` takes the transitions from the environments to the learners.

    Args:
        plan: of the worker.
        link: to the learners.
        world: the environments, not reset yet.
        policies: actors of the agents, which get their weights from the link.
    """

    def __init__(self, plan: CollectorPlan, link: WorkerLink, world: Any, policies: Sequence[TensorDictModule]) -> None:
        self.config, self.snapshot = plan.config, plan.snapshot
        self.link, self.world = link, world
        self.generators: dict[str, Any] | None = None  # set if other roles draw in this process too (`seeds.apart`)
        links = link.connect()
        self.agents = [
            AgentRollout(agent, acting_of(policy), its_link, plan.worker, plan.start)
            for agent, policy, its_link in zip(plan.agents, policies, links, strict=True)
        ]
        first = plan.agents[0]
        self.opponents = plan.opponents(
            plan.config, first.spec, world, links[0].weights_reader(), plan.worker,
            seeds.of_opponents(first.seed, plan.worker, plan.start),
        )  # fmt: skip
        for agent, given in zip(self.agents, getattr(world, "given", [None] * len(links)), strict=True):
            agent.given = given
        if hasattr(world, "info_of"):
            for number, agent in enumerate(self.agents):
                agent.info_of = partial(world.info_of, number)
        seeds.seed_globals(plan.config.seed, "collector", plan.number, plan.start, stage=1)
        observations = world.reset(plan.first_seed)
        for agent, observation, present in zip(self.agents, observations, world.present, strict=True):
            agent.begin(observation, present)
        self.policies = AgentPolicies(
            [policy.module[0].module for policy in policies],
            [flatten_parameters(policy) for policy in policies],
            [shape_key(agent) for agent in plan.agents],
            [agent.seen() for agent in self.agents],
            [seeds.of_noise(agent.seed, plan.worker, plan.start) for agent in plan.agents],
            [acting_of(policy) for policy in policies],
        )
        if plan.exact:
            assert plan.snapshot is not None
            self.load_state_dict(checkpoint.load(plan.snapshot))
        self.trace = open_trace(plan.config, "collector", str(plan.worker))
        names = all_of([agent.name for agent in plan.agents])
        self._sleep = self.trace.waiting(time.sleep, "wait", names)
        self._waited_s = 0.0  # since the last vector step
        self._clock = self.trace.clock
        self._chain, self._record = self.trace.chain("write", "inference", "env step", "write", agent=names)

    def state_dict(self) -> dict[str, Any]:
        """The worker's state between two rounds; `world` is None if the environment has no state."""
        assert self.policies.noise is not None
        with self._generators_apart():
            generators = seeds.global_state()
        return {
            "generators": generators,
            "world": self.world.state() if hasattr(self.world, "state") else None,
            "opponents": self.opponents.state_dict(),
            "seats": [agent.state_dict() for agent in self.agents],
            "noise": [generator.bit_generator.state for generator in self.policies.noise],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`.

        Raises:
            ValueError: the environment led to other observations.
        """
        assert self.policies.noise is not None
        for agent, its_state in zip(self.agents, state["seats"], strict=True):
            agent.load_state_dict(its_state)
        actions = [agent.link.episode_actions(agent.age) for agent in self.agents]
        for agent, observation in zip(self.agents, self.world.set_state(state["world"], actions), strict=True):
            agent.observation = observation
        self.opponents.load_state_dict(state["opponents"])
        for generator, its_state in zip(self.policies.noise, state["noise"], strict=True):
            generator.bit_generator.state = its_state
        with self._generators_apart():
            seeds.set_global_state(state["generators"])

    def _generators_apart(self) -> AbstractContextManager[None]:
        return nullcontext() if self.generators is None else seeds.apart(self.generators)

    def close(self) -> str:
        """Save the trace, and close the environments; returns a sentence about a failure, or ""."""
        save_or_say(self.trace)
        return close_world(self.world)

    def save_snapshot(self, number: int) -> None:
        """Save the state for the checkpoint of this number; if the disk refuses, a resume goes without it."""
        assert self.snapshot is not None
        try:
            checkpoint.write_aside({**self.state_dict(), "number": number}, self.snapshot)
        except OSError:
            self.snapshot.unlink(missing_ok=True)  # the main process reports the disk

    def step(self, frames: Sequence[int]) -> None:
        """Step every sub-environment, and publish a row of each for every agent.

        All agents observe before any acts; agents with networks of the same shape act in one forward pass.

        Args:
            frames: of each agent, for its exploration.
        """
        world, clock = self.world, self._clock
        start = clock()
        for agent in self.agents:
            agent.link.write_observation(agent.observation, agent.present, agent.age)
        seen = clock()
        actions = self._choose(frames)
        chosen = clock()
        steps = world.step(actions)
        life.leave_if_forked()
        stepped = clock()
        for agent, step, present, reward in zip(self.agents, steps, world.present, world.raw_rewards, strict=True):
            agent.conclude(step, present, reward)
        self.link.alive()
        self._waited_s = 0.0
        self._record((self._chain, start, seen, chosen, stepped, clock()))

    def _choose(self, frames: Sequence[int]) -> list[np.ndarray]:
        chosen = self.policies.act([agent.seen() for agent in self.agents])
        return [
            agent.explore(action, values, so_far)
            for agent, (action, values), so_far in zip(self.agents, chosen, frames, strict=True)
        ]

    def read_weights(self) -> None:
        """Get the newest weights of every agent."""
        for agent, flat in zip(self.agents, self.policies.weights, strict=True):
            agent.link.read_weights(flat)

    @torch.inference_mode()
    def run(self) -> None:
        """Asynchronous: step with the newest weights until told to stop, and wait where an agent's limit is reached."""
        link, links = self.link, [agent.link for agent in self.agents]
        while not link.stopping():
            frames = [its.frames() for its in links]
            if not all(its.may_collect(so_far) for its, so_far in zip(links, frames, strict=True)):
                self._wait()
                continue
            self.read_weights()
            self.step(frames)

    def run_rounds(self) -> None:
        """Synchronous: collect a round when the main process asks for it, until told to stop."""
        link = self.link
        while not link.stopping():
            if link.round_due():
                self.collect_round()
            elif number := link.snapshot_due():
                self.save_snapshot(number)
                link.snapshot_done(number)
            else:
                self._wait()

    def collect_round(self) -> None:
        """Collect one round with the newest weights: a fixed number of vector steps, or of finished episodes."""
        with self._generators_apart(), torch.inference_mode():
            self._collect_round()

    def _collect_round(self) -> None:
        link, schedule, collector = self.link, self.config.schedule, self.config.collector
        frames = [agent.link.round_frames() for agent in self.agents]
        self.read_weights()
        if schedule.episodes_per_round is not None:
            first = self.agents[0]
            target = first.episodes + schedule.episodes_per_round
            while first.episodes < target and not link.stopping():
                self.step(frames)
        else:
            assert schedule.frames_per_round is not None and collector.num_workers is not None  # it is resolved
            for _ in range(schedule.frames_per_round // (collector.num_workers * collector.envs_per_worker)):
                if link.stopping():
                    return
                self.step(frames)
        link.round_done()

    def _wait(self) -> None:
        start = time.monotonic()
        self._sleep(pause(self._waited_s))
        seconds = time.monotonic() - start
        self._waited_s += seconds
        self.link.waited(seconds)


def pause(waited_s: float) -> float:
    """Seconds to sleep after a worker has waited for so long: a quarter of it, as a long update needs few looks."""
    return min(LONGEST_WAIT_S, max(WAIT_S, waited_s / 4))


def close_world(world: Any) -> str:
    """Close the environments; returns a sentence about a failure, or ""."""
    try:
        world.close()
    except Exception as error:
        return f"an environment could not be closed: {split_error(error_text(error))[1]}"
    return ""
