"""What a run takes over from the one that it goes on with; `trainer.system` starts the processes from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from trainer import checkpoint
from trainer.agents import AgentPlan
from trainer.checkpoint import CheckpointError
from trainer.replay import close_episodes
from trainer.replay_copy import ReplayCopy
from trainer.system import Resumed, System, snapshot_path


def restore(system: System) -> None:
    """Load every agent's newest checkpoint and replay into a system that is built and not yet started.

    What cannot be read is named, and what was before it is taken; without any checkpoint the run begins anew.
    """
    loggers, run = system.loggers, {}
    try:
        run = checkpoint.load(system.run_dir / "checkpoints" / "last_policy.pt")
    except CheckpointError as error:
        loggers.event(f"warning: {error}")
    whole = [_restore_agent(system, plan, run.get("frames")) for plan in system.plans]
    exact = system.config.schedule.name != "async" and all(whole) and _has_snapshots(system, run)
    if not exact:
        for plan in system.plans:
            _close_all(plan)
    if system.config.schedule.name != "async" and not exact:
        loggers.event(
            "the workers begin new episodes, so this run will not be bit-identical to one that was not stopped: it was "
            "stopped within a round, its workers are others now, or its environment cannot tell its state"
        )
    kept = run.get("run", {})
    system.resumed = Resumed(list(kept.get("starts", [])), exact, kept)
    loggers.event(
        f"goes on after {system.total_frames()} frames and "
        f"{sum(int(plan.board.updates[0]) for plan in system.plans)} updates"
    )


def _restore_agent(system: System, plan: AgentPlan, frames: int | None) -> bool:
    """Load an agent; whether it is as it was after ``frames`` frames of the run, replay and all."""
    loggers = system.loggers
    found = checkpoint.newest(plan.folder, lambda text: loggers.event(f"warning: {text}", agent=plan.name))
    if found is None:
        loggers.event(f"warning: there is no checkpoint in {plan.folder} yet: {plan.name} begins anew", agent=plan.name)
        return False
    agent = next((agent for agent in system.agents if agent.plan is plan), None)
    board, of_workers = plan.board, found["frames_of_workers"]
    if len(of_workers) == len(board.frames):
        board.frames[:] = of_workers
    else:
        board.frames[0] = sum(of_workers)
    board.episodes_before[0] = found.get("episodes_done", 0)
    if "episodes" in found:  # only the main process knows them
        system.telemetry[plan.number].episodes.load_state_dict(found["episodes"])
    try:
        if found["replay"] is None:
            raise ValueError("it was not kept, as checkpoint.replay=false asks for")
        if agent is not None:
            agent.load_replay(found["replay"], found["sampler"])
        else:  # its own process makes the sampler
            copy = ReplayCopy(
                plan.folder.parent / "replay", plan.storage, plan.streams, board.cursor, plan.spec.stack - 1
            )
            _, board.oldest[:] = copy.load(found["replay"])
    except (OSError, ValueError) as error:
        loggers.event(
            f"warning: the replay of {plan.name} is gone ({error}): learning waits until a new one is warm",
            agent=plan.name,
        )
        board.cursor[:] = 0
        board.lost_at[0] = board.total_frames()
    if agent is not None:
        agent.load_state_dict(found, with_sampler=False)
    board.updates[0] = found["limiter"]["updates"]
    for learner in system.learners:
        if learner.plan is plan:
            learner.limiter.load_state_dict(found["limiter"])
            if board.lost_at[0]:
                learner.limiter.begin_again(int(board.lost_at[0]), int(board.episodes_before[0]))
    if board.lost_at[0]:
        return False
    return found["frames"] == frames and found["replay"]["streams"] == asdict(plan.streams)


def _has_snapshots(system: System, run: dict[str, Any]) -> bool:
    for worker in range(system.plans[0].streams.num_workers):
        try:
            state = checkpoint.load(snapshot_path(system.run_dir, worker))
        except CheckpointError:
            return False
        if state["number"] != run["frames"] or state["world"] is None:
            return False
    return True


def _close_all(plan: AgentPlan) -> None:
    columns = {name: column.numpy() for name, column in plan.storage._storage.items()}
    close_episodes(columns, plan.streams, np.arange(plan.streams.num_streams), plan.board.cursor.copy())
