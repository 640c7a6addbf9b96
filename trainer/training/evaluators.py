"""The evaluator as the training loop sees it: in a process of its own, or at once in this one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from trainer.config.sections import Config
from trainer.host import seeds
from trainer.memory.blocks import shared
from trainer.memory.pulse import FILMING, new_pulse
from trainer.roles import evaluator as evaluating
from trainer.roles.evaluator import Evaluation, Judge
from trainer.telemetry.trace import open_trace, save_or_say
from trainer.training.learners import Learners
from trainer.training.processes import Piped, spawn
from trainer.training.supervisor import Role, Supervisor

CLOSE_S = 5.0  # most time for the environments to be closed


class Evaluator(Protocol):
    """Evaluates weights on request, one evaluation at a time."""

    @property
    def busy(self) -> bool:
        """Whether an evaluation was requested that `poll` has not returned yet."""

    def start(self) -> None:
        """Start the process, or make the environments."""

    def request(self) -> None:
        """Evaluate the present weights, or, if it is busy, those when it is free again."""

    def poll(self) -> Evaluation | None:
        """A finished evaluation; each is returned once, None if there is none."""

    def stop(self) -> None:
        """Ask it to close its environments and to end, without waiting."""

    def close(self) -> None:
        """Close it after its end. Safe to call twice."""


class Videos:
    """Which evaluations are filmed: the first, and then every n-th, until one cannot be.

    Args:
        every: n; 0: none.
    """

    def __init__(self, every: int) -> None:
        self._every, self._evaluations = every, 0

    def due(self) -> bool:
        """Whether the next evaluation is filmed."""
        self._evaluations += 1
        return self._every > 0 and self._evaluations % self._every == 1 % self._every

    def look(self, evaluation: Evaluation) -> Evaluation:
        """Film no more if that failed."""
        if evaluation.no_video:
            self._every = 0
        return evaluation


class Critics:
    """The critics of the agents that learn in this process, with weights of the moment at which it is made.

    Args:
        learners: whose weights are evaluated.
    """

    def __init__(self, learners: Learners) -> None:
        local = {learner.plan.number: learner for learner in learners.local}
        self._of = [local[plan.number].critics() if plan.number in local else None for plan in learners.acting]

    def judged(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation with the critics' values of the first actions; NaN of an agent that learns elsewhere."""
        predicted = list(evaluation.predicted)
        for number, judge in enumerate(self._of):
            mine = {i: one for i, one in enumerate(evaluation.begun) if one is not None and one.agent == number}
            if judge is not None and mine:
                for i, value in zip(mine, judge(list(mine.values())), strict=True):
                    predicted[i] = value
        return replace(evaluation, predicted=predicted, begun=[])


