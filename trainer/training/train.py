"""A run from its configuration to its summary, and the training loop.

A transition goes from `roles.collector` through `replay.streams` to `roles.learner`; weights go back by the `send` of
TorchRL's `WeightSyncScheme`. Processes exchange all of this through shared memory without locks (`trainer.memory`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.config.compose import absolute
from trainer.config.overrides import agent_config
from trainer.config.parts import check_parts
from trainer.config.run_config import first_line, to_dict
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvError, EnvSpec
from trainer.host import leftovers
from trainer.host.errors import RunFailed, device_failure
from trainer.host.resources import allow_open_files, check_fits, prepare_process
from trainer.host.signals import Stopped, StopSignals
from trainer.learning.update import NotFinite
from trainer.reading import ReadError, read_json
from trainer.roles.agents import streams_of
from trainer.roles.evaluator import Evaluation
from trainer.roles.pace import IDLE_S
from trainer.run_folder import folder as run_folder
from trainer.run_folder.scratch import scratch_folder
from trainer.telemetry import plot
from trainer.telemetry.loggers import Loggers, RunInfo, open_loggers
from trainer.telemetry.loggers.sink import plain_value
from trainer.training.building import build, choose_device, describe
from trainer.training.callbacks import Callbacks, Control, check, named
from trainer.training.final import finish, report
from trainer.training.loop import Loop
from trainer.training.needs import needs_of
from trainer.training.resume import restore
from trainer.training.saving import keep_policy, save
from trainer.training.settling import settle
from trainer.training.system import System

STOP_S = 2.0  # after which a signal interrupts a training loop that has not ended by itself


def train(config: Config, command: list[str], callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Train as `config` says; returns the content of RUN/summary.json, with the signal that ended it as `stop_signal`.

    Args:
        config: validated, with every None resolved.
        command: the command line, for the run's folder.
        callbacks: see `trainer.training.callbacks`; called after those of the configuration.

    Raises:
        ConfigError, EnvError: nothing was started.
        RunFailed: a process died too often, the device failed, or the loss was not finite; all processes are stopped,
            and there is a checkpoint if training had begun.
    """
    here, config = Path.cwd(), absolute(config)
    check_parts(config)
    callbacks = check([*named(config.callbacks), *callbacks])
    leftovers.claim()
    prepare_process()
    allow_open_files()
    torch.set_num_threads(config.learner.num_threads)
    world = describe(config)
    config, notes = settle(config, world)
    world = [(name, replace(spec, notes=(*spec.notes, *notes))) for name, spec in world]
    device = choose_device(config.learner.device)
    with run_folder.opened(config, command, here) as (run_dir, config):
        with scratch_folder(Path(config.replay.scratch_dir or RunFolder(run_dir).scratch)) as scratch:
            return _train_in(run_dir, scratch, config, world, device, callbacks)


