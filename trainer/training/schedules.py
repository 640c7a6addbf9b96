"""How collection and learning take turns: generators that do a slice of work and yield.

The training loop looks around between two slices; a slice says whether a run that stops behind it can go on as if it
had not, for which a round must be over. Each schedule costs one line in ``SCHEDULES``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from trainer.roles.learner import IDLE_S, Learner, LearnerStack
from trainer.telemetry.metrics import EverySeconds
from trainer.telemetry.trace import all_of
from trainer.training.system import SUPERVISE_EVERY_S, System


def run_async(system: System) -> Iterator[bool]:
    """Collectors run free; the limiters are the only brake, on either side."""
    sleep = system.trace.waiting(time.sleep, "idle", all_of([agent.name for agent in system.agents]))
    period = EverySeconds(SUPERVISE_EVERY_S)
    for agent in system.agents:
        agent.open_limit()
    while not system.finished():
        if system.pool is not None and period.crossed():  # however seldom anything is logged
            system.pool.rebalance(system.total_frames() / system.config.budget_frames)
        if not system.work():
            sleep(IDLE_S)
            for agent in system.agents:
                agent.board.learner_waited_s[0] += IDLE_S
        yield True


def run_shared_gradient(system: System) -> Iterator[bool]:
    """The local agents do everything; this process looks on, or applies their gradients on the device."""
    assert system.shared is not None
    while not system.finished():
        if not system.shared.agent.serve():
            time.sleep(IDLE_S)
        yield True
    system.shared.agent.serve()  # what was sent by who did not wait for it


def run_sync(system: System) -> Iterator[bool]:
    """The workers collect a round, then come its updates, then new weights: as ``sequential``, in several processes."""
    board, period = system.board, EverySeconds(SUPERVISE_EVERY_S)
    sleep = system.trace.waiting(time.sleep, "idle", all_of([agent.name for agent in system.agents]))

    def collect() -> None:
        board.round[0] += 1
        while (board.rounds_done < board.round[0]).any():  # a signal that waits for long is raised in it
            sleep(IDLE_S)
            if period.crossed():
                system.check()

    return _rounds(system, collect)


def run_sequential(system: System) -> Iterator[bool]:
    """Everything in one process, worker after worker: the reference, and for debugging."""

    def collect() -> None:
        system.board.round[0] += 1
        for rollout in system.rollouts:
            rollout.collect_round()

    return _rounds(system, collect)


def _rounds(system: System, collect: Callable[[], None]) -> Iterator[bool]:
    config = system.config
    while (frames := system.total_frames()) < config.budget_frames:
        if system.pool is not None:  # by results of whole rounds, so that whom is played against depends on no clock
            system.pool.rebalance(frames / config.budget_frames)
        for agent in system.agents:
            agent.board.schedule_frames[0] = agent.board.total_frames()  # exploration depends on nobody's speed
        yield False  # from here on a stop is one within a round
        collect()
        yield False
        for worker in system.workers:
            yield from _updates(system, worker)
        system.publish()
        yield True


def _updates(system: System, worker: Learner | LearnerStack) -> Iterator[bool]:
    """All updates that a round owes, or that it is given; what an agent is owed depends on nobody else."""
    agents, fixed = worker.learners, system.config.schedule.updates_per_round
    owed = []
    for agent in agents:
        frames = agent.board.total_frames()
        agent.anneal(frames)
        due = agent.limiter.due(frames, agent.board.total_episodes())
        if fixed is not None:
            due = fixed if frames >= agent.limiter.warmup_frames else 0
        owed.append(0 if agent.frozen else int(due))
    while any(owed):
        chunk = [min(due, agent.config.learner.prefetch_batches) for agent, due in zip(agents, owed, strict=True)]
        worker.learn(chunk)
        owed = [due - done for due, done in zip(owed, chunk, strict=True)]
        yield False


SCHEDULES: dict[str, Callable[[System], Iterator[bool]]] = {
    "async": run_async,
    "sync": run_sync,
    "sequential": run_sequential,
    "shared_gradient": run_shared_gradient,
}
IN_ROUNDS = ("sync", "sequential")  # whose results depend on nobody's speed
