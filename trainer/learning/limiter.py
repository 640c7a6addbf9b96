"""Hold the ratio of updates to frames: the only limit between collection and learning.

The idea is that of Reverb's SampleToInsertRatio (Cassirer et al. 2021, arXiv:2102.04736, section 3.4), in units of
updates and frames.
"""

from __future__ import annotations

import math

NO_LIMIT = 2**62


class Limiter:
    """Holds the ratio of updates to frames, for both sides.

    After `warmup_frames` one update is due for each `frames_per_update` frames. Learning makes no update before it is
    due; collection may be ahead of learning by the frames of one update and `tolerance_frames`.

    Args:
        budget_frames: at which collection ends.
        warmup_frames: frames before the first update; no updates are due for them.
        frames_per_update: inverse of the replay ratio; None: neither side waits for the other.
        tolerance_frames: how far collection may be ahead.
        episodes_per_update: None, or used in place of `frames_per_update`: one update is due for so many finished
            episodes. Episodes of the warm-up count, but no update is made before its end.
        tolerance_episodes: how far collection may be ahead in this case.
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
        """Number of updates that may be made now, after so many frames and episodes; infinite without a limit."""
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
        """Number of frames that collection may reach now."""
        if self.frames_per_update is None or self.episodes_per_update is not None:
            return self.budget_frames
        ahead = math.ceil((self.updates - self._before + 1) * self.frames_per_update) + self.tolerance_frames
        return min(self.budget_frames, self.warmup_frames + ahead)

    def episode_limit(self, frames: int) -> int:
        """Number of finished episodes that collection may reach now; without a limit during the warm-up."""
        if self.episodes_per_update is None or frames < self.warmup_frames:
            return NO_LIMIT
        ahead = math.ceil((self.updates - self._before + 1) * self.episodes_per_update) + self.tolerance_episodes
        return self._episodes_before + ahead

    def begin_again(self, frames: int, episodes: int = 0) -> None:
        """Go on with an empty replay: a warm-up comes first, and no updates are due for the frames before."""
        self._before, self._episodes_before = self.updates, episodes
        self.warmup_frames = min(frames + self._warm_up, self.budget_frames)

    def settled(self, frames: int, episodes: int = 0) -> bool:
        """Whether all updates that are due have been made; always True without a limit."""
        return self.due(frames, episodes) in (0, math.inf)

    def finished(self, frames: int, episodes: int = 0) -> bool:
        """Whether the budget is collected and all updates that are due have been made."""
        return frames >= self.budget_frames and self.settled(frames, episodes)

    def state_dict(self) -> dict[str, int]:
        """The counts, for a checkpoint."""
        return {
            "updates": self.updates, "before": self._before, "warmup_frames": self.warmup_frames,
            "episodes_before": self._episodes_before,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint."""
        self.updates, self._before = state["updates"], state["before"]
        self.warmup_frames, self._episodes_before = state["warmup_frames"], state.get("episodes_before", 0)