def _train_in(
    run_dir: Path, scratch: Path, config: Config, world: Sequence[tuple[str, EnvSpec]], device: torch.device,
    given: Sequence[Any],
) -> dict[str, Any]:  # fmt: skip
    streams = [streams_of(agent_config(config, name)) for name, _ in world]
    info = RunInfo(
        run_dir, config.env.id, config.algorithm.name, config.seed, config.budget_frames, to_dict(config),
        streams[0].num_workers, streams[0].num_streams, str(device),
    )  # fmt: skip
    loggers = open_loggers(config.logger, info)
    callbacks = Callbacks(given, Control(run_dir, config), loggers.event)
    fresh: dict[str, Any] = {
        "env_id": config.env.id, "algorithm": config.algorithm.name, "seed": config.seed, "preset": config.preset,
        "status": "failed", "reason": "", "stop_signal": None, "frames": 0, "updates": 0, "wall_s": 0.0,
        "frames_per_s": 0.0, "updates_per_s": 0.0, "eval_return_mean": None, "eval_return_std": None,
        "eval_episodes": None,
    }  # fmt: skip
    start, problem = time.monotonic(), ""
    summary = fresh | _known_before(config, run_dir)
    with StopSignals(leftovers=scratch) as stop, run_folder.watched(run_dir) as gone:
        try:
            fits = check_fits(needs_of(config, world), scratch, run_dir)
            loggers.event(f"run folder {run_dir}; {fits}")
            for name, spec in world:
                for note in spec.notes:
                    loggers.event(note if len(world) == 1 else f"{note} ({name})")
            system = build(config, run_dir, world, device, scratch, loggers, stop)
            system.gone, system.callbacks, callbacks.control.plans = gone, callbacks, system.plans
            if config.resume is not None:
                restore(system)
                updates = sum(int(plan.board.updates[0]) for plan in system.plans)
                summary |= {"frames": system.total_frames(), "updates": updates}
                summary["wall_s"] = system.kept.get("wall_s", 0.0)
            _run(system, summary, fresh)
            if gone():
                raise RunFailed(gone())
        except Stopped:
            summary |= {"status": "stopped", "reason": f"signal {stop.name}", "stop_signal": stop.number}
        except (Exception, SystemExit) as cause:  # which a user's environment raises in `sequential`
            error: Exception = RunFailed(f"the environment ended this process: sys.exit({cause})")
            if not isinstance(cause, SystemExit):
                error = device_failure(cause, device) or cause
            if gone():
                error = RunFailed(gone())
            summary["reason"] = first_line(error)
            if isinstance(error, RunFailed) and error.traceback:
                loggers.event(f"traceback of the {error.role}:\n{error.traceback}", role=error.role, pid=error.pid)
            if error is not cause:
                raise error from cause
            raise
        finally:
            summary["total_s"] = time.monotonic() - start
            summary = {key: plain_value(value) for key, value in summary.items()}
            problem = callbacks.end(summary)
            if not gone():
                problem = _write_end(run_dir, summary, loggers) or problem
            loggers.close(summary)
    if problem:
        raise RunFailed(problem)
    return summary


def _known_before(config: Config, run_dir: Path) -> dict[str, Any]:
    """The old summary of a run that is resumed: it stays valid if the run is stopped while it starts."""
    if config.resume is None:
        return {}
    try:
        kept = read_json(RunFolder(run_dir).summary)
    except ReadError:  # a run that was killed has none
        return {}
    now = {"env_id", "algorithm", "seed", "preset", "status", "reason", "stop_signal"}
    return {key: value for key, value in kept.items() if key not in now}


def _write_end(run_dir: Path, summary: dict[str, Any], loggers: Loggers) -> str:
    """Write the run's summary and curve; returns a sentence if the summary could not be written, else ""."""
    problem = ""
    try:
        run_folder.write_json(RunFolder(run_dir).summary, summary)
    except OSError as error:
        problem = f"the summary could not be written ({error}): make room in {run_dir}"
        loggers.event(f"warning: {problem}")
    try:
        if damaged := plot.curve(run_dir):
            loggers.event(f"warning: {damaged}")
    except (OSError, ReadError) as error:
        loggers.event(f"warning: there is no curve ({error})")
    return problem


def _run(system: System, summary: dict[str, Any], fresh: dict[str, Any]) -> None:
    """Start the system, train, stop it, and evaluate.

    Args:
        system: as it was built.
        summary: of the run; it is updated, however the run ends.
        fresh: summary of a run that has not trained yet.
    """
    stop, loop = system.stop, Loop(system)
    try:
        with stop.raising(after_s=0):
            system.start()
        summary |= fresh
        try:
            with stop.raising(after_s=STOP_S):
                summary |= _train(system, loop)
            system.learners.check_losses()
        except (RunFailed, EnvError, NotFinite) as error:
            if stop.number:  # the workers got the signal, too, and ended first
                raise Stopped from error
            role, traceback = getattr(error, "role", "main"), getattr(error, "traceback", "")
            pid = getattr(error, "pid", None)
            raise RunFailed(f"{error} (checkpoints: {system.run_dir / 'checkpoints'})", role, traceback, pid) from error
        finally:
            summary |= _last_figures(system)
            keep(system, loop, summary["frames"])
    finally:
        system.close()
    with stop.raising(after_s=0):
        finish(system, summary)
    summary |= {"status": "finished"}


