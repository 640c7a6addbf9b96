"""Counters that turn totals and times into metrics, and the statistics behind some of them."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

BALANCED_MARGIN = 0.1  # there is no bottleneck where the shares of waiting time differ by less


class Rate:
    """Events per second over a window of recent time, from a running total.

    A total that falls empties the window: the process that counts was restarted, and counts from zero.

    Args:
        window_s: length of the window in seconds; the rate reaches back at most one observation further.
    """

    def __init__(self, window_s: float = 10.0) -> None:
        self.window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()  # (time in s, total), oldest first

    def observe(self, total: float, now: float | None = None) -> float:
        """Take the total count at time `now` (seconds, monotonic clock by default) and return the rate in 1/s."""
        now = time.monotonic() if now is None else now
        if self._seen and total < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.window_s:
            self._seen.popleft()
        return self.value

    @property
    def value(self) -> float:
        """Rate in 1/s over the window; NaN before the second observation."""
        if len(self._seen) < 2:
            return math.nan
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start) if end > start else math.nan


class ReturnWindow:
    """Returns (undiscounted sums of reward) and lengths (frames) of the last `size` training episodes."""

    def __init__(self, size: int = 100) -> None:
        self.episodes = 0  # all episodes ever added, not only those in the window
        self._returns: deque[float] = deque(maxlen=size)
        self._lengths: deque[int] = deque(maxlen=size)
        self._info: dict[str, deque[float]] = {}  # of `size` episodes whose `info` has the scalar of this name

    def add(self, episode_return: float, length: int) -> None:
        """Add one finished episode."""
        self.episodes += 1
        self._returns.append(float(episode_return))
        self._lengths.append(int(length))

    def add_info(self, name: str, values: Iterable[float]) -> None:
        """Add what `info` held at the end of episodes."""
        self._info.setdefault(name, deque(maxlen=self._returns.maxlen)).extend(map(float, values))

    def row(self) -> dict[str, float | int]:
        """`episodes`, `return_mean`, `return_min`, `return_max`, `length_mean_frames`; NaN before the first episode.

        And `info_<key>` for every scalar of `info`.
        """
        if not self._returns:
            unknown = ("return_mean", "return_min", "return_max", "length_mean_frames")
            return {"episodes": self.episodes, **dict.fromkeys(unknown, math.nan)}
        return {
            "episodes": self.episodes,
            "return_mean": statistics.fmean(self._returns),
            "return_min": min(self._returns),
            "return_max": max(self._returns),
            "length_mean_frames": statistics.fmean(self._lengths),
            **{f"info_{name}": statistics.fmean(values) for name, values in self._info.items() if values},
        }

    def state_dict(self) -> dict[str, Any]:
        """The window and the count, for a checkpoint."""
        return {
            "episodes": self.episodes,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "info": {name: list(values) for name, values in self._info.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of an earlier `state_dict`."""
        self.episodes = state["episodes"]
        self._returns.clear()
        self._returns.extend(state["returns"])
        self._lengths.clear()
        self._lengths.extend(state["lengths"])
        self._info.clear()
        for name, values in state.get("info", {}).items():  # which older checkpoints lack
            self.add_info(name, values)


class Every:
    """Whether a count has crossed a multiple of `period` since the last call.

    Counts of asynchronous processes jump, so `count % period == 0` would miss most multiples.

    Args:
        period: in the count's unit; with 0 or less no multiple is ever crossed.
        start: the count to begin with; multiples up to it count as crossed before.
    """

    def __init__(self, period: int, start: int = 0) -> None:
        self.period = period
        self._last = start

    def crossed(self, count: int) -> bool:
        """True when at least one multiple lies in (count of the last call, count]."""
        crossed = self.period > 0 and count // self.period > self._last // self.period
        self._last = max(self._last, count)
        return crossed

    def state_dict(self) -> dict[str, int]:
        """The count of the last call; the period belongs to the configuration."""
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take up the state of an earlier `state_dict`."""
        self._last = state["last"]


class EverySeconds:
    """Whether a multiple of `period_s` seconds after the start has passed since the last call.

    The multiples are counted from the start, so late calls cause no drift. With a period of 0 or less none ever passes.
    """

    def __init__(self, period_s: float, now: float | None = None) -> None:
        self.period_s = period_s
        self._start = time.monotonic() if now is None else now
        self._last = 0  # number of the last multiple that was answered

    def crossed(self, now: float | None = None) -> bool:
        """True when at least one multiple has passed; `now` in seconds, monotonic clock by default."""
        if self.period_s <= 0:
            return False
        now = time.monotonic() if now is None else now
        passed = math.floor((now - self._start) / self.period_s)
        crossed = passed > self._last
        self._last = max(self._last, passed)
        return crossed


def bottleneck(
    share_collectors_waiting: float,
    share_learner_waiting: float,
    replay_ratio: float,
    target: float | None,
) -> tuple[str, str]:
    """Which side the other one waits for, and why: where collectors wait, learning is the bottleneck.

    Args:
        share_collectors_waiting: share of recent time that the collectors waited for the learner, 0 to 1 or NaN.
        share_learner_waiting: share of recent time that the learner waited for frames, 0 to 1 or NaN.
        replay_ratio: updates for each frame after warm-up, as measured; NaN before the first.
        target: replay ratio that the schedule holds; None where neither side is limited.

    Returns:
        ("collection" | "learning" | "balanced", the reason without a full stop).
    """
    collectors, learner = share_collectors_waiting, share_learner_waiting
    if math.isnan(collectors) or math.isnan(learner):
        return "balanced", "nothing has been measured yet"
    ratio = "" if math.isnan(replay_ratio) else f"replay ratio {replay_ratio:.3g}"
    aim = ratio if target is None else f"{ratio or 'no updates'}, target {target:.3g}"
    in_brackets = f" ({aim})" if aim else ""
    if collectors - learner > BALANCED_MARGIN:
        cause = "the learner" if target is None else "the replay-ratio limit"
        return "learning", f"collectors waited {100 * collectors:.0f} % of the time for {cause}{in_brackets}"
    if learner - collectors > BALANCED_MARGIN:
        return "collection", f"the learner waited {100 * learner:.0f} % of the time for new frames{in_brackets}"
    if max(collectors, learner) <= BALANCED_MARGIN:
        limit = ", and no replay-ratio limit is set" if target is None else ""
        return "balanced", f"neither side waits for the other{limit}{in_brackets}"
    return "balanced", (
        f"both sides wait alike, collectors {100 * collectors:.0f} % and the learner {100 * learner:.0f} %"
        f" of the time{in_brackets}"
    )


def wilson(points: float, games: int, z: float = 1.959964) -> tuple[float, float]:
    """Confidence interval (low, high) of the share of games won, by default of 95 % (Wilson 1927).

    Args:
        points: games won, draws counted as half; draws make the interval wider than necessary.
        games: above 0.
        z: quantile of the standard normal distribution.
    """
    share, square = points / games, z * z / games
    centre = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / games + square / games / 4)
    return max(0.0, centre - half), min(1.0, centre + half)
