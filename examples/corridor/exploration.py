"""An exploration: a rate that falls by half every so many frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def halving(section: Any, num_streams: int, streams: slice, every_frames: int = 1_000) -> Callable[[int], Any]:
    """`collector.exploration=corridor.exploration:halving collector.exploration_kwargs.every_frames=500`.

    Args:
        section: the section `collector` of the configuration.
        num_streams: number of environments of all workers.
        streams: those of this worker.
        every_frames: frames after which the rate has fallen by half.

    Returns:
        A function of the frames collected so far: the rate of this worker's environments, one number or an array with
        one for each, and its mean for the metrics.
    """

    def rates(frames: int) -> tuple[float, float]:
        rate = max(section.epsilon_end, section.epsilon_start * 0.5 ** (frames / every_frames))
        return rate, rate

    return rates
