"""Builds a run's parts, and starts and stops its processes: the only place that does.

A reader's next file is ``train.py``, the loop that these parts run in.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import TensorDictReplayBuffer

import envs
from envs import EnvSpec
from trainer import checkpoint
from trainer.agents import AgentPlan, make_policy, model_id, plan_agents, plan_local_agents, update_key
from trainer.boards import RUN, STOP, ControlBoard
from trainer.collectors import CollectorWorkers, close_streams
from trainer.config import Config, ConfigError
from trainer.evaluators import LocalEvaluator, RemoteEvaluator
from trainer.learners import LearnerProcess
from trainer.learning import Learner, NotFinite, flat_weights
from trainer.loggers import Loggers
from trainer.pool import OpponentPool, open_pool
from trainer.processes import collector as collecting
from trainer.processes import evaluator as evaluating
from trainer.processes import learner as learning
from trainer.processes import local_agent as local_agents
from trainer.processes.learner import Agent, StackedAgents
from trainer.replay import worker_rows
from trainer.run_folder import remove_partial
from trainer.shared import SharedAgent
from trainer.shared_device import DeviceAgent
from trainer.signals import STOPPING, StopSignals
from trainer.telemetry import Telemetry, joined
from trainer.trace import NoTrace, Trace, merge, open_trace, remove_parts

SUPERVISE_EVERY_S = 0.1
SNAPSHOT_S = 5.0  # that workers may take to write down where they stand
POLL_S = 2e-4


@dataclass
class Resumed:
    """What a run takes over from the one that it goes on with.

    Args:
        starts: of each worker, how many processes it had.
        exact: the workers go on in the middle of their episodes.
        run: what the training loop had kept of itself.
    """

    starts: list[int] = field(default_factory=list)
    exact: bool = False
    run: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """What the schedule ``shared_gradient`` has instead of learners and collectors of its own.

    Args:
        agent: weights and optimiser, in shared memory or on the device.
        learner: of the same network, to look at the weights with.
        controls: control board of each local agent.
    """

    agent: SharedAgent | DeviceAgent
    learner: Learner
    controls: list[ControlBoard]


@dataclass
class System:
    """A run's parts, from :func:`build`. Whoever holds it calls :meth:`close`.

    Args:
        config: the run.
        run_dir: its folder.
        plans: its agents.
        device: of the updates.
        board: orders to the collectors.
        telemetry: of the agents, in their order.
        loggers: where rows go.
        stop: signals.
        agents: those that learn in this process.
        workers: what makes their updates: an agent itself, or a stack of several.
        learners: processes of those that learn in their own.
        shared: what local agents apply their gradients to, in the schedule ``shared_gradient``.
    """

    config: Config
    run_dir: Path
    plans: list[AgentPlan]
    device: torch.device
    board: ControlBoard
    telemetry: list[Telemetry]
    loggers: Loggers
    stop: StopSignals
    agents: list[Agent]
    workers: list[Agent | StackedAgents]
    learners: list[LearnerProcess] = field(default_factory=list)
    shared: Shared | None = None
    pool: OpponentPool | None = None  # of opponents, in self-play
    collectors: CollectorWorkers | None = None  # None in the schedule `sequential`
    rollouts: list[collecting.Rollout] = field(default_factory=list)  # virtual workers of `sequential`
    evaluator: RemoteEvaluator | LocalEvaluator | None = None
    resumed: Resumed = field(default_factory=Resumed)
    checkpoint_s: float = math.nan  # that the last checkpoint took
    checkpoint_bytes: int = 0  # of the replay, that it wrote
    trace: Trace | NoTrace = field(default_factory=NoTrace)  # of this process

    def work(self) -> bool:
        """A chunk of updates of whoever is due, in this process; whether there was any."""
        worked = False
        for worker in self.workers:
            worked = worker.work() or worked
        return worked

    def total_frames(self) -> int:
        """Transitions of the agent that has most; of all local agents together."""
        return (max if self.shared is None else sum)(plan.board.total_frames() for plan in self.plans)

    def players(self) -> list[tuple[Config, EnvSpec]]:
        """What a player needs to know of each agent of the world."""
        return [(plan.config, plan.spec) for plan in (self.plans if self.shared is None else self.plans[:1])]

    def finished(self) -> bool:
        """Whether the budget is collected and every update that it is owed is made."""
        if self.total_frames() < self.config.budget_frames:
            return False
        return all(
            agent.frozen or agent.limiter.settled(agent.board.total_frames(), agent.board.total_episodes())
            for agent in self.agents
        ) and (self.config.schedule.updates_per_round is not None or all(own.settled() for own in self.learners))

    def publish(self) -> None:
        """Hand the collectors a new version of all weights; waits for none of them."""
        for agent in self.agents:
            agent.publish()

    def flat(self) -> Tensor:
        """All agents' weights of now, float32 [sum of numel] on the CPU, one agent behind the other."""
        if self.shared is not None:
            self.shared.agent.pull(None, self.shared.learner.trained)
            return flat_weights(self.shared.learner)
        here = {agent.name: agent.flat() for agent in self.agents}
        return torch.cat([here[plan.name] if plan.name in here else published(plan) for plan in self.plans])

    def row(self, failed: bool = False) -> dict[str, Any]:
        """What is known of the run now, for the loggers; waits for the device.

        With several agents each one's figures stand under ``<agent>/``, and their means under the plain keys.

        Args:
            failed: leave out how learning goes, for a loss was not finite.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite. One of several acts on by its last good
                weights instead, learns no more, and is named.
        """
        figures = {agent.name: self._figures(agent) for agent in self.agents if not failed and not agent.frozen}
        figures |= {learner.plan.name: learner.figures for learner in self.learners}
        if self.shared is not None:
            figures = {plan.name: figures[plan.name] | self.shared.agent.figures(plan.number) for plan in self.plans}
        rows = [
            telemetry.row(int(plan.board.updates[0]), figures.get(plan.name, {}))
            for plan, telemetry in zip(self.plans, self.telemetry, strict=True)
        ]
        row = rows[0] if len(rows) == 1 else joined([plan.name for plan in self.plans], rows)
        if self.shared is not None:
            row |= {
                "frames": self.total_frames(),
                "frames_per_s": sum(own["frames_per_s"] for own in rows),
                "eta_s": self._eta_s(sum(own["frames_per_s"] for own in rows)),
                **self.shared.agent.totals(),
            }
        if self.pool is not None:
            row |= self.pool.figures()
        return row | {
            "worker_restarts": 0 if self.collectors is None else self.collectors.restarts,
            "checkpoint_s": self.checkpoint_s,
            "checkpoint_replay_mb": self.checkpoint_bytes / 2**20,
        }

    def _eta_s(self, frames_per_s: float) -> float:
        left = max(0, self.config.budget_frames - self.total_frames())
        return left / frames_per_s if frames_per_s > 0 else math.nan

    def _figures(self, agent: Agent) -> dict[str, float]:
        try:
            return agent.figures()
        except NotFinite as error:
            if len(self.plans) == 1:
                raise
            agent.frozen = True
            agent.open_limit()
            self.loggers.event(f"{agent.name} learns no more: {error}", role="learner", agent=agent.name)
            return {}

    def check(self) -> None:
        """Start anew whatever died; cheap enough for every wait.

        Raises:
            RunFailed: something died too often.
        """
        if self.collectors is not None:
            self.collectors.check()
        if self.evaluator is not None:
            self.evaluator.check()
        for learner in self.learners:
            learner.check()

    def save(self, frames: int, whole: bool, more: dict[str, Any]) -> None:
        """A checkpoint of every agent after ``frames`` frames, and the policy to play by; written aside and renamed.

        Args:
            frames: of the run.
            whole: no round is going on: where the schedule has rounds, a run goes on from here as if never stopped.
            more: what the training loop keeps of itself.

        Raises:
            OSError: the disk refuses; what was there before is still there.
        """
        start = time.monotonic()
        if whole and self.config.schedule.name != "async":
            self._snapshots(frames)
        for agent in self.agents:  # all of them, or the frozen ones where others learn in their own processes
            agent.save(frames)
        saves = [learner.saves + learner.restarts for learner in self.learners]
        for learner in self.learners:
            learner.save(frames)
        if self.shared is not None:
            self._save_shared(frames, saves)
        if self.pool is not None:
            self.pool.save(self.run_dir / "pool")
        run = {**more, "starts": self._starts(), "torch_rng": torch.get_rng_state()}
        if self.pool is not None:
            run["pool"] = self.pool.state_dict()
        run["episodes"] = {
            plan.name: own.episodes.state_dict() for plan, own in zip(self.plans, self.telemetry, strict=True)
        }
        path = self.run_dir / "checkpoints" / "last_policy.pt"
        evaluating.save_policy(path, self.flat(), frames, float("nan"), run=run)
        if self.pool is not None:
            self.pool.forget(self.run_dir / "pool")
        self.checkpoint_s = time.monotonic() - start
        self.checkpoint_bytes = sum(agent.copy.bytes_written for agent in self.agents)

    def _save_shared(self, frames: int, saves: list[int]) -> None:
        """The shared agent, while all local agents wait between two rounds; one that died is not waited for."""
        assert self.shared is not None
        deadline, whole = time.monotonic() + SNAPSHOT_S, False
        while time.monotonic() < deadline and not whole and all(own.alive for own in self.learners):
            for learner in self.learners:
                learner.read()
            whole = all(own.saves + own.restarts > before for own, before in zip(self.learners, saves, strict=True))
            if not self.shared.agent.serve():  # a round that is to end first may wait for it
                time.sleep(POLL_S)
        state = {"shared": self.shared.agent.state_dict(), "frames": frames, "whole": whole}
        try:
            checkpoint.save(self.run_dir / "checkpoints", state, frames, self.config.checkpoint.keep_last)
        finally:
            for learner in self.learners:
                learner.go_on()

    def _starts(self) -> list[int]:
        """How often each worker was started until now, in this run and in those that it resumes."""
        if self.shared is not None:
            known = [*self.resumed.starts, *[0] * len(self.plans)]
            return [start + own.restarts + 1 for start, own in zip(known, self.learners, strict=False)]
        plans = self._collector_plans() if self.collectors is None else self.collectors.plans
        return [plan.start + 1 for plan in plans]

    def _snapshots(self, number: int) -> None:
        """Every worker's state, for the checkpoint of that number; they wait for their next round."""
        for rollout in self.rollouts:
            rollout.save_snapshot(number)
        board, deadline = self.board, time.monotonic() + SNAPSHOT_S
        if self.collectors is None:
            return
        board.snapshot[0] = number
        while (board.snapshots_done < number).any() and time.monotonic() < deadline:
            if any(process.exitcode is not None for process in self.collectors.processes):
                return  # check() says so; a checkpoint without its snapshots is a whole one all the same
            time.sleep(POLL_S)

    def start(self) -> None:
        """Start every process; in the schedule ``sequential``, build the virtual workers instead.

        Raises:
            RunFailed: a process could not be started; :meth:`close` stops the others.
        """
        config, plans = self.config, self._collector_plans()
        for worker in self.workers:
            example = (worker if isinstance(worker, Agent) else worker.agents[0]).replay.example()
            (worker.learner if isinstance(worker, Agent) else worker.stack).prepare(example)
        if self.pool is not None:
            self.publish()  # the opponents need weights before the first step
        if config.schedule.name == "sequential":
            self.evaluator = LocalEvaluator(config, self.players(), self.run_dir, self.flat)
            self.rollouts = [_virtual_worker(plan, self.board) for plan in plans]
        else:
            use_fork_server()
            self._start_evaluator()
            for learner in self.learners:
                learner.start()
        if config.schedule.name in ("async", "sync"):
            self.collectors = CollectorWorkers(config, plans, self.board, self._create, self.loggers)
            self.collectors.start()
            for agent in self.agents:
                agent.publish_ = partial(self.collectors.first.update_policy_weights_, model_id=model_id(agent.plan))
        torch.set_num_threads(config.learner.num_threads)  # TorchRL changed it (torchrl.md, trap 18)
        if "torch_rng" in self.resumed.run:  # recording the updates has drawn from it
            torch.set_rng_state(self.resumed.run["torch_rng"])

    def _collector_plans(self) -> list[collecting.CollectorPlan]:
        agents = tuple(self.plans)
        number = agents[0].streams.num_workers
        starts = (self.resumed.starts + [max(self.resumed.starts, default=0)] * number)[:number]
        return [
            collecting.CollectorPlan(
                self.config,
                agents,
                worker,
                starts[worker],
                snapshot_path(self.run_dir, worker),
                self.resumed.exact,
                pool=self.pool,
            )
            for worker in range(number)
        ]

    def _start_evaluator(self) -> None:
        config, weights = self.config, self.flat().share_memory_()

        def start(pipe: Connection) -> BaseProcess:
            process = mp.get_context().Process(
                target=evaluating.run,
                args=(config, self.players(), self.run_dir, weights, pipe),
                name="evaluator",
                daemon=True,
            )
            process.start()
            return process

        self.evaluator = RemoteEvaluator(config, start, weights, self.flat, self.loggers)

    def _create(self, plans: list[collecting.CollectorPlan]) -> tuple[MultiAsyncCollector, Callable[[], None]]:
        # Made in two steps, so that close() finds the workers also when the constructor fails, or is interrupted as it
        # waits for a worker whose environment is hung.
        collector, arguments = MultiAsyncCollector.__new__(MultiAsyncCollector), collector_arguments(plans, self.board)

        def make() -> None:
            collector.__init__(**arguments)
            collector.start()

        return collector, make

    def close(self) -> None:
        """Stop every process. Safe to call twice, and after any failure."""
        for board in [self.board] if self.shared is None else self.shared.controls:
            board.command[0] = STOP
        if self.shared is not None:
            self.shared.agent.close()  # no local agent waits for it any more
        if self.evaluator is not None:
            self.evaluator.close()
        for learner in self.learners:
            learner.close()
        if self.collectors is not None:
            self.collectors.close()
        for rollout in self.rollouts:
            rollout.world.close()
            rollout.trace.save()
        self.evaluator, self.collectors, self.rollouts = None, None, []
        remove_partial(self.run_dir)  # the evaluator may have been saving its best policy
        try:
            self.trace.save()
            merge(self.run_dir)
        except OSError as error:
            self.loggers.event(f"warning: the trace could not be written ({error}): make room in {self.run_dir}")
        torch.set_num_threads(self.config.learner.num_threads)


