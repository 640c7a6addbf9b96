"""Local agents that act and learn in a process each, by one shared network and optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.config.sections import Config
from trainer.learning.update import Updater, flat_weights
from trainer.memory.boards import STOP, ControlBoard
from trainer.roles.agents import AgentPlan
from trainer.roles.learner import Learner
from trainer.run_folder import checkpoint
from trainer.shared_gradient.shared import SharedAgent
from trainer.shared_gradient.shared_device import DeviceAgent
from trainer.telemetry.rows import Row
from trainer.telemetry.trace import NoTrace, Trace
from trainer.training.learner_process import LearnerProcess
from trainer.training.remote_learners import load_rows

SNAPSHOT_S = 5.0  # that local agents may take to end their round and to save
POLL_S = 2e-4
KEPT = ("frames", "shared", "whole")  # of its checkpoint


class SharedLearners:
    """See `trainer.training.learners.Learners`.

    Args:
        config: the run.
        plans: of the local agents.
        agent: weights and optimiser, in shared memory or on the device.
        updater: of the same network, to look at the weights with.
        controls: control board of each local agent.
        folder: where the shared agent's checkpoints go.
        remote: the local agents' processes.
    """

    def __init__(
        self, config: Config, plans: Sequence[AgentPlan], agent: SharedAgent | DeviceAgent, updater: Updater,
        controls: Sequence[ControlBoard], folder: Path, remote: Sequence[LearnerProcess],
    ) -> None:  # fmt: skip
        self.config, self.plans, self.acting = config, list(plans), list(plans[:1])
        self.agent, self.updater, self.controls, self._folder = agent, updater, list(controls), folder
        self.local: list[Learner] = []
        self.remote = list(remote)

    def follow(self, trace: Trace | NoTrace) -> None:
        """Nothing is learned here."""

    def prepare(self) -> None:
        """Nothing is learned here."""

    def start(self) -> None:
        """Start the local agents."""
        for learner in self.remote:
            learner.supervised.start()

    def total_frames(self) -> int:
        """Transitions of all local agents together."""
        return sum(plan.board.total_frames() for plan in self.plans)

    def settled(self) -> bool:
        """Whether every update is made that the frames owe; a fixed number a round is made within the round."""
        return self.config.schedule.updates_per_round is not None or all(one.settled() for one in self.remote)

    def open_limits(self) -> None:
        """Each local agent collects rounds of its own."""

    def work(self) -> bool:
        """Apply the gradients that wait for this process; whether there was any."""
        return self.agent.serve()

    def waited(self, seconds: float) -> None:
        """Nobody has waited here for frames."""

    def begin_round(self) -> None:
        """Each local agent begins its own."""

    def round_updates(self) -> Iterator[None]:
        """Each local agent makes its own."""
        yield from ()

    def publish(self) -> None:
        """The shared weights are there for everyone."""

    def flat(self) -> Tensor:
        """The present shared weights."""
        self.agent.pull(None, self.updater.trained)
        return flat_weights(self.updater)

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """How learning goes, by local agent, as each has reported last, and what the shared optimiser counts."""
        return {one.plan.name: one.metrics | self.agent.metrics(one.plan.number) for one in self.remote}

    def totals(self, rows: Sequence[Row]) -> Row:
        """What all have collected together, and when the budget is used up by that."""
        frames, frames_per_s = self.total_frames(), sum(float(row["frames_per_s"]) for row in rows)
        left = max(0, self.config.budget_frames - frames)
        eta_s = left / frames_per_s if frames_per_s > 0 else math.nan
        return {"frames": frames, "frames_per_s": frames_per_s, "eta_s": eta_s, **self.agent.totals()}

    def check_losses(self) -> None:
        """Each process has looked at its own."""

    def save(self, frames: int) -> None:
        """Ask each for its checkpoint, and keep the shared agent while all wait between two rounds.

        One that died is not waited for; nor is one that is not yet up, which may hang as it makes its environments,
        where nobody has a frame to keep.
        """
        saves = [one.saves + one.restarts for one in self.remote]
        for one in self.remote:
            one.save(frames)
        patience_s = SNAPSHOT_S if frames or all(one.up for one in self.remote) else 0.0
        deadline, whole = time.monotonic() + patience_s, False
        while time.monotonic() < deadline and not whole and all(one.alive for one in self.remote):
            for one in self.remote:
                one.listen()
            whole = all(one.saves + one.restarts > before for one, before in zip(self.remote, saves, strict=True))
            if not self.agent.serve():  # a round that is to end first may wait for it
                time.sleep(POLL_S)
        state = {"shared": self.agent.state_dict(), "frames": frames, "whole": whole}
        try:
            checkpoint.save(self._folder, state, frames, self.config.checkpoint.keep_last)
        finally:
            for one in self.remote:
                one.go_on()

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Fill a local agent's replay; its own process makes the sampler."""
        load_rows(plan, found)

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Let a local agent go on from its checkpoint, which its own process reads."""
        for learner in self.remote:
            learner.expect(plan, found)

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Go on from the shared agent's newest checkpoint; whether all waited between two rounds then."""
        found = checkpoint.newest(self._folder, torn, *KEPT)
        if found is not None:
            self.agent.load_state_dict(found["shared"])
        return found is not None and bool(found["whole"])

    def report(self) -> dict[str, int]:
        """For the summary."""
        return {"redrawn_rows": 0, "learner_restarts": sum(learner.restarts for learner in self.remote)}

    def replay_bytes(self) -> int:
        """The local agents write theirs."""
        return 0

    def stop(self) -> None:
        """Ask all to end, and let none wait for the shared agent any more."""
        for board in self.controls:
            board.command[0] = STOP
        self.agent.dismiss()

    def release(self) -> None:
        """Give the shared agent's memory back.

        Raises:
            RuntimeError: the device has failed.
        """
        self.agent.close()
