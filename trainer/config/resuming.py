"""The configuration of a run that goes on: that of its folder, with the values that the user typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from trainer.config.algorithms import ALGORITHMS
from trainer.config.arguments import GROUPS
from trainer.config.composing import Loaded, own_keys
from trainer.config.fields import ConfigError
from trainer.config.paths import absolute
from trainer.config.resolving import resolve
from trainer.config.run_config import from_yaml
from trainer.config.run_files import RunFolder
from trainer.config.sections import Config, config_keys
from trainer.config.validation import validate
from trainer.reading import ReadError, read_json

# Keys, and sections (with a dot), that may change when a run is resumed. Any other change would make it another run.
MAY_CHANGE = (
    "budget_frames", "cluster.", "collector.num_workers", "collector.envs_per_worker", "replay.capacity_frames",
    "replay.scratch_dir", "learner.device", "learner.learning_rate", "learner.learning_rate_end",
    "learner.execution", "learner.deterministic", "learner.num_threads", "learner.parallel_parts",
    "learner.prefetch_batches", "learner.prefetch", "learner.publish_every_updates",
    "schedule.tolerance_frames", "schedule.applier", "agents.hang_seconds", "evaluator.", "checkpoint.", "faults.",
    "logger.", "telemetry.", "callbacks",
)  # fmt: skip
BY_REWARDS = tuple(f"algorithm.{key}" for entry in ALGORITHMS.values() for key in entry.by_rewards)
DERIVED = (  # keys that `resolve` computes where they are null
    "collector.num_workers", "schedule.tolerance_frames", "schedule.frames_per_round", "schedule.episodes_per_round",
    "schedule.updates_per_round",
)  # fmt: skip


def folder_to_resume(config: Config) -> Path | None:
    """The folder of the run to resume; None for a new run, also for `resume=auto` without a run in the folder.

    Raises:
        ConfigError: `resume` names no run, or does not fit `run_dir`.
    """
    if config.resume is None:
        return None
    if config.resume == "auto":
        if config.run_dir is None:
            raise ConfigError("resume=auto goes on in run_dir where that holds a run: name the folder, as run_dir=PATH")
        folder = Path(config.run_dir)
        return folder if RunFolder(folder).config.exists() else None
    folder = Path(config.resume)
    if config.run_dir is not None and Path(config.run_dir).absolute() != folder.absolute():
        raise ConfigError(f"resume={folder} goes on in that folder: leave run_dir={config.run_dir} out")
    if not RunFolder(folder).config.exists():
        raise ConfigError(f"resume={folder} is no run's folder: it holds no config.yaml")
    return folder


def resumed(folder: Path, overrides: Sequence[Override], asked: Config, cores: int) -> Loaded:
    """The configuration of the run to resume in `folder`, with the values that the user typed.

    Args:
        folder: of the run.
        overrides: as typed: keys; and groups, which set all keys of their section (a preset: all keys).
        asked: the configuration of a new run with these arguments, with the keys of all algorithms; not resolved, as
            values that `resolve` would compute stay as they are in the run.
        cores: that the run may use.

    Raises:
        ConfigError: a value differs from the run's and may not change, or the result is not valid.
    """
    kept = own_keys(absolute(from_yaml(RunFolder(folder).config)), overrides)
    typed = {override.key_or_group for override in overrides} - {"resume", "run_dir"}
    old, new = config_keys(kept), config_keys(asked)
    changed = {}
    for key in old:
        named = "preset" in typed or key in typed or key.partition(".")[0] in typed & set(GROUPS)
        free = any(name.startswith(f"{key}.") for name in typed)
        decided = new[key] is None and key in (*DERIVED, *BY_REWARDS) and key not in typed
        if key not in ("resume", "run_dir") and (named or free) and not decided and new[key] != old[key]:
            changed[key] = new[key]
    for key, value in changed.items():
        if not key.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{key}={value} is not possible when a run is resumed, in {folder} it is {old[key]}: leave it out, or "
                f"start another run; what may change: {', '.join(key + '*' * key.endswith('.') for key in MAY_CHANGE)}"
            )
    changed = with_workers(changed)
    if changed.keys() & {"collector.num_workers", "collector.envs_per_worker"}:
        derived = config_keys(resolve(with_keys(kept, dict.fromkeys(DERIVED[1:])), cores))
        changed = {**{key: None for key in DERIVED[1:] if old[key] == derived[key]}, **changed}
    config = replace(with_keys(kept, changed), run_dir=str(folder), resume=str(folder))
    warnings, config = validate(config, cores), resolve(config, cores)
    try:
        finished = _nothing_to_do(folder, kept, config)
    except ReadError as error:
        warnings, finished = [*warnings, f"{error}, the run goes on without it"], ""
    return Loaded(config, f"goes on in {folder}", warnings, finished)


def with_workers(changed: dict[str, Any]) -> dict[str, Any]:
    """Changed keys; with another cluster the number of workers is another one, too, unless it was typed."""
    another = any(key.startswith("cluster.") for key in changed)
    return {**({"collector.num_workers": None} if another else {}), **changed}


def _nothing_to_do(folder: Path, kept: Config, config: Config) -> str:
    """A sentence if the run in `folder` is finished and `config` asks for nothing more; else ""."""
    if not RunFolder(folder).summary.exists():
        return ""
    summary = read_json(RunFolder(folder).summary)
    if summary.get("status") != "finished" or config.budget_frames > kept.budget_frames:
        return ""
    if summary.get("solved_frames") is None:
        if summary.get("frames", 0) < kept.budget_frames:
            return ""  # a callback has stopped it
        return f"the run in {folder} is finished: raise budget_frames above {kept.budget_frames} to go on"
    before, now = kept.evaluator.stop_at_return, config.evaluator.stop_at_return
    if before is not None and (now is None or now > before):
        return ""  # the target was raised or removed, and the budget is not used up
    return (
        f"the run in {folder} is finished, as evaluator.stop_at_return={before} was reached after "
        f"{summary['solved_frames']} frames: set evaluator.stop_at_return=null to go on to "
        f"budget_frames={kept.budget_frames}"
    )


def with_keys(config: Config, values: dict[str, Any]) -> Config:
    """The configuration with other values, by dotted key."""
    for key, value in values.items():
        section, _, leaf = key.rpartition(".")
        config = replace(
            config, **{section or leaf: replace(getattr(config, section), **{leaf: value}) if section else value}
        )
    return config
