"""State of the training loop: what is due next, and the time in training."""

from __future__ import annotations

import time
from typing import Any

from trainer.telemetry.metrics import Every, EverySeconds
from trainer.training.system import SUPERVISE_EVERY_S, System


class Loop:
    """State of the training loop.

    Args:
        system: to train; its `kept` has the state of a run that is resumed.
    """

    def __init__(self, system: System) -> None:
        config, self.system = system.config, system
        self.evaluating = False  # whether an evaluation had not ended, and must be repeated after a resume
        self.evaluate_every = Every(config.evaluator.every_frames)
        self.save_every = EverySeconds(config.checkpoint.save_every_seconds)
        self.log_every = EverySeconds(config.logger.every_seconds)
        self.supervise_every = EverySeconds(SUPERVISE_EVERY_S)
        self.policy_every = Every(config.checkpoint.policy_every_frames)
        self.snapshot_every = Every(config.opponents.snapshot_every_frames)
        self.wall_s = 0.0  # of the runs that this one resumes
        self.whole = True  # whether no round is going on
        if system.kept:
            self.load_state_dict(system.kept)
        self.start = time.monotonic() - self.wall_s

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {
            "wall_s": time.monotonic() - self.start,
            "evaluate_every": self.evaluate_every.state_dict(),
            "policy_every": self.policy_every.state_dict(),
            "snapshot_every": self.snapshot_every.state_dict(),
            "evaluating": self.system.evaluator.busy,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.wall_s, self.evaluating = state["wall_s"], state["evaluating"]
        self.evaluate_every.load_state_dict(state["evaluate_every"])
        self.snapshot_every.load_state_dict(state["snapshot_every"])
        if "policy_every" in state:  # older checkpoints lack it
            self.policy_every.load_state_dict(state["policy_every"])
