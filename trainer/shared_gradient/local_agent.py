"""A local agent of the schedule `shared_gradient`: acts, computes gradients, and applies them to the shared agent.

Runs in: a process for each local agent, on the CPU.
Receives: the shared weights through shared memory; orders through a pipe.
Sends: gradients to the shared optimiser; rows into its own replay; counters and episodes onto its own board.
Waits for: the shared agent's lock (`locked`) or nothing (`hogwild`), or where it lives on a device, its mailbox;
the main process, while a checkpoint is made.
Stops when: its control board says so; its own exception (sent through the pipe); the parent's death.
"""

from __future__ import annotations

import os
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
from trainer.host.errors import error_text
from trainer.memory.boards import AgentBoard, ControlBoard
from trainer.roles import child
from trainer.roles.learner import IDLE_S, ROW_EVERY_S, Learner, saved
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
    """Body of the process.

    The pipe carries `("save", frames)` and then `("go", 0)` to it, and from it `("row", metrics)`, `("saved",
    path)`, `("unsaved", why)` and `("error", text)`.

    Args:
        plan: of its rollout; its only agent is the local one.
        control: its control board.
        shared: the shared agent.
        boards: of all local agents: exploration and annealing follow the frames of all.
        resumed: go on from this agent's newest checkpoint.
        exact: go on in the middle of its episodes too.
        pipe: to the main process.
    """
    (own,) = plan.agents
    child.begin(own.config, "agent", own.number, plan.start, own.config.learner.num_threads)
    trace = open_trace(own.config, "learner", own.name)
    world: list[Any] = []  # once it is made
    try:
        life.tell(own.board.learner_starts)
        agent, rollout = _build(plan, control, shared, resumed, exact, world)
        life.tell(agent.beat)
        agent.follow(trace)
        reported, waiting = time.monotonic(), False
        while not control.stopping():
            frames = total(boards)
            now = own.board.learner_heartbeat[0] = time.monotonic()
            if now - reported >= ROW_EVERY_S:
                reported = now
                pipe.send(("row", agent.metrics()))
            if pipe.poll():
                order, number = pipe.recv()
                waiting = order == "save"  # until all have saved; a "go" may have been meant for a predecessor
                if waiting:
                    pipe.send(saved(partial(_save, agent, rollout), number))
            elif not waiting and frames < own.config.budget_frames:
                _round(agent, rollout, boards)
            elif waiting or own.config.schedule.updates_per_round is not None or not agent.work():
                # where updates follow frames, a predecessor's last rows may still owe some
                time.sleep(IDLE_S)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        os._exit(1)  # the main process is gone
    except BaseException as error:  # an environment may raise anything, SystemExit too
        pipe.send(("error", error_text(error)))
        raise SystemExit(1) from error
    finally:
        save_or_say(trace)
        if world and (problem := close_world(world[0])):
            print(problem, file=sys.stderr)


def _build(
    plan: CollectorPlan, control: ControlBoard, shared: SharedAgent | DeviceAgent, resumed: bool, exact: bool,
    made: list[Any],
) -> tuple[Learner, Rollout]:  # fmt: skip
    """Learner and rollout, in the order in which `sequential` makes them, so that both draw the same numbers.

    The world is put into `made` at once, so that it can be closed whatever happens then.
    """
    (own,) = plan.agents
    agent = Learner(own, torch.device("cpu"))
    torch.manual_seed(seeds.of_updates(own.config.seed, own.number))
    agent.prepare()
    shared.join(own.number, agent.updater)
    for target, trained in zip(agent.updater.targets, agent.updater.trained, strict=True):
        target.copy_(trained)
    link = SharedMemoryLink(control, plan.agents, plan.worker)
    link.begin()
    generators: dict[str, Any] = {}  # not those that the learner draws from
    with seeds.apart(generators):
        seeds.seed_globals(own.config.seed, "collector", own.number, plan.start)
        made.append(envs.make_world(plan.env, plan.num_envs))
        policy = make_policy(own.config, own.spec)
        rollout = Rollout(plan, link, made[0], [policy])
    rollout.generators = generators
    found = checkpoint.newest(own.folder) if resumed else None
    if found is not None:
        agent.load_state_dict(found, with_sampler=exact)
        shared.pull(own.number, agent.updater.trained)
        if exact:
            rollout.load_state_dict(found["rollout"])
            torch.set_rng_state(found["torch_rng"])
    else:  # one that died has its count of updates where the shared optimiser keeps it
        agent.limiter.updates = shared.updates_of(own.number)
        own.board.updates[0] = agent.limiter.updates
        if own.board.lost_at[0]:
            agent.limiter.begin_again(int(own.board.lost_at[0]))
    shared.beat = agent.beat
    agent.publish()
    return agent, rollout


def total(boards: Sequence[AgentBoard]) -> int:
    """Frames of all local agents."""
    return sum(board.total_frames() for board in boards)


def _round(agent: Learner, rollout: Rollout, boards: Sequence[AgentBoard]) -> None:
    """Some steps of every environment, the updates that they owe, and the new weights for the next steps."""
    board, schedule = agent.board, agent.config.schedule
    board.schedule_frames[0] = total(boards)
    rollout.collect_round()
    agent.anneal(total(boards))
    frames = board.total_frames()
    if schedule.updates_per_round is None:
        owed = int(agent.limiter.due(frames, board.total_episodes()))
    else:
        owed = schedule.updates_per_round if frames >= agent.limiter.warmup_frames else 0
    while owed:
        chunk = min(owed, agent.config.learner.prefetch_batches)
        agent.learn([chunk])
        owed -= chunk
    agent.publish()


def _save(agent: Learner, rollout: Rollout, number: int) -> Path:
    """A checkpoint between two rounds, with where the environments stand."""
    state = {**rollout.state_dict(), "number": number}
    save_or_say(rollout.trace)
    return agent.save(number, rollout=state, torch_rng=torch.get_rng_state())
