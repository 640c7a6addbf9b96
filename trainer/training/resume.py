"""Load a run's checkpoint into the parts of a run that resumes it, before its processes are started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trainer import envs
from trainer.config.fields import ConfigError
from trainer.config.instances import env_of_others
from trainer.config.run_config import first_line
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvError
from trainer.reading import ReadError
from trainer.replay.streams import worker_rows
from trainer.roles.agents import AgentPlan, end_episodes, without_scheme
from trainer.roles.shared_memory import episode_actions
from trainer.roles.task import Tell
from trainer.run_folder import checkpoint
from trainer.training.playing import snapshot_path
from trainer.training.system import System
from trainer.training.tasks import Task, TaskFailed, beside

OF_AGENT = ("frames", "frames_of_workers", "learner", "limiter", "sampler", "replay")
OF_WORKER = ("number", "world", "seats", "noise", "opponents", "generators")
# Raised by the parts when they are given the state of another network or environment.
OTHER = (ValueError, RuntimeError, LookupError, TypeError, AttributeError)


def restore(system: System) -> None:
    """Load every agent's newest checkpoint and replay into a system that is built and not yet started.

    An event names a checkpoint that cannot be read, and the one before it is loaded. Without any checkpoint the run
    starts from the beginning.
    """
    loggers, folder, run = system.loggers, RunFolder(system.run_dir), {}
    checkpoint.whole(checkpoint.best_policy(folder), loggers.event)  # else the evaluator meets a torn one
    try:
        run = checkpoint.load(checkpoint.progress(folder))
    except ReadError as error:
        loggers.event(f"warning: {error}")
    whole = [_restore_agent(system, plan, run.get("frames")) for plan in system.plans]
    with _understood(folder.checkpoints):
        whole.append(system.learners.load_shared(partial(_set_aside, system, "")))
    exact = system.config.schedule.kind.resumes_exactly and not system.config.cluster.remote
    exact = exact and all(whole) and _workers_can_go_on(system, run)
    if not exact:
        end_episodes(system.plans)
    if system.config.schedule.kind.resumes_exactly and not exact and system.total_frames():
        loggers.event(
            "the workers begin new episodes, so this run will not be bit-identical to one that was not stopped: it was "
            "stopped within a round, its workers are others now or on other machines, its environment cannot tell its "
            "state, or an older version of the trainer kept less of it"
        )
    kept = run.get("run", {})
    for plan, telemetry in zip(system.plans, system.telemetry, strict=True):
        if plan.name in kept.get("episodes", {}):
            telemetry.episodes.load_state_dict(kept["episodes"][plan.name])
    system.pool.load(folder.pool, kept.get("pool"), lambda text: loggers.event(f"warning: {text}"))
    system.collectors.resume(kept.get("starts", []), exact)
    system.kept = kept
    loggers.event(
        f"goes on after {system.total_frames()} frames and "
        f"{sum(int(plan.board.updates[0]) for plan in system.plans)} updates"
    )


@contextmanager
def _understood(folder: Path) -> Iterator[None]:
    """Turn the errors of parts that are given a checkpoint into one sentence.

    Raises:
        ConfigError: the checkpoint is of another network or environment.
    """
    try:
        yield
    except OTHER as error:
        raise ConfigError(
            f"the newest checkpoint in {folder} is of another network or environment ({first_line(error)}): put the "
            "run's own back, or start another run"
        ) from error


def _set_aside(system: System, agent: str, path: Path, why: str) -> None:
    """Report a torn checkpoint, and rename it, so that it does not count as one of the newest that are kept."""
    system.loggers.event(f"warning: {why}; the one before it is taken", agent=agent)
    path.rename(path.with_name(f"torn_{path.name}"))


def _restore_agent(system: System, plan: AgentPlan, frames: int | None) -> bool:
    """Load an agent; returns whether agent and replay are as they were after `frames` frames of the run."""
    loggers = system.loggers
    found = checkpoint.newest(plan.folder, partial(_set_aside, system, plan.name), *OF_AGENT)
    if found is None:
        loggers.event(
            f"warning: there is no checkpoint in {plan.folder} yet: {plan.name} begins from the start", agent=plan.name
        )
        return False
    board, of_workers, lost = plan.board, found["frames_of_workers"], False
    if len(of_workers) == len(board.frames):
        board.frames[:] = of_workers
    else:
        board.frames[0] = sum(of_workers)
    board.episodes_before[0] = found.get("episodes_done", 0)
    try:
        if found["replay"] is None:
            raise ValueError("it was not kept, as checkpoint.replay=false asks for")
        system.learners.load_replay(plan, found)
    except (OSError, *OTHER) as error:
        loggers.event(
            f"warning: the replay of {plan.name} is gone ({error}): learning waits until a new one is warm",
            agent=plan.name,
        )
        board.cursor[:] = 0
        board.lost_at[0], lost = board.total_frames(), True
    with _understood(plan.folder):
        system.learners.load_state_dict(plan, found)
    board.updates[0] = found["limiter"]["updates"]
    if lost:
        return False
    return found["frames"] == frames and found["replay"]["streams"] == asdict(plan.streams)


def _workers_can_go_on(system: System, run: dict[str, Any]) -> bool:
    """Whether every worker's state belongs to this checkpoint, and its environments can be restored to it."""
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
    """Work of a task: make each worker's environments, and restore their saved state, to see whether that works.

    Args:
        config: of the run.
        plans: of the agents.
        run_dir: the run folder, with the workers' states.
        frames: of the checkpoint, to which the states must belong.
        tell: reports to the main process.

    Returns:
        None if all can go on; else why not, or "" if the user need not be told.
    """
    local = config.schedule.kind.local_agents
    try:
        states = _worker_states(plans, run_dir, local)
    except (ReadError, KeyError):
        return ""
    if any(state["number"] != frames or state["world"] is None for state in states):
        return ""
    for worker, state in enumerate(states):
        players = plans[worker : worker + 1] if local else plans
        columns = [worker_rows(plan.storage, plan.streams, 0 if local else worker) for plan in players]
        tell("progress", f"{worker} of {len(states)}")
        with closing(envs.make_world(env_of_others(config), plans[0].streams.envs_per_worker)) as world:
            try:
                world.reset(config.seed)
                actions = [
                    episode_actions(rows, seat["time"], seat["age"].numpy())
                    for rows, seat in zip(columns, state["seats"], strict=True)
                ]
                world.set_state(state["world"], actions)
            except (ValueError, EnvError) as error:
                return str(error)
    return None


def _worker_states(plans: Sequence[AgentPlan], run_dir: Path, local: bool) -> list[dict[str, Any]]:
    """The saved state of each worker, or local agent."""
    if not local:
        workers = range(plans[0].streams.num_workers)
        return [checkpoint.load(snapshot_path(run_dir, worker), *OF_WORKER) for worker in workers]
    return [(checkpoint.newest(plan.folder) or {})["rollout"] for plan in plans]
