"""What a run takes over from the one that it goes on with; `trainer.training.system` starts the processes from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainer import envs
from trainer.config.fields import ConfigError
from trainer.config.run_config import first_line
from trainer.config.sections import Config
from trainer.envs import EnvError
from trainer.reading import ReadError
from trainer.replay.on_disk import ReplayCopy
from trainer.replay.streams import close_episodes, worker_rows
from trainer.roles.agents import AgentPlan, without_scheme
from trainer.roles.shared_memory import episode_actions
from trainer.roles.task import Tell
from trainer.run_folder import checkpoint
from trainer.training.parts import Resumed
from trainer.training.system import System, beside, snapshot_path
from trainer.training.tasks import Task, TaskFailed

OF_AGENT = ("frames", "frames_of_workers", "learner", "limiter", "sampler", "replay")
OF_SHARED = ("frames", "shared", "whole")
OF_WORKER = ("number", "world", "seats", "noise", "opponents", "generators")
# What the parts raise over the state of another network, environment or kind.
OTHER = (ValueError, RuntimeError, LookupError, TypeError, AttributeError)


def restore(system: System) -> None:
    """Load every agent's newest checkpoint and replay into a system that is built and not yet started.

    What cannot be read is named, and what was before it is taken; without any checkpoint the run begins anew.
    """
    loggers, run = system.loggers, {}
    checkpoint.whole(system.run_dir / "best" / "policy.pt", loggers.event)  # else the evaluator meets a torn one
    try:
        run = checkpoint.load(system.run_dir / "checkpoints" / "last_policy.pt")
    except ReadError as error:
        loggers.event(f"warning: {error}")
    whole = [_restore_agent(system, plan, run.get("frames")) for plan in system.plans]
    if system.shared is not None:
        folder = system.run_dir / "checkpoints"
        found = checkpoint.newest(folder, partial(_set_aside, system, ""), *OF_SHARED)
        if found is not None:
            with _understood(folder):
                system.shared.agent.load_state_dict(found["shared"])
        whole.append(found is not None and found["whole"])
    exact = system.config.schedule.kind.resumes_exactly and all(whole) and _workers_can_go_on(system, run)
    if not exact:
        for plan in system.plans:
            _close_all(plan)
    if system.config.schedule.kind.resumes_exactly and not exact and system.total_frames():
        loggers.event(
            "the workers begin new episodes, so this run will not be bit-identical to one that was not stopped: it was "
            "stopped within a round, its workers are others now, its environment cannot tell its state, or an "
            "older version of the trainer kept less of it"
        )
    kept = run.get("run", {})
    for plan, telemetry in zip(system.plans, system.telemetry, strict=True):
        if plan.name in kept.get("episodes", {}):
            telemetry.episodes.load_state_dict(kept["episodes"][plan.name])
    if system.pool is not None:
        system.pool.load(system.run_dir / "pool", kept.get("pool"), lambda text: loggers.event(f"warning: {text}"))
    system.resumed = Resumed(list(kept.get("starts", [])), exact, kept)
    loggers.event(
        f"goes on after {system.total_frames()} frames and "
        f"{sum(int(plan.board.updates[0]) for plan in system.plans)} updates"
    )


@contextmanager
def _understood(folder: Path) -> Iterator[None]:
    """Within it, a whole checkpoint is handed to the parts that it is to be of.

    Raises:
        ConfigError: it is of others.
    """
    try:
        yield
    except OTHER as error:
        raise ConfigError(
            f"the newest checkpoint in {folder} is of another network or environment ({first_line(error)}): put the "
            "run's own back, or start another run"
        ) from error


def _set_aside(system: System, agent: str, path: Path, why: str) -> None:
    """Tell of a torn checkpoint, and rename it: among the newest that are kept it would push whole ones out."""
    system.loggers.event(f"warning: {why}; the one before it is taken", agent=agent)
    path.rename(path.with_name(f"torn_{path.name}"))


def _restore_agent(system: System, plan: AgentPlan, frames: int | None) -> bool:
    """Load an agent; whether it is as it was after ``frames`` frames of the run, replay and all."""
    loggers = system.loggers
    found = checkpoint.newest(plan.folder, partial(_set_aside, system, plan.name), *OF_AGENT)
    if found is None:
        loggers.event(f"warning: there is no checkpoint in {plan.folder} yet: {plan.name} begins anew", agent=plan.name)
        return False
    agent = next((agent for agent in system.agents if agent.plan is plan), None)
    board, of_workers, lost = plan.board, found["frames_of_workers"], False
    if len(of_workers) == len(board.frames):
        board.frames[:] = of_workers
    else:
        board.frames[0] = sum(of_workers)
    board.episodes_before[0] = found.get("episodes_done", 0)
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
    except (OSError, *OTHER) as error:
        loggers.event(
            f"warning: the replay of {plan.name} is gone ({error}): learning waits until a new one is warm",
            agent=plan.name,
        )
        board.cursor[:] = 0
        board.lost_at[0], lost = board.total_frames(), True
    if agent is not None:
        with _understood(plan.folder):
            agent.load_state_dict(found, with_sampler=False)
    board.updates[0] = found["limiter"]["updates"]
    for learner in system.learners:
        if learner.plan is plan:
            learner.limiter.load_state_dict(found["limiter"])
            if board.lost_at[0]:
                learner.limiter.begin_again(int(board.lost_at[0]), int(board.episodes_before[0]))
    if lost:
        return False
    return found["frames"] == frames and found["replay"]["streams"] == asdict(plan.streams)


def _workers_can_go_on(system: System, run: dict[str, Any]) -> bool:
    """Whether every worker's state belongs to this checkpoint, and its environments can be put there."""
    if "frames" not in run:
        return False
    plans = [without_scheme(plan) for plan in system.plans]
    work = partial(can_go_on, system.config, plans, system.run_dir, run["frames"])
    try:
        problem = beside(
            system.config, Task("look at where the workers stood", "resume", work, system.loggers.progress)
        )
    except TaskFailed as error:
        problem = str(error)
    if problem:
        system.loggers.event(f"warning: {problem}")
    return problem is None


