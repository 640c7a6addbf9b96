"""Agents' own learner processes as the main process sees them; `trainer.training.system` starts them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from trainer.config.run_config import first_line
from trainer.host import programs
from trainer.host.errors import RunFailed, exit_words, one_too_many, split_error
from trainer.learning.limiter import Limiter
from trainer.memory.silence import Silence
from trainer.roles.agents import AgentPlan, published_updates
from trainer.telemetry.loggers import Loggers

SHUTDOWN_S = 4.0  # until one that does not end by itself, nor shows life, is killed
POLL_S = 5e-3  # between two looks at those that end
AGAIN_S = 2.0  # until one is tried again for which there was no room
SAVING_S = 120.0  # until one that saves is killed


class LearnerProcess:
    """An agent's own learner process as the main process sees it; started anew when it dies or hangs.

    Args:
        plan: the agent.
        start: starts the process with its end of a pipe; the only place that starts processes gives it.
        loggers: are told when it is started anew.
        hang_s: without a sign of life it is taken for hung.
        what: it is called, before its agent's name.
        source: says what it goes on from when it is started anew.
        plays: it has environments, which may hang as they are made; until it is up it has nothing to save.
    """

    def __init__(
        self,
        plan: AgentPlan,
        start: Callable[[Connection], BaseProcess],
        loggers: Loggers,
        hang_s: float,
        what: str = "learner of",
        source: Callable[[AgentPlan], str] | None = None,
        plays: bool = False,
    ) -> None:
        self.plan, self._start, self._loggers, self._hang_s = plan, start, loggers, hang_s
        self._what, self._source, self._plays = what, source or newest_weights, plays
        self.figures = {"learning_rate": plan.config.learner.learning_rate}  # until it reports its own
        self.restarts = self.saves = 0
        self._failures: deque[float] = deque()
        self._process: BaseProcess | None = None
        self._silence, self._again_at, self._ends = Silence(hang_s), 0.0, False
        schedule = plan.config.schedule
        self.limiter = Limiter(
            plan.config.budget_frames, plan.config.learner.warmup_frames, schedule.frames_per_update, 1,
            schedule.episodes_per_update,
        )  # fmt: skip

    def start(self) -> None:
        """Start it; :func:`trainer.roles.learner.go_on` says from where it goes on.

        Where the machine has no room for it, :meth:`check` finds that.
        """
        self._pipe, theirs = Pipe()
        self._error = ""  # that ended it, which it tells before it is gone
        self.plan.board.learner_starts()
        try:
            self._process = self._start(theirs)
        except RunFailed:  # the fork server died too often
            raise
        except (OSError, EOFError, RuntimeError) as error:  # no more tasks or memory, or no fork server to do it
            self._process, self._error = None, first_line(error)
            self._again_at = time.monotonic() + AGAIN_S
        theirs.close()

    @property
    def pid(self) -> int:
        """Of the process that is there now."""
        assert self._process is not None and self._process.pid is not None  # it is started
        return self._process.pid

    @property
    def processes(self) -> list[BaseProcess]:
        """Its process, if it could be started."""
        return [] if self._process is None else [self._process]

    def settled(self) -> bool:
        """Whether it has made every update that its agent's frames owe it."""
        self.limiter.updates = int(self.plan.board.updates[0])
        return self.limiter.settled(self.plan.board.total_frames(), self.plan.board.total_episodes())

    def check(self) -> None:
        """Take its reports; if it died or hangs, say so, and start it anew.

        Until it is back, its agent's limits stay what they were: frames that nobody learns from in time are not
        collected.

        Raises:
            RunFailed: that happened more often than ``faults.max_failures`` allows.
        """
        self.read()
        if self._process is None:
            self._try_again()
            return
        hangs = self._silence.too_long(float(self.plan.board.learner_heartbeat[0]))
        if self._process.exitcode is None and not hangs:
            return
        if self._process.exitcode is None:
            why = f"showed no sign of life for {self._silence.silent_s:.0f} s and was ended"
            self._process.kill()
            self._process.join()
        else:
            traceback, cause = split_error(self._error)
            why = f"died: {cause or f'it was ended by {exit_words(self._process.exitcode)}'}"
            if traceback:
                self._event(f"traceback of the {self._what} {self.plan.name}:\n{traceback}")
        programs.end([self.pid])
        text = f"the {self._what} {self.plan.name} (pid {self._process.pid}) {why}"
        if (often := one_too_many(self._failures, self.plan.config.faults)) is not None:
            raise RunFailed(text + often, role="learner")
        self.restarts += 1
        self._event(f"{text}; it is started anew{self._source(self.plan)}")
        self.start()

    def _try_again(self) -> None:
        """Start it after it could not be started; that counts as a failure."""
        if time.monotonic() < self._again_at:
            return
        text = f"the {self._what} {self.plan.name} could not be started: {self._error}"
        if (often := one_too_many(self._failures, self.plan.config.faults)) is not None:
            raise RunFailed(text + often, role="learner")
        text += "; it is tried again: make room in /dev/shm, or for memory or tasks"
        self._loggers.event(text, role="learner", agent=self.plan.name)
        self.start()

    def _event(self, text: str) -> None:
        assert self._process is not None
        self._loggers.event(text, role="learner", agent=self.plan.name, pid=self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.exitcode is None

    @property
    def up(self) -> bool:
        """Whether it has started: until then its sign of life lies ahead."""
        return float(self.plan.board.learner_heartbeat[0]) <= time.monotonic()

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
        """End it, if it has not ended."""
        if self._process is None:
            return
        self._process.kill()
        self._process.join()
        programs.end([self.pid])
        self.read()
        self._pipe.close()

    def closing(self) -> bool:
        """Whether it has not ended, and shows life; to be asked in turns once it is to end."""
        if not self._ends:
            self._silence, self._ends = Silence(SHUTDOWN_S, ends=self._plays), True
        return self.alive and not self._silence.too_long(float(self.plan.board.learner_heartbeat[0]))


def close_all(learners: Sequence[LearnerProcess]) -> None:
    """Let them save their last checkpoints, large replays too, and end, all at a time; kill those that do not."""
    deadline = time.monotonic() + SAVING_S
    while time.monotonic() < deadline and any([learner.closing() for learner in learners]):
        time.sleep(POLL_S)
    for learner in learners:
        learner.close()


def newest_weights(plan: AgentPlan) -> str:
    """What a learner's process goes on from in a dead one's place, for a sentence."""
    made = published_updates(plan)
    lost = int(plan.board.updates[0]) - made
    return (
        f" from the weights that it published after {made} updates: {lost} later ones, and the optimiser's moments "
        "since the agent's last checkpoint, are lost"
    )
