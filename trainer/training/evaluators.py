"""The evaluator as the training loop sees it: in a process of its own, or at once in this one."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch import Tensor

from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host import programs, seeds
from trainer.host.errors import RunFailed, exit_words, one_too_many, split_error
from trainer.memory.pulse import Pulse
from trainer.roles.evaluator import Evaluation, Judge
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.trace import open_trace, save_or_say

CLOSE_S = 5.0  # that the environments may take to be closed
EXIT_CODE_S = 3.0  # until the exit code of a process whose pipe has ended is known


class RemoteEvaluator:
    """The evaluator's process as the main process sees it: one request at a time, the newest wins.

    It is started anew when it dies, and the evaluation that it was at is made again.

    Args:
        config: the run.
        start: starts the process with its pulse and its end of a pipe; the only place that starts processes gives it.
        weights: float32 [sum of numel], the shared memory that it reads.
        flat: gives all agents' weights of now.
        frames: gives the frames that are collected by now.
        loggers: are told of its deaths.
    """

    def __init__(
        self,
        config: Config,
        start: Callable[[Tensor, Connection], BaseProcess],
        weights: Tensor,
        flat: Callable[[], Tensor],
        frames: Callable[[], int],
        loggers: Loggers,
    ) -> None:
        self._config, self._start, self._loggers = config, start, loggers
        self._weights, self._flat, self._frames = weights, flat, frames
        self._busy = self._wanted = False
        self._close_until = math.inf
        self._failures: deque[float] = deque()
        self.restarts = 0
        self._begin()

    def _begin(self) -> None:
        self._pipe, theirs = Pipe()
        self._pulse = Pulse(self._config.faults.hang_seconds)
        self._process = self._start(self._pulse.memory, theirs)
        theirs.close()

    @property
    def processes(self) -> list[BaseProcess]:
        """Its process."""
        return [self._process]

    @property
    def busy(self) -> bool:
        """Whether an evaluation that was asked for has not been handed out."""
        return self._busy

    def request(self) -> None:
        """Evaluate the weights of now, or, while the evaluator is busy, those of the moment it is free."""
        self._wanted = True
        self._send()

    def _send(self) -> None:
        if self._busy or not self._wanted:
            return
        self._weights.copy_(self._flat())
        self._busy, self._wanted = True, False
        self._pulse.expect()
        try:
            self._pipe.send((self._frames(), time.monotonic()))  # of now: it may have been asked for long ago
        except OSError:  # the process died
            self._fail("")

    def poll(self) -> Evaluation | None:
        """A finished evaluation, if there is one.

        Raises:
            RunFailed: the process failed more often than `faults.max_failures` allows.
        """
        if not self._pipe.poll():
            return None
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._fail("")
            return None
        if isinstance(answer, str):
            self._fail(answer)
            return None
        self._busy = False
        self._send()
        return answer

    def check(self) -> None:
        """Start the process anew if it died, or shows no sign of life as it evaluates or starts.

        Raises:
            RunFailed: it failed more often than `faults.max_failures` allows.
        """
        hung = self._pulse.hung()
        if self._process.exitcode is not None:
            if not self._pipe.poll():  # else poll() tells what is left in the pipe
                self._fail("")
        elif self._busy and hung and not self._pipe.poll():
            self._fail("", hung=True)

    def _fail(self, error: str, hung: bool = False) -> None:
        if not hung:
            self._process.join(EXIT_CODE_S)  # its exit code comes a little later than the end of its pipe
        code = self._process.exitcode
        traceback, cause = split_error(error)
        why = f"died: {cause or ('it closed its pipe' if code is None else f'it was ended by {exit_words(code)}')}"
        if hung:
            why = f"showed no sign of life for {self._pulse.silence.silent_s:.0f} s and was ended"
        what = f"{min(self._config.evaluator.num_envs, self._config.evaluator.episodes)} x {self._config.env.id}"
        text = f"the evaluator (pid {self._process.pid}, {what}) {why}"
        self._kill()
        if (often := one_too_many(self._failures, self._config.faults)) is not None:
            raise RunFailed(text + often, "evaluator", traceback, self._process.pid)
        self.restarts += 1
        if traceback:
            self._loggers.event(f"traceback of the evaluator:\n{traceback}", "evaluator", pid=self._process.pid)
        self._loggers.event(f"{text}; another one takes its place", "evaluator", pid=self._process.pid)
        self._begin()
        if self._busy:
            self._busy, self._wanted = False, True
            self._send()

    def stop(self) -> None:
        """Ask the process to close its environments and to end; waits for nothing."""
        self._close_until = min(self._close_until, time.monotonic() + CLOSE_S)
        self._pulse.close()
        self._pipe.close()

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        self.stop()
        self._process.join(max(0.0, self._close_until - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()
        programs.end([self._process.pid or 0])


class LocalEvaluator:
    """Evaluates at once in this process: for `sequential`."""

    def __init__(
        self, config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path, flat: Callable[[], Tensor],
        frames: Callable[[], int],
    ) -> None:  # fmt: skip
        self._flat, self._frames = flat, frames
        with seeds.apart({}):  # environments and policies draw from the generators that training draws from too
            seeds.seed_globals(config.seed, "evaluator")
            self._judge = Judge(config, agents, run_dir)
        self._trace = open_trace(config, "evaluator")
        self._trace.follow(self._judge, "evaluate", "evaluate", self._judge.agents)
        self._result: Evaluation | None = None

    @property
    def processes(self) -> list[BaseProcess]:
        """None."""
        return []

    @property
    def busy(self) -> bool:
        """Whether an evaluation has not been handed out."""
        return self._result is not None

    def request(self) -> None:
        """Evaluate the weights of now."""
        with seeds.apart({}):
            self._result = self._judge.evaluate(self._flat(), self._frames(), time.monotonic())

    def poll(self) -> Evaluation | None:
        """The evaluation made last, once."""
        result, self._result = self._result, None
        return result

    def check(self) -> None:
        """There is no process that could die."""

    def stop(self) -> None:
        """There is no process that could end."""

    def close(self) -> None:
        """Close the environments."""
        self._judge.close()
        save_or_say(self._trace)
