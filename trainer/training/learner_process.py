"""A process in which an agent learns, as the main process sees it: a learner, or a local agent, which also plays."""

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

CLOSING_S = 120.0  # that one may take to save its last checkpoint, a large replay too, and to end


class LearnerProcess:
    """An agent's process; another one takes its place when it dies or hangs.

    Until that is up, the agent's limits stay what they were: frames that nobody learns from in time are not collected.

    Args:
        plan: the agent.
        start: starts the process with its end of a pipe; told how many there were before.
        supervisor: watches over it.
        event: is told of checkpoints that could not be written, as `Loggers.event` is.
        called: before its agent's name in sentences.
        source: says what another one in its place goes on from.
        plays: it has environments, which may hang as they are made; until it is up it has nothing to save.
        before: what is done before another one takes its place.
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
                then=lambda: f"; it is started anew{source(plan)}",
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
        """How often another process took its place."""
        return self.supervised.restarts

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.supervised.alive

    @property
    def up(self) -> bool:
        """Whether it has started: until then its sign of life lies ahead."""
        return float(self.plan.board.learner_heartbeat[0]) <= time.monotonic()

    def expect(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Know what a checkpoint says of the updates made, if it is of this agent's `plan`."""
        if plan is not self.plan:
            return
        self.limiter.load_state_dict(found["limiter"])
        if plan.board.lost_at[0]:
            self.limiter.begin_again(int(plan.board.lost_at[0]), int(plan.board.episodes_before[0]))

    def settled(self) -> bool:
        """Whether it has made every update that its agent's frames owe it."""
        self.limiter.updates = int(self.plan.board.updates[0])
        return self.limiter.settled(self.plan.board.total_frames(), self.plan.board.total_episodes())

    def listen(self) -> None:
        """Take what it reports."""
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
    """What a learner's process goes on from in a dead one's place, for a sentence."""
    made = published_updates(plan)
    lost = int(plan.board.updates[0]) - made
    return (
        f" from the weights that it published after {made} updates: {lost} later ones, and the optimiser's moments "
        "since the agent's last checkpoint, are lost"
    )
