"""Local agents, which act and compute gradients in a process each, with one shared network and optimiser."""

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

SNAPSHOT_S = 5.0  # most time for local agents to end their round and to save
POLL_S = 2e-4
KEPT = ("frames", "shared", "whole")  # keys of the checkpoint


class SharedLearners:
    """See `trainer.training.learners.Learners`.

    Args:
        config: of the run.
        plans: of the local agents.
        agent: the shared weights and optimiser, in shared memory or on the device.
        updater: of the same network, into which the weights are copied to read them.
        controls: control board of each local agent.
        folder: of the shared agent's checkpoints.
        remote: processes of the local agents.
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
        """Do nothing: local agents compute the gradients."""

    def prepare(self) -> None:
        """Do nothing: local agents compute the gradients."""

    def start(self) -> None:
        """Start the processes of the local agents."""
        for learner in self.remote:
            learner.supervised.start()

    def total_frames(self) -> int:
        """Number of transitions of all local agents together."""
        return sum(plan.board.total_frames() for plan in self.plans)

    def settled(self) -> bool:
        """See `Learners`; a fixed number of updates for each round is made within the round."""
        return self.config.schedule.updates_per_round is not None or all(one.settled() for one in self.remote)

    def open_limits(self) -> None:
        """Do nothing: each local agent collects rounds by itself."""

    def work(self) -> bool:
        """Apply the gradients that wait for this process; returns whether there was any."""
        return self.agent.serve()

    def waited(self, seconds: float) -> None:
        """Do nothing: this process does not wait for frames."""

    def begin_round(self) -> None:
        """Do nothing: each local agent begins rounds by itself."""

    def round_updates(self) -> Iterator[None]:
        """Do nothing: each local agent makes its updates."""
        yield from ()

    def publish(self) -> None:
        """Do nothing: local agents read the shared weights."""

    def flat(self) -> Tensor:
        """The shared weights, float32 [numel] on the CPU."""
        self.agent.pull(None, self.updater.trained)
        return flat_weights(self.updater.weights)

    def metrics(self, failed: bool) -> dict[str, dict[str, float]]:
        """Metrics by local agent, as each reported them last, with the counts of the shared optimiser."""
        return {one.plan.name: one.metrics | self.agent.metrics(one.plan.number) for one in self.remote}

    def totals(self, rows: Sequence[Row]) -> Row:
        """Frames and speed of all local agents together, and the time that is left."""
        frames, frames_per_s = self.total_frames(), sum(float(row["frames_per_s"]) for row in rows)
        left = max(0, self.config.budget_frames - frames)
        eta_s = left / frames_per_s if frames_per_s > 0 else math.nan
        return {"frames": frames, "frames_per_s": frames_per_s, "eta_s": eta_s, **self.agent.totals()}

    def check_losses(self) -> None:
        """Do nothing: each process checks its losses."""

    def save(self, frames: int) -> None:
        """Ask each local agent for its checkpoint, and save the shared agent while all wait between two rounds.

        It does not wait for a local agent that died; nor, before the first frame, for one that is still making its
        environments, which may hang.
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
            if not self.agent.serve():  # a local agent may wait for it to end its round
                time.sleep(POLL_S)
        state = {"shared": self.agent.state_dict(), "frames": frames, "whole": whole}
        try:
            checkpoint.save(self._folder, state, frames, self.config.checkpoint.keep_last)
        finally:
            for one in self.remote:
                one.go_on()

    def load_replay(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Load a local agent's replay; its process makes the sampler."""
        load_rows(plan, found)

    def load_state_dict(self, plan: AgentPlan, found: dict[str, Any]) -> None:
        """Take the number of updates from a local agent's checkpoint, which its process loads."""
        for learner in self.remote:
            learner.expect(plan, found)

    def load_shared(self, torn: Callable[[Path, str], None]) -> bool:
        """Load the shared agent's newest checkpoint; returns whether it was saved between two rounds."""
        found = checkpoint.newest(self._folder, torn, *KEPT)
        if found is not None:
            self.agent.load_state_dict(found["shared"])
        return found is not None and bool(found["whole"])

    def report(self) -> dict[str, int]:
        """See `Learners`."""
        return {"redrawn_rows": 0, "learner_restarts": sum(learner.restarts for learner in self.remote)}

    def replay_bytes(self) -> int:
        """0: the local agents save their replays."""
        return 0

    def stop(self) -> None:
        """Ask all local agents to end, also those that wait for the shared agent."""
        for board in self.controls:
            board.command[0] = STOP
        self.agent.dismiss()

    def release(self) -> None:
        """Free the shared agent's memory.

        Raises:
            RuntimeError: the device has failed.
        """
        self.agent.close()
