"""A run's parts; starts and stops its processes: the only place that does.

``building.py`` builds the parts; a reader's next file is ``train.py``, the loop that they run in.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
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

from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host.errors import RunFailed
from trainer.host.signals import StopSignals
from trainer.learning.determinism import set_generator_states
from trainer.learning.update import NotFinite, flat_weights
from trainer.memory.boards import STOP, ControlBoard
from trainer.reading import ReadError
from trainer.roles import collector as collecting
from trainer.roles import evaluator as evaluating
from trainer.roles import learner as learning
from trainer.roles import task as tasks
from trainer.roles.agents import AgentPlan, published, without_scheme
from trainer.roles.learner import IDLE_S, Learner, LearnerStack
from trainer.roles.shared_memory import SharedMemoryLink
from trainer.run_folder import manifest
from trainer.selfplay.pool import OpponentPool
from trainer.shared_gradient import local_agent as local_agents
from trainer.telemetry import output
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.measuring import Telemetry
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.rows import Row, joined
from trainer.telemetry.trace import NoTrace, Trace, all_of, merge
from trainer.training.collectors import CollectorWorkers, close_streams, collector_arguments
from trainer.training.evaluators import LocalEvaluator, RemoteEvaluator
from trainer.training.learners import LearnerProcess, close_all
from trainer.training.parts import Resumed, Shared
from trainer.training.server import ForkServer, ensure_running
from trainer.training.tasks import Task, carry_out

SUPERVISE_EVERY_S = 0.1
OUTPUT_EVERY_S = 1.0


@dataclass
class System:
    """A run's parts, from :func:`trainer.training.building.build`. Whoever holds it calls :meth:`close`.

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
    agents: list[Learner]
    workers: list[Learner | LearnerStack]
    learners: list[LearnerProcess] = field(default_factory=list)
    shared: Shared | None = None
    pool: OpponentPool | None = None  # of opponents, in self-play
    server: ForkServer | None = None
    collectors: CollectorWorkers | None = None  # None in the schedule `sequential`
    rollouts: list[collecting.Rollout] = field(default_factory=list)  # virtual workers of `sequential`
    evaluator: RemoteEvaluator | LocalEvaluator | None = None
    resumed: Resumed = field(default_factory=Resumed)
    last_row: Row = field(default_factory=dict)  # of training, once that has ended
    checkpoint_s: float = math.nan  # that the last checkpoint took
    checkpoint_bytes: int = 0  # of the replay, that it wrote
    trace: Trace | NoTrace = field(default_factory=NoTrace)  # of this process
    gone: Callable[[], str] = field(default=lambda: "")  # see `run_folder.watched`
    look_at_output: EverySeconds = field(default_factory=lambda: EverySeconds(OUTPUT_EVERY_S))
    rebalance_every: EverySeconds = field(default_factory=lambda: EverySeconds(SUPERVISE_EVERY_S))
    supervise_every: EverySeconds = field(default_factory=lambda: EverySeconds(SUPERVISE_EVERY_S))
    _printing: set[str] = field(default_factory=set)  # processes of which that was said

    def open_limits(self) -> None:
        """Let the collectors go as far as every agent's limiter allows."""
        for agent in self.agents:
            agent.open_limit()

    def work(self) -> bool:
        """A chunk of updates of whoever is due, in this process; whether there was any."""
        if self.rebalance_every.crossed():  # however seldom anything is logged
            self._rebalance()
        if self.shared is not None:
            return self.shared.agent.serve()
        worked = False
        for worker in self.workers:
            worked = worker.work() or worked
        return worked

    def idle(self) -> None:
        """Wait a moment for something to be due."""
        self.sleep(IDLE_S)
        for agent in self.agents:
            agent.board.learner_waited_s[0] += IDLE_S

    def _rebalance(self) -> None:
        if self.pool is not None:
            self.pool.rebalance(self.total_frames() / self.config.budget_frames)

    def begin_round(self) -> None:
        """Fix what a round depends on: exploration, and by results of whole rounds whom is played against."""
        self._rebalance()
        for agent in self.agents:
            agent.board.schedule_frames[0] = agent.board.total_frames()  # exploration depends on nobody's speed

    def collect_round(self) -> None:
        """Let every worker collect one round, and wait for it."""
        board = self.board
        board.round[0] += 1
        for rollout in self.rollouts:
            rollout.collect_round()
        while self.collectors is not None and (board.rounds_done < board.round[0]).any():
            self.sleep(IDLE_S)  # a signal that waits for long is raised in it
            if self.supervise_every.crossed():
                self.check()

    def round_updates(self) -> Iterator[None]:
        """Make all updates that a round owes, a chunk between two values; what an agent is owed depends on nobody."""
        for worker in self.workers:
            yield from round_updates(worker, self.config.schedule.updates_per_round)

    def __post_init__(self) -> None:
        self.sleep = self.trace.waiting(time.sleep, "idle", all_of([agent.name for agent in self.agents]))

    def total_frames(self) -> int:
        """Transitions of the agent that has most; of all local agents together."""
        return (max if self.shared is None else sum)(plan.board.total_frames() for plan in self.plans)

    def players(self) -> list[tuple[Config, EnvSpec]]:
        """What a player needs to know of each agent of the world."""
        return [(plan.config, plan.spec) for plan in (self.plans if self.shared is None else self.plans[:1])]

    def collected(self) -> bool:
        """Whether the budget is collected."""
        return self.total_frames() >= self.config.budget_frames

    def finished(self) -> bool:
        """Whether it is, and every update made that it is owed."""
        if not self.collected():
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
            self.shared.agent.pull(None, self.shared.updater.trained)
            return flat_weights(self.shared.updater)
        here = {agent.name: agent.flat() for agent in self.agents}
        return torch.cat([here[plan.name] if plan.name in here else published(plan) for plan in self.plans])

    def row(self, failed: bool = False) -> Row:
        """What is known of the run now, for the loggers; waits for the device.

        With several agents each one's figures stand under ``<agent>/``, and their means under the plain keys.

        Args:
            failed: leave out how learning goes, for a loss was not finite.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite. One of several acts on by its last good
                weights instead, learns no more, and is named.
        """
        figures = {agent.name: self._figures(agent, failed) for agent in self.agents}
        figures |= {learner.plan.name: learner.figures for learner in self.learners}
        if self.shared is not None:
            figures = {plan.name: figures[plan.name] | self.shared.agent.figures(plan.number) for plan in self.plans}
        rows = [
            telemetry.row(int(plan.board.updates[0]), figures.get(plan.name, {}))
            for plan, telemetry in zip(self.plans, self.telemetry, strict=True)
        ]
        row = rows[0] if len(rows) == 1 else joined([plan.name for plan in self.plans], rows)
        if self.shared is not None:
            frames_per_s = sum(float(own["frames_per_s"]) for own in rows)
            row |= {
                "frames": self.total_frames(),
                "frames_per_s": frames_per_s,
                "eta_s": self._eta_s(frames_per_s),
                **self.shared.agent.totals(),
            }
        if self.pool is not None:
            row |= self.pool.figures()
        return row | {
            "worker_restarts": 0 if self.collectors is None else self.collectors.restarts,
            "checkpoint_s": self.checkpoint_s,
            "checkpoint_replay_mib": self.checkpoint_bytes / 2**20,
        }

    def _eta_s(self, frames_per_s: float) -> float:
        left = max(0, self.config.budget_frames - self.total_frames())
        return left / frames_per_s if frames_per_s > 0 else math.nan

    def _figures(self, agent: Learner, failed: bool) -> dict[str, float]:
        rate = {"learning_rate": agent.updater.learning_rate}
        if failed or agent.frozen:
            return rate
        try:
            return agent.metrics()
        except NotFinite as error:
            if len(self.plans) == 1:
                raise
            agent.frozen = True
            agent.open_limit()
            self.loggers.event(f"{agent.name} learns no more: {error}", role="learner", agent=agent.name)
            return rate

    def check(self) -> None:
        """Start anew whatever died; cheap enough for every wait.

        Raises:
            RunFailed: something died too often, or the run's folder is gone.
        """
        if words := self.gone():
            raise RunFailed(words)
        if self.look_at_output.crossed():
            for role, text in output.news(self.run_dir, self._printing):
                self.loggers.event(text, role=role)
        parts: list[CollectorWorkers | RemoteEvaluator | LocalEvaluator | LearnerProcess | None]
        parts = [self.collectors, self.evaluator, *self.learners]
        for part in parts:
            self.check_server()
            if part is not None:
                part.check()

    def check_server(self) -> None:
        """Start the fork server anew if it died: before anybody starts a process."""
        if self.server is not None:
            parts = [part for part in (self.collectors, self.evaluator) if part is not None]
            self.server.check([process for part in (*parts, *self.learners) for process in part.processes])

    def start(self) -> None:
        """Start every process; in the schedule ``sequential``, build the virtual workers instead.

        Raises:
            RunFailed: a process could not be started; :meth:`close` stops the others.
        """
        config, plans = self.config, self.collector_plans()
        for worker in self.workers:
            worker.prepare()
        if self.pool is not None:
            self.publish()  # the opponents need weights before the first step
        if config.schedule.kind.one_process:
            self.evaluator = LocalEvaluator(config, self.players(), self.run_dir, self.flat, self.total_frames)
            links = [SharedMemoryLink(self.board, plan.agents, plan.worker) for plan in plans]
            self.rollouts = list(map(collecting.virtual_worker, plans, links))
        else:
            use_fork_server()
            self.server = ForkServer(config.faults, self.loggers)
            self._start_evaluator()
            for learner in self.learners:
                learner.start()
        if config.schedule.kind.collectors:
            self.collectors = CollectorWorkers(config, plans, self.board, self._create, self.loggers)
            self.collectors.start()
        torch.set_num_threads(config.learner.num_threads)  # TorchRL changed it
        set_generator_states(self.resumed.run)  # recording the updates has drawn from them

    def collector_plans(self) -> list[collecting.CollectorPlan]:
        """Of the workers that are started first, in their order."""
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

        def start(pulse: Tensor, pipe: Connection) -> BaseProcess:
            self.check_server()
            process = mp.get_context().Process(
                target=evaluating.run,
                args=(config, self.players(), self.run_dir, weights, pulse, pipe),
                name="evaluator",
                daemon=True,
            )
            process.start()
            return process

        self.evaluator = RemoteEvaluator(config, start, weights, self.flat, self.total_frames, self.loggers)

    def _create(self, plans: list[collecting.CollectorPlan]) -> tuple[MultiAsyncCollector, Callable[[], None]]:
        self.check_server()
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
            self.shared.agent.dismiss()  # no local agent waits for it any more
        if self.evaluator is not None:
            self.evaluator.stop()  # and closes its environments while the others end
        close_all(self.learners)
        if self.collectors is not None:
            self.collectors.close()
        if self.evaluator is not None:
            self.evaluator.close()
        if self.server is not None:
            self.server.close()
        for rollout in self.rollouts:
            if problem := rollout.close():
                self.loggers.event(f"warning: {problem}")
        self.evaluator, self.collectors, self.rollouts = None, None, []
        manifest.remove_partial(self.run_dir)  # the evaluator may have been saving its best policy
        try:
            self.trace.save()
            merge(self.run_dir)
        except (OSError, ReadError) as error:
            self.loggers.event(f"warning: the trace could not be written ({error}): make room in {self.run_dir}")
        torch.set_num_threads(self.config.learner.num_threads)
        if self.shared is not None:
            self.shared.agent.close()  # last: a device that has failed fails here again


