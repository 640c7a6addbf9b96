"""Warnings about valid configurations that are probably a mistake: one sentence each, with the numbers."""

from __future__ import annotations

import math

from trainer.config.algorithms import ALGORITHMS
from trainer.config.consistency import most_updates
from trainer.config.fields import bounds_text, shown
from trainer.config.resolving import resolve
from trainer.config.sections import Config, config_keys
from trainer.envs.backends import known_backend

FEW_UPDATES, MANY_UPDATES = 100, 10**9
GATHERED = 10  # most rows that are sampled at once, in capacities of the replay
SHORT_EPISODE = 10  # frames of an episode, assumed where the number of updates follows that of episodes
FOLLOWS = 0.05  # least share of the way to the network that a target network goes in a whole run
FAR = 0.1  # largest distance of the last epsilon from `collector.epsilon_end`


def warnings(config: Config, cores: int) -> list[str]:
    """Warnings about a valid configuration.

    Args:
        config: resolved or not.
        cores: that the run may use.
    """
    updates = most_updates(resolve(config, cores))
    return [
        *_unusual(config),
        *_of_updates(config, updates),
        *_of_exploration(config),
        *ALGORITHMS[config.algorithm.name].check(config.algorithm),
        *_without_effect(config),
        *_of_machine(config, cores),
    ]


def _unusual(config: Config) -> list[str]:
    found, values = [], config_keys(config)
    for key, item in config_keys().items():
        if "usual" not in item.metadata or key not in values:
            continue
        (low, high), value = item.metadata["usual"], values[key]
        if any(one is not None and not low <= one <= high for one in (value if isinstance(value, list) else [value])):
            found.append(f"{key}={shown(value)} is unusual: values {bounds_text(low, high)} are what trains")
    return found


def _of_updates(config: Config, updates: float) -> list[str]:
    found, algorithm, learner = [], config.algorithm, config.learner
    key = "frames_per_update" if config.schedule.episodes_per_update is None else "episodes_per_update"
    if key == "episodes_per_update":
        updates /= SHORT_EPISODE
    if updates < FEW_UPDATES:
        found.append(
            f"schedule.{key}={getattr(config.schedule, key) or 0:g} in budget_frames={config.budget_frames} with "
            f"learner.warmup_frames={learner.warmup_frames} makes {updates:.0f} updates at most: nothing is learned by "
            "so few"
        )
    if MANY_UPDATES < updates < math.inf:
        found.append(
            f"schedule={config.schedule.name} with budget_frames={config.budget_frames} makes {updates:.0e} updates: "
            f"at a millisecond each that is {updates / 86_400_000:.0f} days"
        )
    if learner.batch_size * learner.prefetch_batches > GATHERED * config.replay.capacity_frames:
        found.append(
            f"learner.prefetch_batches={learner.prefetch_batches} x learner.batch_size={learner.batch_size} rows are "
            f"gathered at once, and replay.capacity_frames={config.replay.capacity_frames} are there"
        )
    if algorithm.target_tau is None and algorithm.target_update_every_updates > updates:
        found.append(
            f"algorithm.target_update_every_updates={algorithm.target_update_every_updates} is more than the "
            f"{updates:.0f} updates of this run: the target network stays as it began"
        )
    default = config_keys()["algorithm.target_update_every_updates"].default
    if algorithm.target_tau is not None and updates < algorithm.target_update_every_updates != default:
        found.append(
            f"algorithm.target_update_every_updates={algorithm.target_update_every_updates} has no effect with "
            f"algorithm.target_tau={algorithm.target_tau:g}: for copies set algorithm.target_tau=null"
        )
    if algorithm.target_tau is not None and algorithm.target_tau * updates < FOLLOWS:
        found.append(
            f"algorithm.target_tau={algorithm.target_tau:g} with {updates:.0f} updates: the target network stays "
            "nearly as it began"
        )
    if not config.schedule.kind.rounds and learner.publish_every_updates > updates:
        found.append(
            f"learner.publish_every_updates={learner.publish_every_updates} is more than the {updates:.0f} updates of "
            "this run: the collectors act by the first weights all along"
        )
    return found + _of_learning_rate(config, updates)