def can_go_on(config: Config, plans: Sequence[AgentPlan], run_dir: Path, frames: int, tell: Tell) -> str | None:
    """The work of it: make each worker's environments, and put them where they stood.

    Args:
        config: the run.
        plans: of its agents.
        run_dir: its folder, with the workers' states.
        frames: after which the checkpoint was made that they are to belong to.
        tell: the main process.

    Returns:
        None if all can go on; else why not, or "" where there is nothing to tell.
    """
    local = config.schedule.kind.local_agents
    try:
        states = _worker_states(plans, run_dir, local)
    except (ReadError, KeyError):
        return ""
    if any(state["number"] != frames or state["world"] is None for state in states):
        return ""
    for worker, state in enumerate(states):
        own = [worker_rows(plan.storage, plan.streams, 0 if local else worker) for plan in plans]
        tell("progress", f"{worker} of {len(states)}")
        with closing(envs.make_world(config.env, plans[0].streams.envs_per_worker)) as world:
            try:
                world.reset(config.seed)
                actions = [
                    episode_actions(rows, seat["time"], seat["age"].numpy())
                    for rows, seat in zip(own[worker : worker + 1] if local else own, state["seats"], strict=True)
                ]
                world.set_state(state["world"], actions)
            except (ValueError, EnvError) as error:
                return str(error)
    return None


def _worker_states(plans: Sequence[AgentPlan], run_dir: Path, local: bool) -> list[dict[str, Any]]:
    """Where each worker, or local agent, stood."""
    if not local:
        workers = range(plans[0].streams.num_workers)
        return [checkpoint.load(snapshot_path(run_dir, worker), *OF_WORKER) for worker in workers]
    return [(checkpoint.newest(plan.folder) or {})["rollout"] for plan in plans]


def _close_all(plan: AgentPlan) -> None:
    columns = {name: column.numpy() for name, column in plan.storage._storage.items()}
    close_episodes(columns, plan.streams, np.arange(plan.streams.num_streams), plan.board.cursor.copy())
