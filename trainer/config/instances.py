"""The number of each environment of a run, for constructors that want one (`env.instance_key`).

From `env.first_instance` on come the environments of the collectors, in the order of the replay's streams, then those
of whatever else plays: evaluations, the first look at the environment, the league. Of the latter only one plays at a
time. So no two environments have the same number at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from trainer.config.sections import Config, EnvConfig


def env_of_collector(config: Config, stream: int) -> EnvConfig:
    """The section `env` for a collector.

    Args:
        config: of the run.
        stream: number of its first environment among those of all collectors.
    """
    return replace(config.env, first_instance=config.env.first_instance + stream)


def env_of_others(config: Config) -> EnvConfig:
    """The section `env` for whatever else plays."""
    collector, schedule = config.collector, config.schedule
    collectors = schedule.num_agents if schedule.kind.local_agents else (collector.num_workers or 1)
    return env_of_collector(config, collectors * collector.envs_per_worker)
