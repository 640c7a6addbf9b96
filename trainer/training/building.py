"""Builds the parts of a run; `trainer.training.system` is all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from trainer.algorithms import check_actions
from trainer.config.consistency import check_game
from trainer.config.fields import ConfigError
from trainer.config.overrides import agent_config
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.datasets.minari import read_dataset
from trainer.datasets.rows import rows_of
from trainer.envs import EnvError, EnvSpec
from trainer.host import seeds, unguarded
from trainer.host.signals import StopSignals
from trainer.memory.boards import RUN, ControlBoard
from trainer.replay.on_disk import ReplayCopy
from trainer.roles import learner_process as learning
from trainer.roles import task as looking
from trainer.roles.agents import AgentPlan, plan_agents, plan_local_agents, wants_values, without_scheme
from trainer.roles.learner import Learner
from trainer.roles.rollout import CollectorPlan
from trainer.run_folder import checkpoint
from trainer.selfplay.opponents import Seating, against_nobody, against_pool
from trainer.selfplay.pool import NoPool, OpponentPool, open_pool
from trainer.shared_gradient import local_agent as playing_agents
from trainer.shared_gradient.shared import SharedAgent
from trainer.shared_gradient.shared_device import DeviceAgent
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.measuring import Telemetry
from trainer.telemetry.trace import NoTrace, Trace, open_trace, remove_parts
from trainer.training.cluster_collectors import ClusterCollectors, check_cluster
from trainer.training.collectors import CollectorWorkers
from trainer.training.evaluators import Evaluator, LocalEvaluator, RemoteEvaluator
from trainer.training.learner_process import LearnerProcess
from trainer.training.learners import Learners
from trainer.training.local_learners import LocalLearners, one_by_one, stacked
from trainer.training.playing import Collectors, LocalAgents, LocalCollectors, snapshot_path
from trainer.training.processes import spawn
from trainer.training.remote_learners import RemoteLearners
from trainer.training.shared_learners import SharedLearners
from trainer.training.supervisor import Supervisor
from trainer.training.system import System
from trainer.training.tasks import TaskFailed, before_the_run


def describe(config: Config) -> list[tuple[str, EnvSpec]]:
    """Names and specs of the environment's agents, read in another process.

    Raises:
        ConfigError: the configuration does not fit the environment.
        EnvError: it cannot be made or trained on, or the other process died or hung.
    """
    try:
        world: list[tuple[str, EnvSpec]] = before_the_run(
            config, "first look at the environment", partial(looking.describe, config)
        )
    except TaskFailed as error:
        if unguarded.WORDS in str(error):
            raise ConfigError(unguarded.sentence()) from None  # the traceback of its child says nothing more
        raise EnvError(f"{config.env.id}: {error}; make one by itself in Python to see why") from error
    for name, spec in world:
        check_actions(agent_config(config, name), spec)
    if world[0][1].against_opponents:
        check_game(config)
    check_cluster(config, world)
    return world


@dataclass(frozen=True)
class Side:
    """The parts of a run that depend on the schedule.

    Args:
        learners: the learning side.
        collectors: the playing side.
        boards: control board of each agent's collectors.
        trace: of this process.
    """

    learners: Learners
    collectors: Collectors
    boards: list[ControlBoard]
    trace: Trace | NoTrace


@dataclass(frozen=True)
class Place:
    """What all parts of a run are built with.

    Args:
        config: of the run.
        run_dir: the run folder.
        scratch: folder of the replay.
        device: of the updates.
        loggers: for rows and events.
        supervisor: of the processes.
    """

    config: Config
    run_dir: Path
    scratch: Path
    device: torch.device
    loggers: Loggers
    supervisor: Supervisor


def build(
    config: Config, run_dir: Path, world: Sequence[tuple[str, EnvSpec]], device: torch.device, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """Build every part of a run; `System.start` starts its processes.

    Raises:
        ConfigError: an agent's configuration is not possible.
    """
    supervisor = Supervisor(config.faults, loggers.event)
    place = Place(config, run_dir, scratch, device, loggers, supervisor)
    remove_parts(run_dir)
    pool: OpponentPool | NoPool = NoPool()
    if config.schedule.kind.local_agents:
        side = local_agents(place, plan_local_agents(config, world, run_dir, scratch))
    else:
        plans = plan_agents(config, world, run_dir, scratch)
        learners, board = learners_of(place, plans)
        opponents: Seating = against_nobody
        if world[0][1].against_opponents:
            pool = open_pool(config, run_dir, plans[0].weights.numel, plans[0].streams.num_workers)
            opponents = partial(against_pool, pool)
        trace = open_trace(config, "learner" if learners.learns_here else "main")
        learners.follow(trace)
        side = Side(learners, collectors_of(place, plans, board, opponents), [board] * len(plans), trace)
    if config.resume is None:
        for plan in side.learners.plans:
            if plan.config.replay.start_from is not None:
                begin_with_dataset(plan, loggers)
    telemetry = [
        Telemetry(plan.config, board, plan.board, plan.streams.rows)
        for plan, board in zip(side.learners.plans, side.boards, strict=True)
    ]
    evaluator: Evaluator = (
        LocalEvaluator(config, run_dir, side.learners)
        if config.schedule.kind.one_process
        else RemoteEvaluator(config, run_dir, side.learners, supervisor)
    )
    return System(
        config, run_dir, device, side.boards[0], telemetry, loggers, stop, side.learners, side.collectors, evaluator,
        supervisor, pool, side.trace,
    )  # fmt: skip


def begin_with_dataset(plan: AgentPlan, loggers: Loggers) -> None:
    """Fill an agent's replay with the dataset that `replay.start_from` names.

    Raises:
        ConfigError: there is no such dataset, or it does not fit.
    """
    name, streams = plan.config.replay.start_from, plan.streams
    assert name is not None
    if wants_values(plan.config):
        raise ConfigError(
            f"replay.start_from={name} has no values that a collector acted by: set replay.initial_priority=max"
        )
    episodes, whole = read_dataset(name, plan.spec, streams.rows)
    copy = ReplayCopy(plan.folder.parent / "replay", plan.storage, streams, plan.board.cursor, plan.spec.stack - 1)
    rows = rows_of(episodes, plan.spec)
    if plan.config.env.clip_rewards:
        np.sign(rows["reward"], out=rows["reward"])
    filled = copy.fill(rows)
    steps = sum(len(episode.actions) for episode in episodes)
    part = "" if whole else ", the first ones, as more do not fit into replay.capacity_frames"
    loggers.event(
        f"the replay begins with {filled} rows of {name}: {len(episodes)} episodes of {steps} steps{part}",
        agent=plan.name,
    )


def control_board(num_workers: int) -> ControlBoard:
    """A control board with the command to run."""
    board = ControlBoard(num_workers)
    board.command[0] = RUN
    return board


def learners_of(place: Place, plans: Sequence[AgentPlan]) -> tuple[LocalLearners | RemoteLearners, ControlBoard]:
    """The agents' learners, in this process or others as `agents.learner` says, and the collectors' control board.

    Raises:
        ConfigError: `agents.learner=process` in a schedule that has rounds.
    """
    config, board = place.config, control_board(plans[0].streams.num_workers)
    frozen = [plan for plan in plans if plan.name in config.agents.frozen]
    apart = config.agents.learner == "process" and len(plans) > 1
    learners = [Learner(plan, place.device, plan in frozen) for plan in (frozen if apart else plans)]
    for plan in plans:
        if plan.name in config.agents.start_from:
            start_from(plan, learners, Path(config.agents.start_from[plan.name]))
    torch.manual_seed(seeds.of_updates(config.seed))
    learning = [learner for learner in learners if not learner.frozen]
    updating = (stacked if config.agents.learner == "stacked" else one_by_one)(learning)
    local = LocalLearners(plans, learners, updating, place.loggers.event)
    if not apart:
        return local, board
    if config.schedule.kind.rounds:
        raise ConfigError(
            f"agents.learner=process learns while others collect, which schedule={config.schedule.name} does not: set "
            "agents.learner=stacked or sequential"
        )
    return RemoteLearners(
        local,
        [
            LearnerProcess(
                plan, partial(start_learner, plan, board, place.device), place.supervisor, place.loggers.event
            )
            for plan in plans
            if plan not in frozen
        ],
    ), board


def collectors_of(place: Place, plans: Sequence[AgentPlan], board: ControlBoard, opponents: Seating) -> Collectors:
    """The collectors: processes, or virtual workers in this process."""
    config = place.config
    workers = [
        CollectorPlan(config, tuple(plans), worker, snapshot=snapshot_path(place.run_dir, worker), opponents=opponents)
        for worker in range(plans[0].streams.num_workers)
    ]
    if config.schedule.kind.collectors:
        if config.cluster.remote:
            return ClusterCollectors(config, workers, board, place.supervisor, place.loggers)
        return CollectorWorkers(config, workers, board, place.supervisor, place.loggers.progress)
    return LocalCollectors(workers, board, place.loggers.event)


def local_agents(place: Place, plans: Sequence[AgentPlan]) -> Side:
    """The parts of `shared_gradient`: local agents, which play and learn in a process each, and the shared agent."""
    config, schedule, device = place.config, place.config.schedule, place.device
    updater = Learner(plans[0], torch.device("cpu")).updater
    agent: SharedAgent | DeviceAgent
    if schedule.applier == "device" or (schedule.applier == "auto" and device.type == "cuda"):
        agent = DeviceAgent(updater, len(plans), device, schedule.application)
    else:
        agent = SharedAgent(updater, len(plans), place.scratch / "shared_agent", schedule.application)
    boards = [control_board(1) for _ in plans]
    players = LocalAgents(
        [
            CollectorPlan(config, (plan,), 0, first_env=number * plan.streams.envs_per_worker)
            for number, plan in enumerate(plans)
        ]
    )
    learners = SharedLearners(
        config, plans, agent, updater, boards, RunFolder(place.run_dir).checkpoints,
        [
            LearnerProcess(
                plan, partial(start_local_agent, players, plans, number, boards[number], agent), place.supervisor,
                place.loggers.event, "agent", lambda _: " with the shared weights", plays=True,
                before=partial(players.start_again, number),
            )
            for number, plan in enumerate(plans)
        ],
    )  # fmt: skip
    return Side(learners, players, boards, NoTrace())


def start_learner(
    plan: AgentPlan, board: ControlBoard, device: torch.device, pipe: Connection, restarts: int
) -> BaseProcess:
    """Start the learner process of an agent, on the CPU, or on a GPU: agents are given the visible GPUs in turn."""
    where = f"cuda:{plan.number % torch.cuda.device_count()}" if device.type == "cuda" else str(device)
    return spawn(learning.run, (without_scheme(plan), board, where, pipe), f"learner of {plan.name}")


def start_local_agent(
    players: LocalAgents, plans: Sequence[AgentPlan], number: int, board: ControlBoard,
    shared: SharedAgent | DeviceAgent, pipe: Connection, restarts: int,
) -> BaseProcess:  # fmt: skip
    """Start the process of a local agent; a restarted one does not continue from a checkpoint."""
    player, plan = players.plans[number], plans[number]
    resumed = player.config.resume is not None and not restarts
    sent = replace(player, agents=(without_scheme(plan),), exact=False)
    boards = [other.board for other in plans]
    return spawn(playing_agents.run, (sent, board, shared, boards, resumed, resumed and player.exact, pipe), plan.name)


def start_from(plan: AgentPlan, learners: Sequence[Learner], path: Path) -> None:
    """Let an agent begin with the policy of another run.

    An agent that learns in another process finds it on its board, as after a restart.

    Raises:
        ConfigError: it cannot be read, or has another network.
    """
    flat = checkpoint.named_weights(path, plan.weights.numel, f"agents.start_from.{plan.name}")
    here = [learner for learner in learners if learner.plan is plan]
    for learner in here:
        learner.begin_with(flat)
    if not here:
        plan.weights.send(TensorDict({"weights": flat}, []))


def choose_device(name: str) -> torch.device:
    """`auto` is the first CUDA device, or the CPU.

    Raises:
        ConfigError: a device that is not there.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(
            f"learner.device={name} is not there: torch sees {torch.cuda.device_count()} CUDA devices; "
            "use learner.device=cpu or auto"
        )
    return device
