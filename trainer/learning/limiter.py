"""Samples per insert: the only brake between collection and learning.

Idea: Reverb's SampleToInsertRatio (Cassirer et al. 2021, arXiv:2102.04736, section 3.4), in units of updates and
frames.
"""

from __future__ import annotations

import math

NO_LIMIT = 2**62


class Limiter:
    """Keeps updates and frames within a band of their ratio, on both sides.

    After `warmup_frames` one update is due every `frames_per_update` frames. Learning may not run ahead of what is
    due; collection may run ahead of learning by `tolerance_frames` beyond one update's frames.

    Args:
        budget_frames: collection ends here.
        warmup_frames: frames before the first update; they are owed no updates.
        frames_per_update: inverse of the replay ratio in updates per frame; None: neither side ever waits for the
            other.
        tolerance_frames: width of the band.
        episodes_per_update: None, or what takes the place of `frames_per_update`: one update is due for so many
            finished episodes, those of the warm-up counted, though none is made before its end.
        tolerance_episodes: width of the band then.
    """

    def __init__(
        self, budget_frames: int, warmup_frames: int, frames_per_update: float | None, tolerance_frames: int,
        episodes_per_update: float | None = None, tolerance_episodes: int = 1,
    ) -> None:  # fmt: skip
        self.budget_frames = budget_frames
        self.warmup_frames = warmup_frames
        self.frames_per_update = frames_per_update
        self.tolerance_frames = tolerance_frames
        self.episodes_per_update, self.tolerance_episodes = episodes_per_update, tolerance_episodes
        self.updates = 0
        self._warm_up = warmup_frames  # of an empty replay
        self._before = 0  # of them, those that were made before a resumed run's replay was lost
        self._episodes_before = 0  # finished until then

    def due(self, frames: int, episodes: int = 0) -> float:
        """Updates that may be made now, after so many frames and finished episodes; infinite without a limit."""
        if frames < self.warmup_frames:
            return 0
        if self.episodes_per_update is not None:
            owed = math.floor((episodes - self._episodes_before) / self.episodes_per_update)
        elif self.frames_per_update is not None:
            owed = math.floor((frames - self.warmup_frames) / self.frames_per_update)
        else:
            return math.inf
        return max(0, owed - (self.updates - self._before))

    def frame_limit(self) -> int:
        """Frames that collection may reach now."""
        if self.frames_per_update is None or self.episodes_per_update is not None:
            return self.budget_frames
        ahead = math.ceil((self.updates - self._before + 1) * self.frames_per_update) + self.tolerance_frames
        return min(self.budget_frames, self.warmup_frames + ahead)

    def episode_limit(self, frames: int) -> int:
        """Finished episodes that collection may reach now, after `frames` frames; no limit while it is warm-up."""
        if self.episodes_per_update is None or frames < self.warmup_frames:
            return NO_LIMIT
        ahead = math.ceil((self.updates - self._before + 1) * self.episodes_per_update) + self.tolerance_episodes
        return self._episodes_before + ahead

    def begin_again(self, frames: int, episodes: int = 0) -> None:
        """Go on with an empty replay: first comes a warm-up, and nothing is owed for what was before."""
        self._before, self._episodes_before = self.updates, episodes
        self.warmup_frames = min(frames + self._warm_up, self.budget_frames)

    def settled(self, frames: int, episodes: int = 0) -> bool:
        """Whether every update that is due is made; without a limit, always."""
        return self.due(frames, episodes) in (0, math.inf)

    def finished(self, frames: int, episodes: int = 0) -> bool:
        """Whether the budget is collected and every update that it is owed is made."""
        return frames >= self.budget_frames and self.settled(frames, episodes)

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {
            "updates": self.updates, "before": self._before, "warmup_frames": self.warmup_frames,
            "episodes_before": self._episodes_before,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint."""
        self.updates, self._before = state["updates"], state["before"]
        self.warmup_frames, self._episodes_before = state["warmup_frames"], state.get("episodes_before", 0)
