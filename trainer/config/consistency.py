"""Check that keys fit one another: combinations of values that are refused."""

from __future__ import annotations

import math
import os

from trainer.config.algorithms import ALGORITHMS
from trainer.config.fields import ConfigError, plain, shown
from trainer.config.schedules.rounds import frames_of_step
from trainer.config.sections import Config
from trainer.envs.backends import known_backend

COPIES = 7  # of a network: weights, target, gradient, Adam's two moments, board, evaluator; besides one for each worker
LEAST_BLOCKS = 4  # of rows that come at once, in a stream of the replay: one of them is not drawn from
MOST_UPDATES = 10**11  # three years at a millisecond each


def check_together(config: Config) -> None:
    """Refuse keys that do not fit one another, of the run or of one agent.

    Args:
        config: resolved, with values that are in their ranges.

    Raises:
        ConfigError: the first wrong combination, in one sentence that says what to type instead.
    """
    _check_sizes(config)
    config.schedule.kind.check(config)
    _check_updates(config)
    _check_algorithm(config)
    _check_network(config)
    _check_instances(config)
    if config.cluster.remote:
        _check_cluster(config)


def most_updates(config: Config) -> float:
    """Number of updates in the budget; an upper bound if they follow episodes, infinite without a limit.

    Args:
        config: resolved.
    """
    schedule, frames = config.schedule, config.budget_frames
    rounds = 1.0 * frames
    if schedule.kind.rounds and schedule.episodes_per_round is None and schedule.frames_per_round is not None:
        rounds = math.ceil(frames / schedule.frames_per_round)
        frames = rounds * schedule.frames_per_round  # the last round is ended
    if schedule.kind.rounds and schedule.updates_per_round is not None:
        return rounds * schedule.updates_per_round
    if schedule.episodes_per_update is not None:
        return frames // schedule.episodes_per_update  # an episode has a frame at least
    if schedule.frames_per_update is None:
        return math.inf
    return max(0, frames - config.learner.warmup_frames) // schedule.frames_per_update


