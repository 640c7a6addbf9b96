"""How collection and learning take turns: generators that do a slice of work and yield.

The training loop looks around between two slices. Each schedule costs one line in ``SCHEDULES``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from trainer.metrics import EverySeconds
from trainer.processes.learner import feed
from trainer.system import SUPERVISE_EVERY_S, System

IDLE_S = 2e-4  # between two looks of a learner that has nothing due


def run_async(system: System) -> Iterator[None]:
    """Collectors run free; the limiter is the only brake, on either side."""
    config, board, limiter = system.config, system.board, system.limiter
    board.frame_limit[0] = limiter.frame_limit()
    while not limiter.finished(board.total_frames()):
        frames = board.total_frames()
        due = min(limiter.due(frames), config.learner.prefetch_batches)
        if due:
            system.anneal(frames)
            for batch in feed(system.replay, system.device, int(due)):
                system.update(batch)
            board.frame_limit[0] = limiter.frame_limit()
        else:
            time.sleep(IDLE_S)
            system.telemetry.learner_waited_s += IDLE_S
        yield


def run_sync(system: System) -> Iterator[None]:
    """The workers collect a round, then come its updates, then new weights: as ``sequential``, in several processes."""
    board, period = system.board, EverySeconds(SUPERVISE_EVERY_S)

    def collect() -> None:
        board.round[0] += 1
        while (board.rounds_done < board.round[0]).any() and not system.stop.number:
            time.sleep(IDLE_S)
            if period.crossed():
                system.check()

    return _rounds(system, collect)


def run_sequential(system: System) -> Iterator[None]:
    """Everything in one process, worker after worker: the reference, and for debugging."""

    def collect() -> None:
        system.board.round[0] += 1
        for rollout in system.rollouts:
            rollout.collect_round()

    return _rounds(system, collect)


def _rounds(system: System, collect: Callable[[], None]) -> Iterator[None]:
    config, board, limiter = system.config, system.board, system.limiter
    while board.total_frames() < config.budget_frames and not system.stop.number:
        board.schedule_frames[0] = board.total_frames()  # exploration does not depend on who is faster
        collect()
        yield
        frames = board.total_frames()
        system.anneal(frames)
        due = limiter.due(frames)
        if config.schedule.updates_per_round is not None:
            due = config.schedule.updates_per_round if frames >= config.learner.warmup_frames else 0
        while due > 0 and not system.stop.number:
            chunk = int(min(due, config.learner.prefetch_batches))
            for batch in feed(system.replay, system.device, chunk):
                system.update(batch)
            due -= chunk
            yield
        system.publish()


SCHEDULES: dict[str, Callable[[System], Iterator[None]]] = {
    "async": run_async,
    "sync": run_sync,
    "sequential": run_sequential,
}
