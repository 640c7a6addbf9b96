"""Measure a running system: rates, returns and waiting times, as rows for the loggers."""

from __future__ import annotations

import math
import time

import numpy as np

from trainer.config.sections import Config
from trainer.memory.boards import VERSIONS_KEPT, AgentBoard, ControlBoard
from trainer.telemetry.metrics import Rate, ReturnWindow, bottleneck
from trainer.telemetry.rows import Row


class Telemetry:
    """Rates, returns and shares of waiting time of one agent, between two rows.

    Args:
        config: of the agent.
        control: the control board, which has the collectors' waiting times.
        board: of the agent.
        capacity_rows: rows that the agent's replay can hold.
    """

    def __init__(self, config: Config, control: ControlBoard, board: AgentBoard, capacity_rows: int) -> None:
        self.config, self.control, self.board, self.capacity_rows = config, control, board, capacity_rows
        self.start = time.monotonic()
        self.episodes = ReturnWindow()
        self._seen = np.zeros(len(board.frames), np.int64)
        self._frames, self._updates = Rate(), Rate()
        self._last = (self.start, math.nan, math.nan)  # of the last row: time, waiting times of collectors and learner

    def policy_lag(self, updates: int) -> float:
        """Updates that the learner has made since the weights that the workers hold, mean over the workers."""
        held = self.board.version_updates[self.board.version % VERSIONS_KEPT]
        return updates - float(np.mean(np.where(self.board.version > 0, held, 0)))

    def row(self, updates: int, metrics: dict[str, float]) -> Row:
        """Build a row of training, see `trainer.telemetry.rows.TRAINING`.

        Args:
            updates: that the agent's learner has made.
            metrics: more of the row, from the learner.
        """
        board, config, now = self.board, self.config, time.monotonic()
        frames = board.total_frames()
        seen = self._seen.copy()
        for episode_return, length, _ in board.read_episodes(self._seen):
            self.episodes.add(float(episode_return), int(length))
        for name, values in board.read_info(seen, self._seen):
            self.episodes.add_info(name, values)
        then, collectors_then, learner_then = self._last
        collectors_now, span = float(self.control.waited_s.mean()), max(now - then, 1e-9)
        learner_now = float(board.learner_waited_s[0])
        self._last = (now, collectors_now, learner_now)
        frames_per_s = self._frames.observe(frames, now)
        schedule = config.schedule
        frames_per_update = schedule.frames_per_update if schedule.episodes_per_update is None else None
        trained_on = frames - config.learner.warmup_frames
        replay_ratio = updates / trained_on if trained_on > 0 else math.nan
        collectors_waiting = min((collectors_now - collectors_then) / span, 1.0)  # NaN in the first row
        learner_waiting = min((learner_now - learner_then) / span, 1.0)
        side, reason = bottleneck(
            collectors_waiting, learner_waiting, replay_ratio, frames_per_update and 1 / frames_per_update
        )
        return {
            "frames": frames,
            "updates": updates,
            "wall_s": now - self.start,
            "frames_per_s": frames_per_s,
            "updates_per_s": self._updates.observe(updates, now),
            **self.episodes.row(),
            "epsilon_mean": float(board.epsilon.mean()) if frames else math.nan,  # unknown before the first action
            "replay_fill": min(1.0, float(board.cursor.sum()) / self.capacity_rows),
            "replay_ratio": replay_ratio,
            "policy_lag_updates": self.policy_lag(updates),
            "share_collectors_waiting": collectors_waiting,
            "share_learner_waiting": learner_waiting,
            "bottleneck": side,
            "bottleneck_reason": reason,
            "eta_s": (config.budget_frames - frames) / frames_per_s if frames_per_s > 0 else math.nan,
            **metrics,
        }
