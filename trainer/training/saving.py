"""A run's checkpoint: every agent's own, the shared agent's, and the policy to play by; ``resume.py`` reads them."""

from __future__ import annotations

import time
from typing import Any

from trainer.learning.determinism import generator_states
from trainer.roles import evaluator as evaluating
from trainer.run_folder import checkpoint
from trainer.training.system import System

SNAPSHOT_S = 5.0  # that workers may take to write down where they stand
POLL_S = 2e-4


def save(system: System, frames: int, whole: bool, more: dict[str, Any]) -> None:
    """A checkpoint of every agent after ``frames`` frames, and the policy to play by; written aside and renamed.

    Args:
        system: the run.
        frames: that it has.
        whole: no round is going on: where the schedule has rounds, a run goes on from here as if never stopped.
        more: what the training loop keeps of itself.

    Raises:
        OSError: the disk refuses; what was there before is still there.
    """
    start = time.monotonic()
    if whole and system.config.schedule.kind.resumes_exactly:
        _snapshots(system, frames)
    for agent in system.agents:  # all of them, or the frozen ones where others learn in their own processes
        agent.save(frames)
    saves = [learner.saves + learner.restarts for learner in system.learners]
    for learner in system.learners:
        learner.save(frames)
    if system.shared is not None:
        _save_shared(system, frames, saves)
    if system.pool is not None:
        system.pool.save(system.run_dir / "pool")
    run = {**more, "starts": _starts(system), **generator_states()}
    if system.pool is not None:
        run["pool"] = system.pool.state_dict()
    run["episodes"] = {
        plan.name: own.episodes.state_dict() for plan, own in zip(system.plans, system.telemetry, strict=True)
    }
    path = system.run_dir / "checkpoints" / "last_policy.pt"
    evaluating.save_policy(path, system.flat(), frames, float("nan"), run=run)
    if system.pool is not None:
        system.pool.forget(system.run_dir / "pool")
    system.checkpoint_s = time.monotonic() - start
    system.checkpoint_bytes = sum(agent.copy.bytes_written for agent in system.agents)


def _save_shared(system: System, frames: int, saves: list[int]) -> None:
    """The shared agent, while all local agents wait between two rounds; one that died is not waited for.

    Nor is one that is not yet up, which may hang as it makes its environments, where nobody has a frame to keep.
    """
    assert system.shared is not None
    patience_s = SNAPSHOT_S if frames or all(own.up for own in system.learners) else 0.0
    deadline, whole = time.monotonic() + patience_s, False
    while time.monotonic() < deadline and not whole and all(own.alive for own in system.learners):
        for learner in system.learners:
            learner.read()
        whole = all(own.saves + own.restarts > before for own, before in zip(system.learners, saves, strict=True))
        if not system.shared.agent.serve():  # a round that is to end first may wait for it
            time.sleep(POLL_S)
    state = {"shared": system.shared.agent.state_dict(), "frames": frames, "whole": whole}
    try:
        checkpoint.save(system.run_dir / "checkpoints", state, frames, system.config.checkpoint.keep_last)
    finally:
        for learner in system.learners:
            learner.go_on()


def _starts(system: System) -> list[int]:
    """How often each worker was started until now, in this run and in those that it resumes."""
    if system.shared is not None:
        known = [*system.resumed.starts, *[0] * len(system.plans)]
        return [start + own.restarts + 1 for start, own in zip(known, system.learners, strict=False)]
    plans = system.collector_plans() if system.collectors is None else system.collectors.plans
    return [plan.start + 1 for plan in plans]


def _snapshots(system: System, number: int) -> None:
    """Every worker's state, for the checkpoint of that number; they wait for their next round."""
    for rollout in system.rollouts:
        rollout.save_snapshot(number)
    board, deadline = system.board, time.monotonic() + SNAPSHOT_S
    if system.collectors is None:
        return
    board.snapshot[0] = number
    while (board.snapshots_done < number).any() and time.monotonic() < deadline:
        if any(process.exitcode is not None for process in system.collectors.processes):
            return  # check() says so; a checkpoint without its snapshots is a whole one all the same
        time.sleep(POLL_S)
