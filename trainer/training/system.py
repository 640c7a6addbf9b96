"""The parts of a run, and what they do together.

`building.py` builds the parts; `train.py` has the training loop that uses them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.envs.world import AGENT
from trainer.host.errors import RunFailed
from trainer.host.signals import StopSignals
from trainer.learning.determinism import set_generator_states
from trainer.memory.boards import STOP, ControlBoard
from trainer.reading import ReadError
from trainer.roles.agents import AgentPlan
from trainer.roles.pace import IDLE_S
from trainer.roles.policies import header_of
from trainer.run_folder import manifest
from trainer.selfplay.pool import NoPool, OpponentPool
from trainer.telemetry import output
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.measuring import Telemetry
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.rows import Row, joined
from trainer.telemetry.trace import NoTrace, Trace, all_of, merge
from trainer.training.callbacks import Callbacks, Control
from trainer.training.evaluators import Evaluator
from trainer.training.learners import Learners
from trainer.training.playing import Collectors
from trainer.training.processes import fork_server
from trainer.training.supervisor import Supervisor

SUPERVISE_EVERY_S = 0.1
OUTPUT_EVERY_S = 1.0


@dataclass
class System:
    """The parts of a run, from `trainer.training.building.build`. The caller must call `close`.

    Args:
        config: of the run.
        run_dir: the run folder.
        device: of the updates.
        board: commands to the collectors.
        telemetry: of each agent.
        loggers: for rows and events.
        stop: signals that end the run.
        learners: the learning side.
        collectors: the playing side.
        evaluator: of greedy episodes.
        supervisor: of all processes.
        pool: of opponents, in self-play.
        trace: of this process.
        kept: state of the training loop, from a resumed run's checkpoint.
        last_row: of training, after its end.
        checkpoint_s: time that the last checkpoint took, in s.
        checkpoint_bytes: bytes of the replay that it wrote.
        gone: see `trainer.run_folder.folder.watched`.
        callbacks: of the user; set once it is built.
    """

    config: Config
    run_dir: Path
    device: torch.device
    board: ControlBoard
    telemetry: list[Telemetry]
    loggers: Loggers
    stop: StopSignals
    learners: Learners
    collectors: Collectors
    evaluator: Evaluator
    supervisor: Supervisor
    pool: OpponentPool | NoPool
    trace: Trace | NoTrace
    kept: dict[str, Any] = field(default_factory=dict)
    last_row: Row = field(default_factory=dict)
    checkpoint_s: float = math.nan
    checkpoint_bytes: int = 0
    gone: Callable[[], str] = field(default=lambda: "")
    callbacks: Callbacks = field(init=False)
    _look_at_output: EverySeconds = field(default_factory=lambda: EverySeconds(OUTPUT_EVERY_S))
    _rebalance_every: EverySeconds = field(default_factory=lambda: EverySeconds(SUPERVISE_EVERY_S))
    _supervise_every: EverySeconds = field(default_factory=lambda: EverySeconds(SUPERVISE_EVERY_S))
    _printing: set[str] = field(default_factory=set)  # processes of which that was said

    def __post_init__(self) -> None:
        self.callbacks = Callbacks((), Control(self.run_dir, self.config, self.plans), self.loggers.event)
        names = all_of([learner.name for learner in self.learners.local])
        self._sleep = self.trace.waiting(time.sleep, "idle", names)

    @property
    def plans(self) -> list[AgentPlan]:
        """The plans of all agents."""
        return self.learners.plans

    def players(self) -> list[tuple[Config, EnvSpec]]:
        """Configuration and spec of each agent that acts, for players."""
        return [(plan.config, plan.spec) for plan in self.learners.acting]

    def total_frames(self) -> int:
        """Number of transitions that count for the budget."""
        return self.learners.total_frames()

    @cached_property
    def policy_header(self) -> dict[str, Any]:
        """The header of this run's policy files, see `trainer.roles.policies`."""
        acting = self.learners.acting
        names = [plan.name for plan in acting] if len(acting) > 1 else [AGENT]
        return header_of(self.config, names, self.players(), self.run_dir)

    # Called by the schedule, see `trainer.config.schedules.Turns`.

    def open_limits(self) -> None:
        """Let the collectors go as far as every agent's limiter allows."""
        self.learners.open_limits()

    def collected(self) -> bool:
        """Whether the budget is collected."""
        return self.total_frames() >= self.config.budget_frames

    def finished(self) -> bool:
        """Whether the budget is collected, and all due updates are made."""
        return self.collected() and self.learners.settled()

    def work(self) -> bool:
        """Make a chunk of due updates; returns whether there was any."""
        if self._rebalance_every.crossed():  # independent of `logger.every_seconds`
            self._rebalance()
        return self.learners.work()

    def idle(self) -> None:
        """Sleep for a moment, as no update is due."""
        self._sleep(IDLE_S)
        self.learners.waited(IDLE_S)

    def begin_round(self) -> None:
        """Set exploration for the round, and the shares of opponents by the results so far."""
        self._rebalance()
        self.learners.begin_round()

    def collect_round(self) -> None:
        """Let every worker collect one round, and wait for it."""
        self.collectors.collect_round(self._wait)

    def round_updates(self) -> Iterator[None]:
        """Make all updates of a round, one chunk for each yield."""
        return self.learners.round_updates()

    def publish(self) -> None:
        """Publish a new version of all weights to the collectors, without waiting."""
        self.learners.publish()

    def _rebalance(self) -> None:
        self.pool.rebalance(self.total_frames() / self.config.budget_frames)

    def _wait(self) -> None:
        self._sleep(IDLE_S)  # a signal that waits for long is raised in it
        if self._supervise_every.crossed():
            self.check()

    # Called by the training loop.

    def flat(self) -> Tensor:
        """The present weights of all agents that act, one after another, float32 [sum of numel] on the CPU."""
        return self.learners.flat()

    def row(self, failed: bool = False) -> Row:
        """Build a row of training, see `trainer.telemetry.rows`; waits for the device.

        Args:
            failed: whether a loss was not finite; then the metrics of learning are left out.

        Raises:
            NotFinite: the loss of the only agent was NaN or infinite.
        """
        metrics = self.learners.metrics(failed)
        rows = [
            telemetry.row(int(plan.board.updates[0]), metrics.get(plan.name, {}))
            for plan, telemetry in zip(self.plans, self.telemetry, strict=True)
        ]
        return {
            **joined([plan.name for plan in self.plans], rows),
            **self.learners.totals(rows),
            **self.pool.metrics(),
            **self.collectors.metrics(),
            "checkpoint_s": self.checkpoint_s,
            "checkpoint_replay_mib": self.checkpoint_bytes / 2**20,
        }

    def check(self) -> None:
        """Restart every process that died; cheap enough for every wait.

        Raises:
            RunFailed: a process died too often, or the run folder is gone.
        """
        if words := self.gone():
            raise RunFailed(words)
        if self._look_at_output.crossed():
            for role, text in output.news(self.run_dir, self._printing):
                self.loggers.event(text, role=role)
        self.supervisor.check()

    def start(self) -> None:
        """Start every process, or its substitute in this one.

        Raises:
            RunFailed: a process could not be started; `close` stops the others.
        """
        self.learners.prepare()
        if self.plans[0].spec.against_opponents:
            self.publish()  # the opponents need weights before the first step
        if not self.config.schedule.kind.one_process:
            self.supervisor.serve(fork_server(self.supervisor.processes))
        self.evaluator.start()
        self.learners.start()
        self.collectors.start()
        torch.set_num_threads(self.config.learner.num_threads)  # TorchRL changed it
        set_generator_states(self.kept)  # recording the updates has drawn from them

    def close(self) -> None:
        """Stop every process. Safe to call twice, and after any failure."""
        self.board.command[0] = STOP
        self.learners.stop()
        self.evaluator.stop()
        self.supervisor.wait()
        self.collectors.close()
        self.evaluator.close()
        self.supervisor.close()
        manifest.remove_partial(self.run_dir)  # the evaluator may have been saving its best policy
        try:
            self.trace.save()
            merge(self.run_dir)
        except (OSError, ReadError) as error:
            self.loggers.event(f"warning: the trace could not be written ({error}): make room in {self.run_dir}")
        torch.set_num_threads(self.config.learner.num_threads)
        self.learners.release()  # last: a device that has failed fails here again
