"""Save a run's checkpoint: of each agent, of what the agents share, and the policy; `resume.py` loads it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.config.run_files import RunFolder
from trainer.learning.determinism import generator_states
from trainer.roles.policies import save_policy
from trainer.run_folder import checkpoint, manifest
from trainer.training.system import System


def save(system: System, frames: int, whole: bool, more: dict[str, Any]) -> None:
    """Save a checkpoint of every agent, the policy, and what is of no single agent.

    Each file is written beside the old one and renamed.

    Args:
        system: the run.
        frames: number of frames of the run.
        whole: whether no round is going on. With rounds, a run that is resumed from here ends bit-identical to one that
            was not stopped.
        more: state of the training loop.

    Raises:
        OSError: the disk refuses; the checkpoint before is still there.
    """
    start, folder, pool = time.monotonic(), RunFolder(system.run_dir), system.pool
    if whole and system.config.schedule.kind.resumes_exactly:
        system.collectors.save_snapshots(frames)
    system.learners.save(frames)
    pool.save(folder.pool)
    run = {**more, "starts": system.collectors.starts(), **generator_states()}
    if snapshots := pool.state_dict():
        run["pool"] = snapshots
    run["episodes"] = {
        plan.name: telemetry.episodes.state_dict()
        for plan, telemetry in zip(system.plans, system.telemetry, strict=True)
    }
    _write_policy(system, frames, folder.last_policy)
    checkpoint.write_aside({"frames": frames, "run": run}, folder.progress)
    manifest.remove(folder.older_last_policy)
    pool.forget(folder.pool)
    system.checkpoint_s = time.monotonic() - start
    system.checkpoint_bytes = system.learners.replay_bytes()


def _write_policy(system: System, frames: int, path: Path) -> None:
    """Write the present weights as a policy file."""
    save_policy(path, system.policy_header, system.learners.flat(), frames, {})


def keep_policy(system: System, frames: int) -> None:
    """Keep the present policy for good, as one of a series; a disk that refuses is only a warning.

    Args:
        system: the run.
        frames: that it has.
    """
    path = RunFolder(system.run_dir).policy_after(frames)
    try:
        _write_policy(system, frames, path)
    except OSError as error:
        system.loggers.event(
            f"warning: the policy {path} could not be written ({error}): make room in {system.run_dir}"
        )