def round_updates(worker: Learner | LearnerStack, fixed: int | None) -> Iterator[None]:
    """All updates that a round owes, or the ``fixed`` number that it is given."""
    agents, owed = worker.learners, []
    for agent in agents:
        frames = agent.board.total_frames()
        agent.anneal(frames)
        due = agent.limiter.due(frames, agent.board.total_episodes())
        if fixed is not None:
            due = fixed if frames >= agent.limiter.warmup_frames else 0
        owed.append(0 if agent.frozen else int(due))
    while any(owed):
        chunk = [min(due, agent.config.learner.prefetch_batches) for agent, due in zip(agents, owed, strict=True)]
        worker.learn(chunk)
        owed = [due - done for due, done in zip(owed, chunk, strict=True)]
        yield


def beside(config: Config, task: Task, event: Callable[..., None] | None = None) -> Any:
    """Do a task in a process of its own, or in a schedule of one process in this one; what its work returned.

    Args:
        config: the run.
        task: what is to be done.
        event: is told of failures that are survived, as `Loggers.event` is; None: none is.

    Raises:
        TaskFailed: it failed, or failed too often.
    """
    start = None if config.schedule.kind.one_process else partial(start_task, config)
    return carry_out(task, start, config.faults, event)


def start_task(config: Config, task: Task, pulse: Tensor, pipe: Connection) -> BaseProcess:
    """A process that does one thing and ends."""
    use_fork_server()
    process = mp.get_context().Process(
        target=tasks.run, args=(config, task.role, task.work, pulse, pipe), name=task.name, daemon=True
    )
    process.start()
    return process


def snapshot_path(run_dir: Path, worker: int) -> Path:
    """Where a worker's state is kept for an exact resume."""
    return run_dir / "checkpoints" / f"collector_{worker}.pt"


def start_local_agent(system: System, plan: AgentPlan, pipe: Connection) -> BaseProcess:
    """A local agent's process; one that takes a dead one's place ends its episodes first."""
    assert system.shared is not None
    system.check_server()
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


def use_fork_server() -> None:
    """Children come from a server that has imported torch once; one thread each unless they say otherwise."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    mp.set_start_method("forkserver", force=True)  # importing torchrl has set spawn
    multiprocessing.set_forkserver_preload(
        [
            "trainer.host.forkserver",
            "trainer.shared_gradient.local_agent",
            "trainer.roles.evaluator",
            "trainer.roles.task",
        ]
    )
    ensure_running()
