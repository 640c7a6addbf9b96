"""A local agent of the schedule `shared_gradient`: acts, computes gradients, and applies them to the shared agent.

Runs in: a process for each local agent, on the CPU.
Receives: the shared weights through shared memory; commands through a pipe.
Sends: gradients to the shared optimiser; rows into its replay; counters and episodes onto its board.
Waits for: the shared agent's lock (`locked`) or nothing (`hogwild`); its mailbox, with the shared agent on a device;
the main process, during a checkpoint.
Stops when: its control board says so; it raises (the error goes through the pipe); its parent dies.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from trainer import envs
from trainer.algorithms import make_policy
from trainer.envs import life
from trainer.host import seeds
from trainer.memory.boards import AgentBoard, ControlBoard
from trainer.roles import child, pace
from trainer.roles.learner import Learner
from trainer.roles.learner_process import reporter, saved
from trainer.roles.rollout import CollectorPlan, Rollout, close_world
from trainer.roles.shared_memory import SharedMemoryLink
from trainer.run_folder import checkpoint
from trainer.shared_gradient.shared import SharedAgent
from trainer.shared_gradient.shared_device import DeviceAgent
from trainer.telemetry.trace import open_trace, save_or_say


def run(
    plan: CollectorPlan, control: ControlBoard, shared: SharedAgent | DeviceAgent, boards: Sequence[AgentBoard],
    resumed: bool, exact: bool, pipe: Connection,
) -> None:  # fmt: skip
    """Body of a local agent's process.

    It receives `("save", frames)` and later `("go", 0)` through the pipe, and sends `("row", metrics)`, `("saved",
    path)`, `("unsaved", why)` or `("error", text)`.

    Args:
        plan: of the rollout; its only agent is the local agent.
        control: the local agent's control board.
        shared: the shared agent.
        boards: of all local agents, as exploration and annealing follow the frames of all.
        resumed: whether to continue from the local agent's newest checkpoint.
        exact: whether to continue the episodes of this checkpoint, too.
        pipe: to the main process.
    """
    (local,) = plan.agents
    child.begin(local.config, "agent", local.number, plan.start, local.config.learner.num_threads)
    trace = open_trace(local.config, "learner", local.name)
    world: list[Any] = []  # once it is made
    try:
        with child.reporting(pipe):
            life.tell(local.board.learner_starts)
            agent, rollout = _build(plan, control, shared, resumed, exact, world)
            life.tell(agent.beat)
            agent.follow(trace)
            report, waiting = reporter(agent, pipe), False
            while not control.stopping():
                frames = total(boards)
                report()
                if pipe.poll():
                    order, number = pipe.recv()
                    waiting = order == "save"  # until all have saved; a "go" may be for a process before this one
                    if waiting:
                        pipe.send(saved(partial(_save, agent, rollout), number))
                elif not waiting and frames < local.config.budget_frames:
                    _round(agent, rollout, boards)
                elif waiting or local.config.schedule.updates_per_round is not None or not pace.work(agent):
                    # after a restart updates may be due for the last rows of the process before
                    time.sleep(pace.IDLE_S)
    finally:
        save_or_say(trace)
        if world and (problem := close_world(world[0])):
            print(problem, file=sys.stderr)


def _build(
    plan: CollectorPlan, control: ControlBoard, shared: SharedAgent | DeviceAgent, resumed: bool, exact: bool,
    made: list[Any],
) -> tuple[Learner, Rollout]:  # fmt: skip
    """Build learner and rollout, in the order of `sequential`, so that both schedules draw the same random numbers.

    The world is put into `made` as soon as it exists, so that the caller can close it after a failure.
    """
    (local,) = plan.agents
    agent = Learner(local, torch.device("cpu"))
    torch.manual_seed(seeds.of_updates(local.config.seed, local.number))
    shared.join(local.number, agent.updater)
    agent.prepare()  # the gradients without a step, which the shared optimiser makes
    for target, trained in zip(agent.updater.targets, agent.updater.trained, strict=True):
        target.copy_(trained)
    link = SharedMemoryLink(control, plan.agents, plan.worker)
    link.begin()
    generators: dict[str, Any] = {}  # apart from those of the learner
    with seeds.apart(generators):
        seeds.seed_globals(local.config.seed, "collector", local.number, plan.start)
        made.append(envs.make_world(plan.env, plan.num_envs))
        policy = make_policy(local.config, local.spec)
        rollout = Rollout(plan, link, made[0], [policy])
    rollout.generators = generators
    found = checkpoint.newest(local.folder) if resumed else None
    if found is not None:
        agent.load_state_dict(found, with_sampler=exact)
        shared.pull(local.number, agent.updater.trained)
        if exact:
            rollout.load_state_dict(found["rollout"])
            torch.set_rng_state(found["torch_rng"])
    else:  # of a local agent that died, the shared optimiser has the number of updates
        agent.limiter.updates = shared.updates_of(local.number)
        local.board.updates[0] = agent.limiter.updates
        if local.board.lost_at[0]:
            agent.limiter.begin_again(int(local.board.lost_at[0]))
    shared.beat = agent.beat
    agent.publish()
    return agent, rollout


def total(boards: Sequence[AgentBoard]) -> int:
    """Frames of all local agents."""
    return sum(board.total_frames() for board in boards)


def _round(agent: Learner, rollout: Rollout, boards: Sequence[AgentBoard]) -> None:
    """Collect a round, make the updates that are due for it, and publish the weights."""
    agent.board.schedule_frames[0] = total(boards)
    rollout.collect_round()
    for _ in pace.round_updates(agent, total(boards)):
        pass
    agent.publish()


def _save(agent: Learner, rollout: Rollout, number: int) -> Path:
    """Save a checkpoint between two rounds, with the state of the environments."""
    state = {**rollout.state_dict(), "number": number}
    save_or_say(rollout.trace)
    return agent.save(number, rollout=state, torch_rng=torch.get_rng_state())
