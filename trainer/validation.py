"""What a configuration must fulfil to be run: ranges, names, and sizes that fit one another.

Checked once, at the border, before torch is imported and before any process starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from trainer.config import GAME_BACKENDS, Config, ConfigError, config_keys, group_options, nearest, resolve

# Which numbers each key takes; a test sees to it that every number of `Config` stands here once.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "above 0": (
        lambda x: x > 0,
        "budget_frames env.screen_size env.frame_stack env.max_episode_steps algorithm.n_step "
        "algorithm.target_update_every_updates "
        "algorithm.hidden_sizes algorithm.num_quantiles algorithm.num_fractions algorithm.num_acting_fractions "
        "algorithm.fraction_cosines algorithm.noisy_sigma algorithm.munchausen_temperature replay.priority_eps "
        "collector.num_workers collector.envs_per_worker "
        "replay.capacity_frames learner.batch_size learner.learning_rate learner.adam_eps learner.max_grad_norm "
        "learner.warmup_frames learner.prefetch_batches learner.publish_every_updates learner.num_threads "
        "schedule.frames_per_update schedule.episodes_per_update schedule.tolerance_frames schedule.frames_per_round "
        "schedule.episodes_per_round "
        "schedule.updates_per_round schedule.num_agents evaluator.episodes evaluator.final_episodes evaluator.num_envs "
        "agents.hang_seconds opponents.snapshot_every_frames opponents.pool_size opponents.last_k "
        "faults.period_seconds faults.hang_seconds faults.worker_memory_mb "
        "checkpoint.save_every_seconds checkpoint.keep_last logger.every_seconds "
        "telemetry.trace_events",
    ),
    "0 or above": (
        lambda x: x >= 0,
        "seed collector.epsilon_decay_frames collector.apex_alpha learner.learning_rate_end evaluator.every_frames "
        "evaluator.league_games "
        "replay.priority_alpha opponents.random opponents.scripted opponents.latest opponents.snapshots "
        "opponents.checkpoints opponents.random_end opponents.scripted_end opponents.latest_end "
        "opponents.snapshots_end opponents.checkpoints_end "
        "faults.max_failures",
    ),
    "from 0 to 1": (
        lambda x: 0 <= x <= 1,
        "collector.epsilon_start collector.epsilon_end collector.apex_epsilon algorithm.munchausen_alpha "
        "replay.priority_beta replay.priority_beta_end opponents.epsilon",
    ),
    "above 0 and at most 1": (lambda x: 0 < x <= 1, "algorithm.gamma algorithm.target_tau algorithm.risk_level"),
    "2 or above": (lambda x: x >= 2, "algorithm.num_atoms opponents.active"),
    "0 or below": (lambda x: x <= 0, "algorithm.munchausen_clip"),
    "from 0 to 19": (lambda x: 0 <= x <= 19, "evaluator.nice"),
    "finite": (lambda x: True, "evaluator.stop_at_return algorithm.v_min algorithm.v_max"),
}

# Algorithms whose priority is more than a TD error of values, so that collectors cannot give a new row its own.
NO_FIRST_PRIORITY = {
    "c51": "is the distance of two distributions",
    "rainbow": "is the distance of two distributions",
    "iqn": "has the noise of its drawn fractions in it",
    "munchausen": "has the log-policy in it",
}


def validate(config: Config, cores: int) -> list[str]:
    """Refuse what cannot be run, before any process starts.

    Args:
        config: what was asked for, resolved or not.
        cores: cores that the run may use, as `available_cores` counts them.

    Returns:
        Warnings, one sentence each, of what can be run but was hardly meant.

    Raises:
        ConfigError: the first impossible value, in one sentence that names its keys.
    """
    values = config_keys(config)
    _check_ranges(values)
    _check_names(values)
    _check_sizes(resolve(config, cores))
    _check_schedule(resolve(config, cores))
    _check_algorithm(config)
    _check_opponents(config)
    return _warnings(config, cores)


def _check_ranges(values: dict[str, Any]) -> None:
    for text, (holds, keys) in _RANGES.items():
        for key in keys.split():
            for number in values[key] if isinstance(values[key], list) else [values[key]]:
                if number is not None and not (math.isfinite(number) and holds(number)):
                    raise ConfigError(f"{key}={values[key]} is out of range: it must be {text}")


def _check_names(values: dict[str, Any]) -> None:
    choices = {key: item.metadata["choices"] for key, item in config_keys().items() if "choices" in item.metadata}
    choices["algorithm.name"] = group_options("algorithm")
    choices["learner.device"] = ("auto", "cpu", "cuda", "cuda:N")
    for key, options in choices.items():
        if re.sub(r"^cuda:\d+$", "cuda:N", values[key]) not in options:
            closest = "cuda" if values[key] == "gpu" else nearest(values[key], options)
            raise ConfigError(f"{key}={values[key]} is none of {', '.join(options)}; the nearest is {key}={closest}")
    for key in ("env.id", "run_dir"):
        if values[key] is not None and not values[key].strip():
            raise ConfigError(f"{key} is empty: name one, or leave it out")
    for name in values["env.import_modules"]:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"env.import_modules={name} is no module's name: write it as in an import, without .py")


def _check_sizes(config: Config) -> None:
    batch, warmup = config.learner.batch_size, config.learner.warmup_frames
    capacity, budget = config.replay.capacity_frames, config.budget_frames
    if batch > warmup:
        raise ConfigError(
            f"learner.batch_size={batch} is more than learner.warmup_frames={warmup}: the first update needs a whole "
            f"batch, so set learner.warmup_frames={batch} or more, or a smaller batch"
        )
    for key, size in (("learner.batch_size", batch), ("learner.warmup_frames", warmup)):
        if capacity < size:
            raise ConfigError(f"replay.capacity_frames={capacity} is less than {key}={size}: set it to {size} or more")
    if warmup >= budget:
        raise ConfigError(
            f"learner.warmup_frames={warmup} leaves nothing of budget_frames={budget} to learn in: set a shorter "
            "warm-up or a larger budget"
        )
    streams = _vector_step_frames(config)
    # The oldest frame of the stack up to the n-th next frame, one row that may be in the writer's hands, and one
    # more start, as two rows in a row are never both final: a draw always finds one.
    rows = config.env.frame_stack + config.algorithm.n_step + 2
    if capacity // streams < rows:
        raise ConfigError(
            f"replay.capacity_frames={capacity} gives each of {streams} streams {capacity // streams} frames, and "
            f"algorithm.n_step={config.algorithm.n_step} with env.frame_stack={config.env.frame_stack} needs {rows}: "
            f"set replay.capacity_frames={streams * rows} or more"
        )


def _check_schedule(config: Config) -> None:
    schedule, step = config.schedule, _vector_step_frames(config)
    assert schedule.tolerance_frames is not None  # `config` is resolved
    step_text = (
        f"collector.num_workers={config.collector.num_workers} x "
        f"collector.envs_per_worker={config.collector.envs_per_worker} = {step} frames"
    )
    if schedule.name == "async":
        by_frames = schedule.frames_per_update is not None and schedule.episodes_per_update is None
        if by_frames and schedule.tolerance_frames < step:
            raise ConfigError(
                f"schedule.tolerance_frames={schedule.tolerance_frames} is less than one step of all workers "
                f"({step_text}): set schedule.tolerance_frames={step} or more"
            )
        return
    if schedule.name == "shared_gradient" and _against_opponents(config):
        raise ConfigError(
            f"schedule=shared_gradient has no pool of opponents for {config.env.id}, a turn-based game: use "
            "schedule=async"
        )
    if schedule.name == "shared_gradient" and schedule.applier == "local" and config.learner.device.startswith("cuda"):
        raise ConfigError(
            f"schedule.applier=local applies gradients on the CPU, not on learner.device={config.learner.device}: set "
            "learner.device=cpu, or schedule.applier=device"
        )
    if schedule.frames_per_update is schedule.updates_per_round is schedule.episodes_per_update is None:
        raise ConfigError(
            f"schedule={schedule.name} does not know how much to learn: set schedule.frames_per_update, "
            "schedule.episodes_per_update or schedule.updates_per_round"
        )
    if (
        schedule.frames_per_round is not None
        and schedule.episodes_per_round is None
        and schedule.frames_per_round % step
    ):
        fitting = max(1, round(schedule.frames_per_round / step)) * step
        raise ConfigError(
            f"schedule.frames_per_round={schedule.frames_per_round} is no multiple of one step of all workers "
            f"({step_text}): set schedule.frames_per_round={fitting}"
        )


def _check_opponents(config: Config) -> None:
    section, kinds = config.opponents, ("random", "scripted", "latest", "snapshots", "checkpoints")
    first = {kind: getattr(section, kind) for kind in kinds}
    last = {kind: first[kind] if (end := getattr(section, f"{kind}_end")) is None else end for kind in kinds}
    for weights, when, key in ((first, "", ""), (last, " at the end", "_end")):
        if not any(weights.values()) and _against_opponents(config):
            keys = ", ".join(f"opponents.{kind}{key}" for kind in kinds)
            raise ConfigError(f"nobody is played against{when}: set one of {keys}")
    if (first["checkpoints"] or last["checkpoints"]) and not section.checkpoint_paths:
        key = "checkpoints" if first["checkpoints"] else "checkpoints_end"
        raise ConfigError(
            f"opponents.{key}={getattr(section, key):g} has no policies to play against: name them, as "
            "opponents.checkpoint_paths=[RUN/best/policy.pt]"
        )


def _against_opponents(config: Config) -> bool:
    # Asked only where much is wrong already: PettingZoo's ids have to be imported to know.
    from envs import EnvError, against_opponents

    try:
        return against_opponents(config.env)
    except EnvError as error:
        raise ConfigError(str(error)) from error


def _check_algorithm(config: Config) -> None:
    algorithm = config.algorithm
    if algorithm.name == "munchausen" and algorithm.double:
        raise ConfigError(
            "algorithm.double=true does not go with algorithm=munchausen, whose soft policy needs no second estimator: "
            "set algorithm.double=false"
        )
    if algorithm.prioritized and config.replay.initial_priority == "collector" and algorithm.name in NO_FIRST_PRIORITY:
        raise ConfigError(
            f"replay.initial_priority=collector does not go with algorithm={algorithm.name}, whose priority "
            f"{NO_FIRST_PRIORITY[algorithm.name]}, which the values that a collector acts by do not say: set "
            "replay.initial_priority=max"
        )
    if algorithm.v_min >= algorithm.v_max:
        raise ConfigError(
            f"algorithm.v_min={algorithm.v_min:g} is not below algorithm.v_max={algorithm.v_max:g}: set them to the "
            "smallest and the largest discounted return that an episode can have"
        )


def _warnings(config: Config, cores: int) -> list[str]:
    found = []
    workers = config.collector.num_workers
    if workers is not None and workers > cores and config.schedule.name != "sequential":
        found.append(f"collector.num_workers={workers} is more than the {cores} cores at hand: workers will share them")
    if config.schedule.name == "async":
        for key in ("episodes_per_round", "updates_per_round"):
            if getattr(config.schedule, key) is not None:
                found.append(f"schedule.{key} does nothing with schedule=async: it belongs to sync and sequential")
    if config.env.backend in GAME_BACKENDS:
        section = config.opponents
        for key, kind in (("checkpoint_paths", "checkpoints"), ("start_from", "snapshots")):
            if getattr(section, key) and not (getattr(section, kind) or getattr(section, f"{kind}_end")):
                found.append(f"opponents.{key} does nothing: opponents.{kind}=0, so nobody of that kind is played")
    return found


def _vector_step_frames(config: Config) -> int:
    assert config.collector.num_workers is not None  # `config` is resolved
    return config.collector.num_workers * config.collector.envs_per_worker
