"""A run's parts, and what is asked of them together.

`building.py` builds the parts; a reader's next file is `train.py`, the loop that they run in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host.errors import RunFailed
from trainer.host.signals import StopSignals
from trainer.learning.determinism import set_generator_states
from trainer.memory.boards import STOP, ControlBoard
from trainer.reading import ReadError
from trainer.roles.agents import AgentPlan
from trainer.roles.learner import IDLE_S
from trainer.run_folder import manifest
from trainer.selfplay.pool import NoPool, OpponentPool
from trainer.telemetry import output
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.measuring import Telemetry
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.rows import Row, joined
from trainer.telemetry.trace import NoTrace, Trace, all_of, merge
from trainer.training.evaluators import Evaluator
from trainer.training.learners import Learners
from trainer.training.playing import Collectors
from trainer.training.processes import fork_server
from trainer.training.supervisor import Supervisor

SUPERVISE_EVERY_S = 0.1
OUTPUT_EVERY_S = 1.0


@dataclass
class System:
    """A run's parts, from `trainer.training.building.build`. Whoever holds it calls `close`.

    Args:
        config: the run.
        run_dir: its folder.
        device: of the updates.
        board: orders to the collectors.
        telemetry: of the agents, in their order.
        loggers: where rows go.
        stop: signals.
        learners: what learns.
        collectors: who plays.
        evaluator: of greedy episodes.
        supervisor: of all processes.
        pool: of opponents, in self-play.
        trace: of this process.
        kept: what the training loop of a run that goes on had kept of itself.
        last_row: of training, once that has ended.
        checkpoint_s: that the last checkpoint took.
        checkpoint_bytes: of the replay, that it wrote.
        gone: see `trainer.run_folder.folder.watched`.
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
    _look_at_output: EverySeconds = field(default_factory=lambda: EverySeconds(OUTPUT_EVERY_S))
    _rebalance_every: EverySeconds = field(default_factory=lambda: EverySeconds(SUPERVISE_EVERY_S))
    _supervise_every: EverySeconds = field(default_factory=lambda: EverySeconds(SUPERVISE_EVERY_S))
    _printing: set[str] = field(default_factory=set)  # processes of which that was said

    def __post_init__(self) -> None:
        names = all_of([learner.name for learner in self.learners.local])
        self._sleep = self.trace.waiting(time.sleep, "idle", names)

    @property
    def plans(self) -> list[AgentPlan]:
        """Of all agents, in their order."""
        return self.learners.plans

    def players(self) -> list[tuple[Config, EnvSpec]]:
        """What a player needs to know of each agent of the world."""
        return [(plan.config, plan.spec) for plan in self.learners.acting]

    def total_frames(self) -> int:
        """Transitions that count against the budget."""
        return self.learners.total_frames()

    # What a schedule takes its turns with: `trainer.config.schedules.Turns`.

    def open_limits(self) -> None:
        """Let the collectors go as far as every agent's limiter allows."""
        self.learners.open_limits()

    def collected(self) -> bool:
        """Whether the budget is collected."""
        return self.total_frames() >= self.config.budget_frames

    def finished(self) -> bool:
        """Whether it is, and every update made that it is owed."""
        return self.collected() and self.learners.settled()

    def work(self) -> bool:
        """A chunk of the updates that are due; whether there was any."""
        if self._rebalance_every.crossed():  # however seldom anything is logged
            self._rebalance()
        return self.learners.work()

    def idle(self) -> None:
        """Wait a moment for something to be due."""
        self._sleep(IDLE_S)
        self.learners.waited(IDLE_S)

    def begin_round(self) -> None:
        """Fix what a round depends on: exploration, and by results of whole rounds whom is played against."""
        self._rebalance()
        self.learners.begin_round()

    def collect_round(self) -> None:
        """Let every worker collect one round, and wait for it."""
        self.collectors.collect_round(self._wait)

    def round_updates(self) -> Iterator[None]:
        """Make all updates that a round owes, a chunk between two values."""
        return self.learners.round_updates()

    def publish(self) -> None:
        """Hand the collectors a new version of all weights; waits for none of them."""
        self.learners.publish()

    def _rebalance(self) -> None:
        self.pool.rebalance(self.total_frames() / self.config.budget_frames)

    def _wait(self) -> None:
        self._sleep(IDLE_S)  # a signal that waits for long is raised in it
        if self._supervise_every.crossed():
            self.check()

    # What the training loop does beside that.

    def flat(self) -> Tensor:
        """The weights of now of who acts, float32 [sum of numel] on the CPU, one agent behind the other."""
        return self.learners.flat()

    def row(self, failed: bool = False) -> Row:
        """What is known of the run now, for the loggers; waits for the device.

        With several agents each one's metrics stand under `<agent>/`, and their means under the plain keys.

        Args:
            failed: leave out how learning goes, for a loss was not finite.

        Raises:
            NotFinite: the loss of an agent that is alone was NaN or infinite.
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
            "worker_restarts": self.collectors.restarts,
            "checkpoint_s": self.checkpoint_s,
            "checkpoint_replay_mib": self.checkpoint_bytes / 2**20,
        }

    def check(self) -> None:
        """Start another process in the place of each that died; cheap enough for every wait.

        Raises:
            RunFailed: something died too often, or the run's folder is gone.
        """
        if words := self.gone():
            raise RunFailed(words)
        if self._look_at_output.crossed():
            for role, text in output.news(self.run_dir, self._printing):
                self.loggers.event(text, role=role)
        self.supervisor.check()

    def start(self) -> None:
        """Start every process, or build what takes their place in this one.

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
