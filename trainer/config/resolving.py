"""The values of a configuration that depend on the machine, or on one another."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from trainer.config.machine import available_cores
from trainer.config.sections import Config, ScheduleConfig
from trainer.envs.backends import known_backend

GAMES_PER_ROUND = 4  # of a worker, where the schedule has rounds


def resolve(config: Config, cores: int | None = None) -> Config:
    """The configuration with every value filled in that depends on the machine.

    `cores` are those that the run may use; None: `available_cores`.
    """
    collector, schedule = config.collector, config.schedule
    if schedule.kind.local_agents:
        collector = replace(collector, num_workers=1)  # of each
    if collector.num_workers is None:
        collector = replace(collector, num_workers=_workers(config, available_cores() if cores is None else cores))
    step = max(1, cast(int, collector.num_workers) * collector.envs_per_worker)  # frames of one step of all workers
    if schedule.tolerance_frames is None:
        schedule = replace(schedule, tolerance_frames=max(512, 2 * step))
    if known_backend(config.env.backend).is_game and schedule.kind.repeatable:
        schedule = _rounds_of_games(schedule, cast(int, collector.num_workers))
    if schedule.frames_per_round is None and schedule.episodes_per_round is None:
        steps = schedule.kind.round_steps or max(1, round(1_024 / step))
        schedule = replace(schedule, frames_per_round=steps * step)
    return replace(config, collector=collector, schedule=schedule)


def _workers(config: Config, cores: int) -> int:
    """Two cores are left to the learner and the evaluator; one on a node, which sends what its workers collect."""
    cluster = config.cluster
    if cluster.remote:
        return cluster.nodes * (cluster.workers_per_node or max(1, cores - 1))
    return max(1, cores - 2)


def _rounds_of_games(schedule: ScheduleConfig, num_workers: int) -> ScheduleConfig:
    """Rounds of 4 games a worker, and one update for each game, unless something else was asked for."""
    if schedule.frames_per_round is None and schedule.episodes_per_round is None:
        schedule = replace(schedule, episodes_per_round=GAMES_PER_ROUND)
    if (
        schedule.episodes_per_round is not None
        and schedule.updates_per_round is None
        and schedule.episodes_per_update is None
    ):
        schedule = replace(schedule, updates_per_round=num_workers * schedule.episodes_per_round)
    return schedule
