"""Builds the parts of a run that live in the main process; `trainer.training.system` starts the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from trainer.algorithms import check_actions
from trainer.config.consistency import check_game
from trainer.config.fields import ConfigError
from trainer.config.sections import Config
from trainer.envs import EnvError, EnvSpec
from trainer.host import seeds
from trainer.host.signals import StopSignals
from trainer.memory.boards import RUN, ControlBoard
from trainer.roles import task as looking
from trainer.roles.agents import plan_agents, plan_local_agents, update_key
from trainer.roles.learner import Learner, LearnerStack
from trainer.run_folder import checkpoint
from trainer.selfplay.pool import open_pool
from trainer.shared_gradient.shared import SharedAgent
from trainer.shared_gradient.shared_device import DeviceAgent
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.measuring import Telemetry
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.trace import open_trace, remove_parts
from trainer.training.learners import LearnerProcess
from trainer.training.parts import Shared
from trainer.training.system import System, beside, start_learner, start_local_agent
from trainer.training.tasks import Task, TaskFailed

SAY_EVERY_S = 5.0  # between two lines on how long the environment takes to be made


def describe(config: Config) -> list[tuple[str, EnvSpec]]:
    """Agents of the user's environment, and what each of them sees and does; nothing of it runs in this process.

    Raises:
        ConfigError: the configuration cannot be for what it is.
        EnvError: it cannot be made or trained on, or its process died or hung as it was looked at.
    """
    said = EverySeconds(SAY_EVERY_S)

    def say(text: str) -> None:
        if config.logger.terminal != "none" and said.crossed():
            print(text, flush=True)

    try:
        world = beside(
            config, Task("first look at the environment", "describe", partial(looking.describe, config), say)
        )
    except TaskFailed as error:
        if error.kind == "EnvError":
            raise EnvError(error.cause) from error
        raise EnvError(f"{config.env.id}: {error}; make one by itself in Python to see why") from error
    for _, spec in world:
        check_actions(spec)
    if world[0][1].against_opponents:
        check_game(config)
    return world


def build(
    config: Config, run_dir: Path, world: Sequence[tuple[str, EnvSpec]], device: torch.device, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """Build every part that lives in this process; :meth:`System.start` starts the others.

    Raises:
        ConfigError: an agent's own configuration cannot be.
    """
    if config.schedule.kind.local_agents:
        return build_shared(config, run_dir, world, device, scratch, loggers, stop)
    plans = plan_agents(config, world, run_dir, scratch)
    board = ControlBoard(plans[0].streams.num_workers)
    board.command[0] = RUN
    here = config.agents.learner != "process" or len(plans) == 1
    frozen = {plan.name for plan in plans if plan.name in config.agents.frozen}
    own = [plan for plan in plans if here or plan.name in frozen]
    agents = [Learner(plan, device, plan.name in frozen) for plan in own]
    for agent in agents:
        if agent.name in config.agents.start_from:
            start_from(agent, Path(config.agents.start_from[agent.name]))
    torch.manual_seed(seeds.of_updates(config.seed))
    workers: list[Learner | LearnerStack] = [agent for agent in agents if not agent.frozen]
    if config.agents.learner == "stacked":
        workers = stacked([agent for agent in agents if not agent.frozen])
    learners = [
        LearnerProcess(plan, partial(start_learner, plan, board, device), loggers, config.agents.hang_seconds)
        for plan in plans
        if plan not in own
    ]
    if learners and config.schedule.kind.rounds:
        raise ConfigError(
            f"agents.learner=process learns while others collect, which schedule={config.schedule.name} does not: set "
            "agents.learner=stacked or sequential"
        )
    telemetry = [Telemetry(plan.config, board, plan.board, plan.streams.rows) for plan in plans]
    remove_parts(run_dir)
    trace = open_trace(config, "learner" if workers else "main")
    for worker in workers:
        worker.follow(trace)
    pool = None
    if world[0][1].against_opponents:
        pool = open_pool(config, run_dir, plans[0].weights.numel, plans[0].streams.num_workers)
    return System(
        config, run_dir, plans, device, board, telemetry, loggers, stop, agents, workers, learners, pool=pool,
        trace=trace,
    )  # fmt: skip


def build_shared(
    config: Config, run_dir: Path, world: Sequence[tuple[str, EnvSpec]], device: torch.device, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """As :func:`build` for the schedule `shared_gradient`, whose local agents live in processes of their own.

    Raises:
        ConfigError: the world has several agents.
    """
    plans, schedule = plan_local_agents(config, world, run_dir, scratch), config.schedule
    updater = Learner(plans[0], torch.device("cpu")).updater
    agent: SharedAgent | DeviceAgent
    if schedule.applier == "device" or (schedule.applier == "auto" and device.type == "cuda"):
        agent = DeviceAgent(updater, len(plans), device, schedule.application)
    else:
        agent = SharedAgent(updater, len(plans), scratch / "shared_agent", schedule.application)
    controls = [ControlBoard(1) for _ in plans]
    for board in controls:
        board.command[0] = RUN
    remove_parts(run_dir)
    telemetry = [
        Telemetry(config, board, plan.board, plan.streams.rows) for plan, board in zip(plans, controls, strict=True)
    ]
    system = System(
        config, run_dir, plans, device, controls[0], telemetry, loggers, stop, agents=[], workers=[],
        shared=Shared(agent, updater, controls),
    )  # fmt: skip
    system.learners = [
        LearnerProcess(
            plan, partial(start_local_agent, system, plan), loggers, config.agents.hang_seconds, "agent",
            lambda _: " with the shared weights", plays=True,
        )
        for plan in plans
    ]  # fmt: skip
    return system


def stacked(agents: Sequence[Learner]) -> list[Learner | LearnerStack]:
    """Agents that are alike in one stack, the others by themselves."""
    groups: dict[tuple, list[Learner]] = {}
    for agent in agents:
        groups.setdefault(update_key(agent.plan), []).append(agent)
    return [LearnerStack(group) if len(group) > 1 else group[0] for group in groups.values()]


def start_from(agent: Learner, path: Path) -> None:
    """Begin with the policy of another run.

    Raises:
        ConfigError: it cannot be read, or has another network.
    """
    flat = checkpoint.named_weights(path, agent.plan.weights.numel, f"agents.start_from.{agent.name}")
    agent.updater.load_flat(flat)


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