def _check_sizes(config: Config) -> None:
    batch, warmup = config.learner.batch_size, config.learner.warmup_frames
    capacity, budget = config.replay.capacity_frames, config.budget_frames
    streams = frames_of_step(config)
    # Rows from the oldest frame of the stack to the n-th next frame, one row that the worker may be writing, and one
    # more, as of two consecutive rows at most one is final: so a draw always finds a transition.
    rows = config.env.frame_stack + config.algorithm.n_step + 2
    least = max(batch, warmup)  # frames of the warm-up
    needed = {
        "learner.warmup_frames": (warmup, least),
        "replay.capacity_frames": (capacity, max(least, rows * streams)),
        "budget_frames": (budget, budget if budget > least else 2 * least),
    }
    # Name all keys that must change, or the next error would be about the next key.
    values = [f"{key}={wanted}" for key, (value, wanted) in needed.items() if value < wanted]
    remedy = "set " + " and ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)
    if batch > warmup:
        raise ConfigError(
            f"learner.batch_size={batch} is more than learner.warmup_frames={warmup}: the first update needs a whole "
            f"batch, so {remedy} or more, or a smaller batch"
        )
    for key, size in (("learner.batch_size", batch), ("learner.warmup_frames", warmup)):
        if capacity < size:
            raise ConfigError(f"replay.capacity_frames={capacity} is less than {key}={size}: {remedy} or more")
    if capacity // streams < rows:
        raise ConfigError(
            f"replay.capacity_frames={capacity} gives each of {streams} streams {capacity // streams} frames, and "
            f"algorithm.n_step={config.algorithm.n_step} with env.frame_stack={config.env.frame_stack} needs {rows}: "
            f"{remedy} or more"
        )
    if warmup >= budget:
        shorter = max(batch, budget // 10)
        remedy = f"learner.warmup_frames={shorter}" if shorter < budget else f"budget_frames={2 * least}"
        raise ConfigError(
            f"learner.warmup_frames={warmup} leaves nothing of budget_frames={budget} to learn in: set {remedy}"
        )


def _check_updates(config: Config) -> None:
    schedule, updates = config.schedule, most_updates(config)
    learnable = config.budget_frames - config.learner.warmup_frames
    key, value = "frames_per_update", schedule.frames_per_update
    if schedule.episodes_per_update is not None:
        key, value, learnable = "episodes_per_update", schedule.episodes_per_update, config.budget_frames
    if updates < 1 and value is not None:
        raise ConfigError(
            f"schedule.{key}={value:g} makes no update in budget_frames={config.budget_frames} with "
            f"learner.warmup_frames={config.learner.warmup_frames}: set "
            f"schedule.{key}={plain(max(1, learnable // 100))}, or a larger budget"
        )
    if MOST_UPDATES < updates < math.inf:
        raise ConfigError(
            f"budget_frames={config.budget_frames} with schedule.{key}={value or 0:g} means {updates:.0e} updates, "
            f"and more than {MOST_UPDATES:.0e} have no end: lower the budget or raise schedule.{key}"
        )


def check_opponents(config: Config) -> None:
    """Refuse checkpoints as opponents without their files, and a game without opponents.

    Whether a PettingZoo environment is a game is known only after its import in a child, which calls `check_game`.

    Raises:
        ConfigError: in one sentence that names the keys.
    """
    first, last = _shares_of_opponents(config)
    if (first["checkpoints"] or last["checkpoints"]) and not config.opponents.checkpoint_paths:
        key = "checkpoints" if first["checkpoints"] else "checkpoints_end"
        raise ConfigError(
            f"opponents.{key}={getattr(config.opponents, key):g} has no policies to play against: name them, as "
            "'opponents.checkpoint_paths=[RUN/best/policy.safetensors]'"
        )
    if known_backend(config.env.backend).is_game:
        check_game(config)


def check_game(config: Config) -> None:
    """Refuse what does not fit a turn-based game, which is played against opponents.

    Raises:
        ConfigError: in one sentence that names the keys.
    """
    if not config.schedule.kind.opponents:
        raise ConfigError(
            f"schedule={config.schedule.name} has no pool of opponents for {config.env.id}, a turn-based game: use "
            "schedule=async"
        )
    first, last = _shares_of_opponents(config)
    for weights, when, key in ((first, "", ""), (last, " at the end", "_end")):
        if not any(weights.values()):
            keys = ", ".join(f"opponents.{kind}{key}" for kind in weights)
            raise ConfigError(f"nobody is played against{when}: set one of {keys}")


def _shares_of_opponents(config: Config) -> tuple[dict[str, float], dict[str, float]]:
    """How often each kind of opponent is drawn at the beginning and at the end of a run."""
    section, kinds = config.opponents, ("random", "scripted", "latest", "snapshots", "checkpoints")
    first = {kind: getattr(section, kind) for kind in kinds}
    return first, {kind: first[kind] if (end := getattr(section, f"{kind}_end")) is None else end for kind in kinds}


def _check_algorithm(config: Config) -> None:
    algorithm, entry = config.algorithm, ALGORITHMS[config.algorithm.name]
    if algorithm.prioritized and config.replay.initial_priority == "collector" and entry.no_first_priority:
        raise ConfigError(
            f"replay.initial_priority=collector does not go with algorithm={algorithm.name}, whose priority "
            f"{entry.no_first_priority}, which the values that a collector acts by do not say: set "
            "replay.initial_priority=max"
        )
    entry.check(algorithm)
    _check_normalization(config)


def _check_normalization(config: Config) -> None:
    algorithm = config.algorithm
    if algorithm.normalize_observations and algorithm.scale_observations:
        raise ConfigError(
            "algorithm.normalize_observations=true and algorithm.scale_observations=true scale the same numbers: set "
            "one of them to false"
        )
    for key in ("normalize_observations", "normalize_rewards"):
        if getattr(algorithm, key) and getattr(algorithm, "network", "auto") != "auto":
            raise ConfigError(
                f"algorithm.{key}=true keeps its statistics in networks of ours, and algorithm.network="
                f"{algorithm.network} is another: leave one of the two out"  # type: ignore[attr-defined]
            )
        if getattr(algorithm, key) and config.schedule.kind.local_agents:
            raise ConfigError(
                f"algorithm.{key}=true does not go with schedule={config.schedule.name}, whose local agents share "
                "weights and no statistics: use schedule=async"
            )


def _check_network(config: Config) -> None:
    sizes = config.algorithm.hidden_sizes
    if len(sizes) > 100:
        raise ConfigError(
            f"algorithm.hidden_sizes names {len(sizes)} layers: a network of more than 100 is not trained"
        )
    weights = sum(size * (after + 1) for size, after in zip(sizes, [*sizes[1:], 1], strict=False))
    copies = COPIES + (config.collector.num_workers or 1)
    needed, there = 4 * copies * weights, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ConfigError(
            f"algorithm.hidden_sizes={sizes} makes {weights} weights, of which the run holds {copies} copies, "
            f"{needed / 2**30:.0f} GiB in all, and this machine has {there / 2**30:.0f} GiB: set smaller layers"
        )


def _check_cluster(config: Config) -> None:
    """Refuse what collectors on other machines do not do."""
    cluster, schedule, workers = config.cluster, config.schedule, config.collector.num_workers or 0
    if not schedule.kind.collectors:
        raise ConfigError(
            f"schedule={schedule.name} has no collectors that cluster={cluster.name} could place on nodes: set "
            "schedule=async or sync, or cluster=none"
        )
    for key in ("episodes_per_round", "episodes_per_update"):
        if getattr(schedule, key) is not None:
            raise ConfigError(
                f"schedule.{key}={getattr(schedule, key):g} does not go with cluster={cluster.name}, whose nodes share "
                f"a limit in frames: leave it out, or set cluster=none"
            )
    if config.telemetry.trace:
        raise ConfigError(
            f"telemetry.trace=true follows processes of this machine, and cluster={cluster.name} has others: set "
            "cluster=none for a trace"
        )
    share = cluster.workers_per_node or workers // cluster.nodes
    if workers != cluster.nodes * share:
        raise ConfigError(
            f"collector.num_workers={workers} follows from cluster.nodes={cluster.nodes} and "
            f"cluster.workers_per_node={shown(cluster.workers_per_node or 'null')}: set these, and leave it out"
        )
    streams, least = frames_of_step(config), LEAST_BLOCKS * cluster.block
    if config.replay.capacity_frames // streams < least:
        raise ConfigError(
            f"replay.capacity_frames={config.replay.capacity_frames} gives each of {streams} environments "
            f"{config.replay.capacity_frames // streams} frames, and collectors on other machines need {least}: set "
            f"replay.capacity_frames={least * streams} or more"
        )


def _check_instances(config: Config) -> None:
    env = config.env
    if env.instance_key is None:
        if env.first_instance:
            raise ConfigError(
                f"env.first_instance={env.first_instance} is where the numbers of env.instance_key begin, which is not "
                "set: name the constructor's argument, as env.instance_key=port, or leave env.first_instance out"
            )
        return
    if env.instance_key in env.kwargs:
        raise ConfigError(
            f"env.kwargs.{env.instance_key}={shown(env.kwargs[env.instance_key])} would be the same for every "
            f"environment, and env.instance_key={env.instance_key} gives each its number: leave the former out, and "
            "say with env.first_instance where the numbers begin"
        )
    if not env.instance_key.isidentifier():
        raise ConfigError(f"env.instance_key={shown(env.instance_key)} is no argument's name: name one, as port")