def _train(system: System, loop: Loop) -> dict[str, Any]:
    """The training loop: the schedule collects and learns; logging, evaluations and checkpoints follow when due."""
    config, evaluator = system.config, system.evaluator
    loop.start = time.monotonic() - loop.wall_s
    for telemetry in system.telemetry:
        telemetry.start = loop.start
    system.publish()
    begin = system.row()  # the next row has speeds
    if system.kept:  # it shows from which frames on rows are written again
        system.loggers.write(begin)
    loop.log_every.crossed()
    if loop.evaluating:
        evaluator.request()
        if (solved := _evaluated(system, loop)) is not None:
            return solved
    for loop.whole in config.schedule.kind.turns(system):
        if system.stop.number and loop.whole:  # a round is ended first, unless that takes longer than STOP_S
            raise Stopped
        frames = system.total_frames()
        if loop.supervise_every.crossed():
            system.check()
        if loop.whole and loop.evaluate_every.crossed(frames):
            evaluator.request()
        if loop.whole and loop.policy_every.crossed(frames):
            keep_policy(system, frames)
        if loop.snapshot_every.crossed(frames):
            system.pool.add(system.flat(), frames)
        if (solved := _evaluated(system, loop)) is not None:
            return solved
        if loop.log_every.crossed():
            row = system.row()
            system.loggers.write(row)
            system.callbacks.row(row)
        if loop.whole and loop.save_every.crossed():
            keep(system, loop, frames, may_fail=True)
        if loop.whole and system.callbacks.control.reason:
            return {"reason": system.callbacks.control.reason, "solved_s": None, "solved_frames": None}
    return {"reason": "the budget is used up", "solved_s": None, "solved_frames": None}


def _evaluated(system: System, loop: Loop) -> dict[str, Any] | None:
    """Take an evaluation that has ended; returns entries of the summary if the run ends with it, else None.

    A repeatable schedule waits for the evaluation: whether there is another round must not depend on the evaluator's
    speed. A run that is stopped during the wait repeats the evaluation with the same weights after its resume.
    """
    config, evaluator = system.config, system.evaluator
    evaluation = evaluator.poll()
    if config.schedule.kind.repeatable:
        while evaluation is None and evaluator.busy and not system.stop.number:
            if loop.supervise_every.crossed():
                system.check()
            time.sleep(IDLE_S)
            evaluation = evaluator.poll()
        if evaluation is None and evaluator.busy:
            raise Stopped
    if evaluation is None:
        return None
    report(system, evaluation)
    if not reached(config, evaluation):
        return None
    return {
        "reason": f"evaluator.stop_at_return={config.evaluator.stop_at_return:g} was reached",
        "solved_s": evaluation.taken_at - loop.start,
        "solved_frames": evaluation.frames,
    }


def keep(system: System, loop: Loop, frames: int, may_fail: bool = False) -> None:
    """Save a checkpoint; if the disk refuses, the one before is still there.

    Args:
        system: the run.
        loop: state of the training loop.
        frames: number of frames, for the name of the checkpoint; collectors may have more by now.
        may_fail: whether training continues if the disk refuses.

    Raises:
        RunFailed: the disk refuses and `may_fail` is False, or the run folder is gone.
    """
    if system.gone():
        raise RunFailed(system.gone())
    try:
        save(system, frames, loop.whole, loop.state_dict())
    except OSError as error:
        text = (
            f"the checkpoint could not be written ({error}): make room in {system.run_dir}, the one before it is whole"
        )
        if not may_fail:
            raise RunFailed(text) from error
        system.loggers.event(f"warning: {text}; training goes on")
    else:
        system.callbacks.checkpoint(frames)


def _last_figures(system: System) -> dict[str, Any]:
    """Write the last row; returns its entries of the summary."""
    wall_s = time.monotonic() - system.telemetry[0].start
    try:
        row = system.row()
    except NotFinite:  # with which the run ends
        row = system.row(failed=True)
    system.loggers.write(row)
    system.last_row = row
    system.callbacks.row(row)
    frames, updates = int(row["frames"]), int(row["updates"])
    return {
        "frames": frames, "updates": updates, "wall_s": wall_s, "frames_per_s": frames / wall_s,
        "updates_per_s": updates / wall_s, "episodes": row["episodes"], "return_mean": row["return_mean"],
        **system.learners.report(),
    }  # fmt: skip


def reached(config: Config, evaluation: Evaluation) -> bool:
    """Whether this evaluation has reached `evaluator.stop_at_return`."""
    return config.evaluator.stop_at_return is not None and evaluation.mean >= config.evaluator.stop_at_return
