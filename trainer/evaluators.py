"""The evaluator as the training loop sees it: in a process of its own, or at once in this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from envs import EnvSpec
from trainer.boards import split_error
from trainer.config import Config
from trainer.errors import RunFailed, exit_words
from trainer.processes.evaluator import Evaluation, Judge

EXIT_CODE_S = 3.0  # until the exit code of a process whose pipe has ended is known


class RemoteEvaluator:
    """The evaluator's process as the main process sees it: one request at a time, the newest wins.

    Args:
        process: running :func:`trainer.processes.evaluator.run`.
        pipe: to it.
        weights: float32 [sum of numel], the shared memory that it reads.
        flat: gives all agents' weights of now.
        what: the environments that it plays, for messages.
    """

    def __init__(
        self, process: BaseProcess, pipe: Connection, weights: Tensor, flat: Callable[[], Tensor], what: str
    ) -> None:
        self._process, self._pipe, self._weights, self._flat, self._what = process, pipe, weights, flat, what
        self._busy, self._wanted = False, -1

    def request(self, frames: int) -> None:
        """Evaluate the weights of now, or, while the evaluator is busy, those of the moment it is free."""
        self._wanted = frames
        self._send()

    def _send(self) -> None:
        if self._busy or self._wanted < 0:
            return
        self._weights.copy_(self._flat())
        try:
            self._pipe.send((self._wanted, time.monotonic()))
        except OSError:  # the process died
            self._fail("")
        self._busy, self._wanted = True, -1

    def poll(self) -> Evaluation | None:
        """A finished evaluation, if there is one.

        Raises:
            RunFailed: the process failed.
        """
        if not self._pipe.poll():
            return None
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._fail("")
        if isinstance(answer, str):
            self._fail(answer)
        self._busy = False
        self._send()
        return answer

    def check(self) -> None:
        """Raise RunFailed if the process died."""
        if self._process.exitcode is not None and not self._pipe.poll():  # else poll() tells what is left in the pipe
            self._fail("")

    def _fail(self, error: str) -> NoReturn:
        self._process.join(EXIT_CODE_S)  # its exit code comes a little later than the end of its pipe
        code = self._process.exitcode
        traceback, cause = split_error(error)
        raise RunFailed(
            f"the evaluator (pid {self._process.pid}, {self._what}) died: "
            f"{cause or ('it closed its pipe' if code is None else f'it was ended by {exit_words(code)}')}",
            role="evaluator",
            traceback=traceback,
        )

    def close(self) -> None:
        """End the process, whatever it does."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(2)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


class LocalEvaluator:
    """Evaluates at once in this process: for ``sequential``."""

    def __init__(
        self, config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path, flat: Callable[[], Tensor]
    ) -> None:
        self._flat = flat
        # Building a policy draws from the global generator, from which training draws too.
        with torch.random.fork_rng():
            self._judge = Judge(config, agents, run_dir)
        self._result: Evaluation | None = None

    def request(self, frames: int) -> None:
        """Evaluate the weights of now."""
        self._result = self._judge.evaluate(self._flat(), frames, time.monotonic())

    def poll(self) -> Evaluation | None:
        """The evaluation made last, once."""
        result, self._result = self._result, None
        return result

    def check(self) -> None:
        """There is no process that could die."""

    def close(self) -> None:
        """Close the environments."""
        self._judge.close()
