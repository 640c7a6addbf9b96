"""Agents' own learner processes as the main process sees them; `trainer.system` starts them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from trainer.agents import AgentPlan
from trainer.boards import split_error
from trainer.errors import RunFailed, exit_words, one_too_many
from trainer.limiter import NO_LIMIT, Limiter
from trainer.loggers import Loggers

SHUTDOWN_S = 4.0  # until one that does not end by itself, nor shows life, is killed
SAVING_S = 120.0  # until one that saves is killed


class LearnerProcess:
    """An agent's own learner process as the main process sees it; started anew when it dies or hangs.

    Args:
        plan: the agent.
        start: starts the process with its end of a pipe; the only place that starts processes gives it.
        loggers: are told when it is started anew.
        hang_s: without a sign of life it is taken for hung.
        what: it is called, before its agent's name.
        source: what it goes on from when it is started anew.
    """

    def __init__(
        self,
        plan: AgentPlan,
        start: Callable[[Connection], BaseProcess],
        loggers: Loggers,
        hang_s: float,
        what: str = "learner of",
        source: str = " from its agent's last checkpoint",
    ) -> None:
        self.plan, self._start, self._loggers, self._hang_s = plan, start, loggers, hang_s
        self._what, self._source = what, source
        self.figures = {"learning_rate": plan.config.learner.learning_rate}  # until it reports its own
        self.restarts = self.saves = 0
        self._failures: deque[float] = deque()
        self._process: BaseProcess | None = None
        schedule = plan.config.schedule
        self.limiter = Limiter(
            plan.config.budget_frames, plan.config.learner.warmup_frames, schedule.frames_per_update, 1,
            schedule.episodes_per_update,
        )  # fmt: skip

    def start(self) -> None:
        """Start it; it goes on from its agent's newest checkpoint, if there is one."""
        self._pipe, theirs = Pipe()
        self._error = ""  # that ended it, which it tells before it is gone
        self.plan.board.learner_starts()
        self._process = self._start(theirs)
        theirs.close()

    @property
    def pid(self) -> int:
        """Of the process that is there now."""
        assert self._process is not None and self._process.pid is not None  # it is started
        return self._process.pid

    def settled(self) -> bool:
        """Whether it has made every update that its agent's frames owe it."""
        self.limiter.updates = int(self.plan.board.updates[0])
        return self.limiter.settled(self.plan.board.total_frames(), self.plan.board.total_episodes())

    def check(self) -> None:
        """Take its reports; if it died or hangs, say so, let collection go on without it, and start it anew.

        Raises:
            RunFailed: that happened more often than ``faults.max_failures`` allows.
        """
        assert self._process is not None
        self.read()
        silent = time.monotonic() - self.plan.board.learner_heartbeat[0]
        if self._process.exitcode is None and silent < self._hang_s:
            return
        if self._process.exitcode is None:
            why = f"showed no sign of life for {silent:.0f} s and was ended"
            self._process.kill()
        else:
            traceback, cause = split_error(self._error)
            why = f"died: {cause or f'it was ended by {exit_words(self._process.exitcode)}'}"
            if traceback:
                self._event(f"traceback of the {self._what} {self.plan.name}:\n{traceback}")
        self.plan.board.frame_limit[0] = self.plan.config.budget_frames  # nobody waits for it
        self.plan.board.episode_limit[0] = NO_LIMIT
        text = f"the {self._what} {self.plan.name} (pid {self._process.pid}) {why}"
        if (often := one_too_many(self._failures, self.plan.config.faults)) is not None:
            raise RunFailed(text + often, role="learner")
        self.restarts += 1
        self._event(f"{text}; it is started anew{self._source}")
        self.start()

    def _event(self, text: str) -> None:
        assert self._process is not None
        self._loggers.event(text, role="learner", agent=self.plan.name, pid=self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.exitcode is None

    def read(self) -> None:
        """Take what it reports."""
        try:
            while self._pipe.poll():
                kind, value = self._pipe.recv()
                if kind == "row":
                    self.figures = value
                elif kind in ("saved", "unsaved"):
                    self.saves += 1
                elif kind == "error":
                    self._error = str(value)
                if kind == "unsaved":
                    self._event(
                        f"warning: the checkpoint of {self.plan.name} could not be written ({value}): make room"
                    )
        except (EOFError, OSError):
            return  # it is dead, which check() finds

    def save(self, frames: int) -> None:
        """Ask for a checkpoint after ``frames`` frames of the run."""
        self._send(("save", frames))

    def go_on(self) -> None:
        """Let a local agent go on, which waits once it has saved."""
        self._send(("go", 0))

    def _send(self, order: tuple[str, int]) -> None:
        try:
            self._pipe.send(order)
        except OSError:  # it is dead, which check() finds
            return

    def close(self) -> None:
        """Let it save its last checkpoint and end; kill it if it does not."""
        if self._process is None:
            return
        deadline = time.monotonic() + SAVING_S
        self._process.join(SHUTDOWN_S)
        while self._process.exitcode is None and time.monotonic() < deadline and self._beats():
            self._process.join(SHUTDOWN_S)  # it saves a large replay
        if self._process.exitcode is None:
            self._process.kill()
        self.read()
        self._pipe.close()

    def _beats(self) -> bool:
        return time.monotonic() - float(self.plan.board.learner_heartbeat[0]) < SHUTDOWN_S
