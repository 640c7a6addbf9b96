"""The process of a learner, or of a local agent, which also plays, as the main process sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trainer.learning.limiter import Limiter
from trainer.roles.agents import AgentPlan, published_updates
from trainer.training.processes import Piped
from trainer.training.supervisor import Event, Role, Supervisor

CLOSING_S = 120.0  # time to save the last checkpoint, which may have a large replay, and to end


class LearnerProcess:
    """The process of an agent, which is restarted when it dies or hangs.

    During a restart the agent's limits stay, so that collection does not run ahead of learning.

    Args:
        plan: of the agent.
        start: starts the process, with its end of a pipe and the number of restarts.
        supervisor: of the process.
        event: takes a warning about checkpoints that could not be written, as `Loggers.event`.
        called: words before the agent's name in sentences.
        source: words for what a restarted process goes on from.
        plays: whether it has environments, which may hang when they are made; before its start it has nothing to save.
        before: called before a restart.
    """

    def __init__(
        self, plan: AgentPlan, start: Callable[[Connection, int], BaseProcess], supervisor: Supervisor, event: Event,
        called: str = "learner of", source: Callable[[AgentPlan], str] | None = None, plays: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.plan, self._start, self._event = plan, start, event
        self.metrics = {"learning_rate": plan.config.learner.learning_rate}  # until it reports its own
        self.saves = 0
        self._piped: Piped | None = None
        name, source = f"the {called} {plan.name}", source or newest_weights
        self.supervised = supervisor.add(
            Role(
                role="learner",
                name=lambda pid: name if pid is None else f"{name} (pid {pid})",
                start=self._begin,
                heartbeat=lambda: float(plan.board.learner_heartbeat[0]),
                hang_s=plan.config.agents.hang_seconds,
                before=before,
                then=lambda: f"; it is restarted{source(plan)}",
                known_as=name,
                agent=plan.name,
                closing_s=CLOSING_S,
                waits_for_start=not plays,
            )
        )
        schedule = plan.config.schedule
        self.limiter = Limiter(
            plan.config.budget_frames, plan.config.learner.warmup_frames, schedule.frames_per_update, 1,
            schedule.episodes_per_update,
        )  # fmt: skip

    def _begin(self) -> Piped:
        self.plan.board.learner_starts()
        self._piped = Piped(lambda pipe: self._start(pipe, self.restarts), self._hear)
        return self._piped

    @property
    def restarts(self) -> int:
        """Number of restarts."""
        return self.supervised.restarts

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.supervised.alive

    @property
    def up(self) -> bool:
        """Whether it has started; before that the time of its sign of life is in the future."""
        return float(self.plan.board.learner_heartbeat[0]) <= time.monotonic()

    def expect(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Take the number of updates from a checkpoint, if it is of this agent."""
        if plan is not self.plan:
            return
        self.limiter.load_state_dict(found["limiter"])
        if plan.board.lost_at[0]:
            self.limiter.begin_again(int(plan.board.lost_at[0]), int(plan.board.episodes_before[0]))

    def settled(self) -> bool:
        """Whether it has made all updates that are due."""
        self.limiter.updates = int(self.plan.board.updates[0])
        return self.limiter.settled(self.plan.board.total_frames(), self.plan.board.total_episodes())

    def listen(self) -> None:
        """Read its messages."""
        if self._piped is not None:
            self._piped.listen()

    def _hear(self, message: tuple[str, Any]) -> str:
        kind, value = message
        if kind == "row":
            self.metrics = value
        elif kind in ("saved", "unsaved"):
            self.saves += 1
        if kind == "unsaved":
            text = f"warning: the checkpoint of {self.plan.name} could not be written ({value}): make room"
            self._event(text, role="learner", agent=self.plan.name, pid=self.supervised.pid)
        return str(value) if kind == "error" else ""

    def save(self, frames: int) -> None:
        """Ask for a checkpoint after `frames` frames of the run."""
        self._send(("save", frames))

    def go_on(self) -> None:
        """Let a local agent go on, which waits once it has saved."""
        self._send(("go", 0))

    def _send(self, order: tuple[str, int]) -> None:
        if self._piped is not None:
            self._piped.send(order)


def newest_weights(plan: AgentPlan) -> str:
    """The end of a sentence: what a restarted learner goes on from."""
    made = published_updates(plan)
    lost = int(plan.board.updates[0]) - made
    return (
        f" from the weights that it published after {made} updates: {lost} later ones, and the optimiser's moments "
        "since the agent's last checkpoint, are lost"
    )