def snapshot_path(run_dir: Path, worker: int) -> Path:
    """Where a worker's state is kept for an exact resume."""
    return run_dir / "checkpoints" / f"collector_{worker}.pt"


def published(plan: AgentPlan) -> Tensor:
    """The newest weights on an agent's board, float32 [numel]."""
    flat = torch.zeros(plan.weights.numel)
    plan.weights.reader().pull(flat)
    return flat


def build(
    config: Config, run_dir: Path, world: Sequence[tuple[str, EnvSpec]], device: torch.device, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """Build every part that lives in this process; :meth:`System.start` starts the others.

    Raises:
        ConfigError: an agent's own configuration cannot be.
        EnvError: a scripted player is asked for, and the game has none.
    """
    if config.schedule.name == "shared_gradient":
        return build_shared(config, run_dir, world, device, scratch, loggers, stop)
    plans = plan_agents(config, world, run_dir, scratch)
    board = ControlBoard(plans[0].streams.num_workers)
    board.command[0] = RUN
    here = config.agents.learner != "process" or len(plans) == 1
    frozen = {plan.name for plan in plans if plan.name in config.agents.frozen}
    own = [plan for plan in plans if here or plan.name in frozen]
    for name in config.agents.start_from:
        if name not in [plan.name for plan in plans]:
            raise ConfigError(
                f"agents.start_from.{name} names no agent: there is {', '.join(plan.name for plan in plans)}"
            )
    agents = [Agent(plan, device, plan.name in frozen) for plan in own]
    for agent in agents:
        if agent.name in config.agents.start_from:
            start_from(agent, Path(config.agents.start_from[agent.name]))
    torch.manual_seed(config.seed + 1)
    workers: list[Agent | StackedAgents] = [agent for agent in agents if not agent.frozen]
    if config.agents.learner == "stacked":
        workers = stacked([agent for agent in agents if not agent.frozen])
    learners = [
        LearnerProcess(plan, partial(start_learner, plan, board, device), loggers, config.agents.hang_seconds)
        for plan in plans
        if plan not in own
    ]
    if learners and config.schedule.name != "async":
        raise ConfigError(
            f"agents.learner=process learns while others collect, which schedule={config.schedule.name} does not: set "
            "agents.learner=stacked or sequential"
        )
    telemetry = [Telemetry(plan.config, board, plan.board, plan.streams.rows) for plan in plans]
    remove_parts(run_dir)
    trace = open_trace(config, "learner" if workers else "main")
    for worker in workers:
        learning.follow(trace, worker)
    pool = None
    if envs.against_opponents(config.env):
        pool = open_pool(config, run_dir, plans[0].weights.numel, plans[0].streams.num_workers)
    return System(
        config, run_dir, plans, device, board, telemetry, loggers, stop, agents, workers, learners, pool=pool,
        trace=trace,
    )  # fmt: skip


def build_shared(
    config: Config, run_dir: Path, world: Sequence[tuple[str, EnvSpec]], device: torch.device, scratch: Path,
    loggers: Loggers, stop: StopSignals,
) -> System:  # fmt: skip
    """As :func:`build` for the schedule ``shared_gradient``, whose local agents live in processes of their own.

    Raises:
        ConfigError: the world has several agents.
    """
    plans, schedule = plan_local_agents(config, world, run_dir, scratch), config.schedule
    learner = Agent(plans[0], torch.device("cpu")).learner
    agent: SharedAgent | DeviceAgent
    if schedule.applier == "device" or (schedule.applier == "auto" and device.type == "cuda"):
        agent = DeviceAgent(learner, len(plans), device, schedule.application)
    else:
        agent = SharedAgent(learner, len(plans), scratch / "shared_agent", schedule.application)
    controls = [ControlBoard(1) for _ in plans]
    for board in controls:
        board.command[0] = RUN
    remove_parts(run_dir)
    telemetry = [
        Telemetry(config, board, plan.board, plan.streams.rows) for plan, board in zip(plans, controls, strict=True)
    ]
    system = System(
        config, run_dir, plans, device, controls[0], telemetry, loggers, stop, agents=[], workers=[],
        shared=Shared(agent, learner, controls),
    )  # fmt: skip
    system.learners = [
        LearnerProcess(
            plan, partial(start_local_agent, system, plan), loggers, config.agents.hang_seconds, "agent",
            " with the shared weights",
        )
        for plan in plans
    ]  # fmt: skip
    return system


def start_local_agent(system: System, plan: AgentPlan, pipe: Connection) -> BaseProcess:
    """A local agent's process; one that takes a dead one's place ends its episodes first."""
    assert system.shared is not None
    number, restarts = plan.number, system.learners[plan.number].restarts
    if restarts:
        close_streams([plan], 0)
    started = [*system.resumed.starts, *[0] * len(system.plans)][number] + restarts
    envs_each = plan.streams.envs_per_worker
    own = collecting.CollectorPlan(system.config, (without_scheme(plan),), 0, started, first_env=number * envs_each)
    resumed = system.config.resume is not None and not restarts
    boards = [other.board for other in system.plans]
    control = system.shared.controls[number]
    process = mp.get_context().Process(
        target=local_agents.run,
        args=(own, control, system.shared.agent, boards, resumed, resumed and system.resumed.exact, pipe),
        name=plan.name,
        daemon=True,
    )
    process.start()
    return process


def stacked(agents: Sequence[Agent]) -> list[Agent | StackedAgents]:
    """Agents that are alike in one stack, the others by themselves."""
    groups: dict[tuple, list[Agent]] = {}
    for agent in agents:
        groups.setdefault(update_key(agent.plan), []).append(agent)
    return [StackedAgents(group) if len(group) > 1 else group[0] for group in groups.values()]


def start_learner(plan: AgentPlan, board: ControlBoard, device: torch.device, pipe: Connection) -> BaseProcess:
    """An agent's own learner process, on the visible GPUs in turn, or on the CPU."""
    where = f"cuda:{plan.number % torch.cuda.device_count()}" if device.type == "cuda" else str(device)
    process = mp.get_context().Process(
        target=learning.run,
        args=(without_scheme(plan), board, where, pipe),
        name=f"learner of {plan.name}",
        daemon=True,
    )
    process.start()
    return process


def start_from(agent: Agent, path: Path) -> None:
    """Begin with the policy of another run.

    Raises:
        ConfigError: it cannot be read, or has another network.
    """
    flat = checkpoint.named_weights(path, agent.plan.weights.numel, f"agents.start_from.{agent.name}")
    agent.learner.load_flat(flat)


def _virtual_worker(plan: collecting.CollectorPlan, board: ControlBoard) -> collecting.Rollout:
    rows = [worker_rows(agent.storage, agent.streams, plan.worker) for agent in plan.agents]
    world = envs.make_world(plan.config.env, plan.agents[0].streams.envs_per_worker)
    with torch.random.fork_rng():
        policies = [make_policy(agent.config, agent.spec) for agent in plan.agents]
    return collecting.Rollout(plan, board, rows, world, policies)


def use_fork_server() -> None:
    """Children come from a server that has imported torch once; one thread each unless they say otherwise."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    mp.set_start_method("forkserver", force=True)  # importing torchrl has set spawn
    multiprocessing.set_forkserver_preload(
        ["trainer.forkserver", "trainer.processes.local_agent", "trainer.processes.evaluator"]
    )
    # Blocked from birth, for Ctrl-C and what a batch system sends go to them too: they end when the main process says.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def collector_arguments(plans: list[collecting.CollectorPlan], board: ControlBoard) -> dict[str, Any]:
    """What TorchRL's collector is made of; its own replay and policy are the first agent's."""
    agents = plans[0].agents
    first = agents[0]
    policy_factory = partial(make_policy, first.config, first.spec)
    with torch.random.fork_rng(devices=[]):
        policy = (
            policy_factory()
        )  # not the learner's: TorchRL moves what it gets into shared memory (torchrl.md, trap 5)
    buffer = TensorDictReplayBuffer(storage=first.storage, batch_size=first.config.learner.batch_size, shared=True)
    own = [dataclasses.replace(plan, agents=tuple(without_scheme(agent) for agent in agents)) for plan in plans]
    return {
        "create_env_fn": [collecting.make_environment] * len(plans),
        "create_env_kwargs": [{"plan": plan, "board": board} for plan in own],
        "policy": policy,
        "policy_factory": policy_factory,
        "frames_per_batch": first.config.collector.envs_per_worker,
        "total_frames": -1,
        "replay_buffer": buffer,
        "extend_buffer": False,
        "collector_class": collecting.StreamCollector,
        "weight_sync_schemes": {model_id(agent): agent.weights for agent in agents},
    }


def without_scheme(plan: AgentPlan) -> AgentPlan:
    """The plan with a weights board of its own on the same memory: TorchRL ties a scheme to one collector."""
    return dataclasses.replace(plan, weights=plan.weights.another())


def choose_device(name: str) -> torch.device:
    """``auto`` is the first CUDA device, or the CPU.

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