def _of_learning_rate(config: Config, updates: float) -> list[str]:
    learner, found = config.learner, []
    end, warm = learner.learning_rate_end, learner.learning_rate_warmup_updates
    if end is not None and learner.learning_rate_schedule == "constant":
        found.append(f"learner.learning_rate_end={end:g} does nothing with learner.learning_rate_schedule=constant")
    elif end is not None and end > learner.learning_rate:
        found.append(
            f"learner.learning_rate_end={end:g} is above learner.learning_rate={learner.learning_rate:g}: it will rise"
        )
    if warm > updates:
        found.append(
            f"learner.learning_rate_warmup_updates={warm} is more than the {updates:.0f} updates of this run: the "
            f"learning rate never reaches learner.learning_rate={learner.learning_rate:g}"
        )
    return found


def _of_exploration(config: Config) -> list[str]:
    collector = config.collector
    if collector.random_frames >= config.budget_frames:
        return [
            f"collector.random_frames={collector.random_frames} is not below budget_frames={config.budget_frames}: "
            "every action is random to the end"
        ]
    if not ALGORITHMS[config.algorithm.name].explores_by_epsilon(config.algorithm):
        return []
    if collector.exploration == "apex":
        if collector.apex_epsilon in (0.0, 1.0):
            what = "nobody explores" if collector.apex_epsilon == 0 else "every action is random"
            return [f"collector.apex_epsilon={collector.apex_epsilon:g}: {what}"]
        return []
    start, end, frames = collector.epsilon_start, collector.epsilon_end, collector.epsilon_decay_frames
    last = start + (end - start) * min(1.0, config.budget_frames / frames) if frames else end
    if abs(last - end) > FAR:
        return [
            f"collector.epsilon_decay_frames={frames} is more than budget_frames={config.budget_frames}: epsilon is "
            f"still {last:.2f} at the end, not collector.epsilon_end={end:g}"
        ]
    if end > start:
        return [f"collector.epsilon_end={end:g} is above collector.epsilon_start={start:g}: exploration will grow"]
    if start == end == 0:
        return ["collector.epsilon_start=0 and collector.epsilon_end=0: nobody explores"]
    if end > 1 - FAR:
        return [f"collector.epsilon_end={end:g}: nearly every action is random to the end"]
    return []


def _without_effect(config: Config) -> list[str]:
    found, schedule, evaluator = [], config.schedule, config.evaluator
    if not schedule.kind.rounds:
        for key in ("episodes_per_round", "updates_per_round"):
            if getattr(schedule, key) is not None:
                found.append(
                    f"schedule.{key} does nothing with schedule={schedule.name}: it belongs to sync and sequential"
                )
        if schedule.frames_per_update is not None and (schedule.tolerance_frames or 0) > 2 * config.budget_frames:
            found.append(
                f"schedule.tolerance_frames={schedule.tolerance_frames} is more than "
                f"budget_frames={config.budget_frames}: collection never waits for learning"
            )
    if evaluator.stop_at_return is not None and not 0 < evaluator.every_frames <= config.budget_frames:
        found.append(
            f"evaluator.stop_at_return={evaluator.stop_at_return:g} does nothing: with "
            f"evaluator.every_frames={evaluator.every_frames} nothing is evaluated within "
            f"budget_frames={config.budget_frames}"
        )
    if known_backend(config.env.backend).is_game:
        found += _of_opponents(config)
    return found


def _of_opponents(config: Config) -> list[str]:
    found, section = [], config.opponents
    for key, kind in (("checkpoint_paths", "checkpoints"), ("start_from", "snapshots")):
        if getattr(section, key) and not (getattr(section, kind) or getattr(section, f"{kind}_end")):
            found.append(f"opponents.{key} does nothing: opponents.{kind}=0, so nobody of that kind is played")
    wanted = section.snapshots or section.snapshots_end
    if wanted and section.start_from is None and section.snapshot_every_frames > config.budget_frames:
        found.append(
            f"opponents.snapshot_every_frames={section.snapshot_every_frames} is more than "
            f"budget_frames={config.budget_frames}: no snapshot is taken before the end"
        )
    return found


def _of_machine(config: Config, cores: int) -> list[str]:
    found, workers, threads = [], config.collector.num_workers, config.learner.num_threads
    here = not config.schedule.kind.one_process and not config.cluster.remote
    if workers is not None and workers > cores and here:
        found.append(f"collector.num_workers={workers} is more than the {cores} cores at hand: workers will share them")
    agents = config.schedule.num_agents
    if config.schedule.kind.local_agents and agents > cores:
        found.append(f"schedule.num_agents={agents} is more than the {cores} cores at hand: agents will share them")
    if threads > cores:
        found.append(f"learner.num_threads={threads} is more than the {cores} cores at hand: threads will share them")
    return found
