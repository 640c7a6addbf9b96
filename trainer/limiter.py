"""Samples per insert: the only brake between collection and learning.

Idea: Reverb's SampleToInsertRatio (Cassirer et al. 2021, arXiv:2102.04736, section 3.4), in units of updates and
frames.
"""

from __future__ import annotations

import math


class Limiter:
    """Keeps updates and frames within a band of their ratio, on both sides.

    After ``warmup_frames`` one update is due every ``frames_per_update`` frames. Learning may not run ahead of what is
    due; collection may run ahead of learning by ``tolerance_frames`` beyond one update's frames.

    Args:
        budget_frames: collection ends here.
        warmup_frames: frames before the first update; they are owed no updates.
        frames_per_update: inverse of the replay ratio in updates per frame; None: neither side ever waits for the
            other.
        tolerance_frames: width of the band.
    """

    def __init__(
        self, budget_frames: int, warmup_frames: int, frames_per_update: float | None, tolerance_frames: int
    ) -> None:
        self.budget_frames = budget_frames
        self.warmup_frames = warmup_frames
        self.frames_per_update = frames_per_update
        self.tolerance_frames = tolerance_frames
        self.updates = 0
        self._before = 0  # of them, those that were made before a resumed run's replay was lost

    def due(self, frames: int) -> float:
        """Updates that may be made now, after ``frames`` frames; infinite when there is no limit."""
        if frames < self.warmup_frames:
            return 0
        if self.frames_per_update is None:
            return math.inf
        owed = math.floor((frames - self.warmup_frames) / self.frames_per_update)
        return max(0, owed - (self.updates - self._before))

    def frame_limit(self) -> int:
        """Frames that collection may reach now."""
        if self.frames_per_update is None:
            return self.budget_frames
        ahead = math.ceil((self.updates - self._before + 1) * self.frames_per_update) + self.tolerance_frames
        return min(self.budget_frames, self.warmup_frames + ahead)

    def begin_again(self, frames: int) -> None:
        """Go on after ``frames`` frames with an empty replay: first comes a warm-up, for which no update is owed."""
        self._before = self.updates
        self.warmup_frames = min(frames + self.warmup_frames, self.budget_frames)

    def settled(self, frames: int) -> bool:
        """Whether every update that is due after ``frames`` frames is made; without a limit, always."""
        return self.frames_per_update is None or self.due(frames) == 0

    def finished(self, frames: int) -> bool:
        """Whether the budget is collected and every update that it is owed is made."""
        return frames >= self.budget_frames and self.settled(frames)

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"updates": self.updates, "before": self._before, "warmup_frames": self.warmup_frames}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint."""
        self.updates, self._before = state["updates"], state["before"]
        self.warmup_frames = state["warmup_frames"]