class RemoteEvaluator:
    """The evaluator in a process of its own; if it dies during an evaluation, the restarted one repeats it.

    Args:
        config: of the run.
        run_dir: the run folder.
        learners: whose weights are evaluated.
        supervisor: of the process.
    """

    def __init__(self, config: Config, run_dir: Path, learners: Learners, supervisor: Supervisor) -> None:
        self._config, self._run_dir, self._learners = config, run_dir, learners
        self._busy = self._wanted = False
        self._answer: Evaluation | None = None
        self._videos, self._died_filming = Videos(config.evaluator.video_every), False
        self._piped: Piped | None = None
        self._critics: Critics  # with the weights that are evaluated
        self._weights, self._pulse = torch.empty(0), new_pulse()
        what = f"{min(config.evaluator.num_envs, config.evaluator.episodes)} x {config.env.id}"
        self.supervised = supervisor.add(
            Role(
                role="evaluator",
                name=lambda pid: f"the evaluator ({f'pid {pid}, ' if pid else ''}{what})",
                start=self._begin,
                heartbeat=lambda: float(self._pulse[0]),
                hang_s=config.faults.hang_seconds,
                closing_s=CLOSE_S,
            )
        )

    def start(self) -> None:
        """Start its process, which reads the weights in shared memory."""
        self._weights = shared(self._learners.flat())
        self.supervised.start()

    def _begin(self) -> Piped:
        self._died_filming = self._died_filming or bool(self._pulse[FILMING])
        self._pulse = new_pulse()
        players = [(plan.config, plan.spec) for plan in self._learners.acting]
        arguments = (self._config, players, self._run_dir, self._weights, self._pulse)
        self._piped = Piped(lambda pipe: spawn(evaluating.run, (*arguments, pipe), "evaluator"), self._hear)
        if self._busy:
            self._busy, self._wanted = False, True
            self._send()
        return self._piped

    @property
    def busy(self) -> bool:
        """See `Evaluator`."""
        return self._busy

    def request(self) -> None:
        """See `Evaluator`."""
        self._wanted = True
        self._send()

    def _send(self) -> None:
        if self._busy or not self._wanted or self._piped is None:
            return
        self._weights.copy_(self._learners.flat())
        self._critics = Critics(self._learners)
        self._busy, self._wanted = True, False
        filmed = self._videos.due() and not self._died_filming
        # The frames of now, not those at the request, which may be long ago.
        self._piped.send((self._learners.total_frames(), time.monotonic(), filmed))

    def _hear(self, answer: Evaluation | str) -> str:
        if isinstance(answer, str):
            return answer
        if self._died_filming:
            answer, self._died_filming = replace(answer, no_video="the evaluator died or hung as it drew"), False
        self._answer = self._critics.judged(self._videos.look(answer))
        return ""

    def poll(self) -> Evaluation | None:
        """See `Evaluator`."""
        if self._piped is not None:
            self._piped.listen()
        if self._answer is None:
            return None
        answer, self._answer, self._busy = self._answer, None, False
        self._send()
        return answer

    def stop(self) -> None:
        """See `Evaluator`."""
        self._pulse[1] = 1.0
        if self._piped is not None:
            self._piped.pipe.close()

    def close(self) -> None:
        """Do nothing: the supervisor ends the process."""


class LocalEvaluator:
    """Evaluates at once in this process.

    Args:
        config: of the run.
        run_dir: the run folder.
        learners: whose weights are evaluated.
    """

    def __init__(self, config: Config, run_dir: Path, learners: Learners) -> None:
        self._config, self._run_dir, self._learners = config, run_dir, learners
        self._result: Evaluation | None = None
        self._videos = Videos(config.evaluator.video_every)
        self._judges: list[Judge] = []  # one, once it is started
        self._trace = open_trace(config, "evaluator")

    def start(self) -> None:
        """Make the environments."""
        players = [(plan.config, plan.spec) for plan in self._learners.acting]
        with seeds.apart({}):  # environments and policies draw from the generators that training draws from too
            seeds.seed_globals(self._config.seed, "evaluator")
            self._judges.append(Judge(self._config, players, self._run_dir))
        self._trace.follow(self._judges[0], "evaluate", "evaluate", self._judges[0].agents)

    @property
    def busy(self) -> bool:
        """See `Evaluator`."""
        return self._result is not None

    def request(self) -> None:
        """Evaluate the present weights at once."""
        flat: Tensor = self._learners.flat()
        critics = Critics(self._learners)
        with seeds.apart({}):
            self._result = self._judges[0].evaluate(flat, self._learners.total_frames(), time.monotonic())
            if self._videos.due() and self._result is not None:
                self._result = self._videos.look(self._judges[0].film(self._result))
        if self._result is not None:
            self._result = critics.judged(self._result)

    def poll(self) -> Evaluation | None:
        """See `Evaluator`."""
        result, self._result = self._result, None
        return result

    def stop(self) -> None:
        """Do nothing: there is no process."""

    def close(self) -> None:
        """Close the environments."""
        for judge in self._judges:
            judge.close()
            save_or_say(self._trace)
        self._judges = []
