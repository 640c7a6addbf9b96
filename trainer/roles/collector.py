"""The collector: steps a world by its agents' policies, and writes each agent's transitions into its replay.

Runs in: a process for each worker, inside TorchRL's `MultiAsyncCollector`; in the main process for `sequential`.
Receives: weights of each agent, limits and commands through its link (`trainer.roles.link`).
Sends: rows, counts, episodes and signs of life through the same link.
Waits for: every agent's limit (async), or the command to collect a round (sync).
Stops when: it is told to; it raises (the error goes through the link); its parent dies.
A worker that replaces a dead one goes on after the rows that were published; the open episodes have been ended.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tensordict import TensorDict
from torchrl.collectors import Collector

from trainer import envs
from trainer.algorithms import make_policy
from trainer.envs import life
from trainer.envs.torchrl import VectorEnvironment
from trainer.envs.world import FirstAgent
from trainer.host import seeds
from trainer.host.errors import error_text
from trainer.roles import child
from trainer.roles.agents import model_id
from trainer.roles.link import WorkerLink
from trainer.roles.rollout import WAIT_S, CollectorPlan, Rollout, close_world
from trainer.telemetry.trace import save_or_say


class StreamCollector(Collector):
    """TorchRL's collector with a rollout loop of the trainer; rows go to the learners inside `rollout`.

    An error is written to the link, where the main process finds it.
    """

    _rollout: Rollout | None = None
    _closed = False

    def __init__(self, *args: Any, create_env_kwargs: dict[str, Any], **kwargs: Any) -> None:
        try:
            super().__init__(*args, create_env_kwargs=create_env_kwargs, **kwargs)
            for agent in create_env_kwargs["plan"].agents[1:]:  # TorchRL finds them by the id of their model
                setattr(self, model_id(agent), make_policy(agent.config, agent.spec))
        except BaseException as error:  # an environment may raise anything, SystemExit too
            create_env_kwargs["link"].fail(error_text(error))
            if isinstance(error, Exception):
                raise
            sys.exit(1)

    def rollout(self) -> TensorDict:
        """Collect until told to stop; TorchRL's loop then finds the command to close in its pipe."""
        if self._closed:  # TorchRL may call again before it reads the command to close
            time.sleep(WAIT_S)
            return TensorDict({}, [1])
        link, plan = self.env.link, self.env.plan
        try:
            if self._rollout is None:
                others = [getattr(self, model_id(agent)) for agent in plan.agents[1:]]
                self._rollout = Rollout(plan, link, self.env.world, [self.policy, *others])
            life.tell(link.alive)
            if plan.config.schedule.kind.rounds:
                self._rollout.run_rounds()
            else:
                self._rollout.run()
        except BaseException as error:  # an environment may raise anything, SystemExit too
            link.fail(error_text(error))
            sys.exit(1)
        finally:
            if self._rollout is not None:
                save_or_say(self._rollout.trace)
            if problem := close_world(self.env):
                print(problem, file=sys.stderr)
            link.close()
            self._closed = True
        return TensorDict({}, [1])


def make_environment(plan: CollectorPlan, link: WorkerLink) -> VectorEnvironment:
    """Set up a worker's process, and build its world there; TorchRL sees the first agent's part of it."""
    link.begin()
    child.begin(plan.config, "collector", plan.number, plan.start)
    life.tell(link.starting)
    world = envs.make_world(plan.env, plan.num_envs)
    environment = VectorEnvironment(FirstAgent(world))
    environment.plan, environment.link, environment.world = plan, link, world
    return environment


def virtual_worker(plan: CollectorPlan, link: WorkerLink) -> Rollout:
    """A worker in the main process, for `sequential`, with global generators of its own."""
    generators: dict[str, Any] = {}
    with seeds.apart(generators):
        seeds.seed_globals(plan.config.seed, "collector", plan.number, plan.start)
        world = envs.make_world(plan.env, plan.num_envs)
        policies = [make_policy(agent.config, agent.spec) for agent in plan.agents]
        rollout = Rollout(plan, link, world, policies)
    rollout.generators = generators
    return rollout
