"""Random play before a run, where a key waits for the rewards of the environment (`trainer.config.rewards`).

Runs in: the task of the first look at the environment, so it is watched like it, and nothing is trained yet.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from trainer import envs
from trainer.config.instances import env_of_others
from trainer.config.rewards import RewardsSeen
from trainer.config.sections import Config
from trainer.host import seeds
from trainer.roles.task import Tell

MOST_FRAMES = 5_000  # of random play
TELL_EVERY = 100  # frames between two words of how far it is


def play_at_random(config: Config, tell: Tell) -> dict[str, RewardsSeen]:
    """The rewards, as they are learned from, that each agent gets in as many frames as the warm-up has.

    Args:
        config: of the run.
        tell: the main process.

    Raises:
        EnvError: the environment failed.
    """
    frames = min(config.learner.warmup_frames, MOST_FRAMES)
    with seeds.apart({}), closing(envs.make_world(env_of_others(config), 1)) as world:
        seeds.seed_globals(config.seed, "describe", stage=1)
        observations = world.reset(seeds.of_worker(config.seed, 0, 0))
        generator = np.random.default_rng(seeds.of_random_player(config.seed, 0))
        rewards = np.zeros((len(world.agents), frames), np.float32)
        ends = np.zeros((len(world.agents), frames), bool)
        for frame in range(frames):
            actions = [
                spec.action.random(generator, 1, seen.get("action_mask"))
                for spec, seen in zip(world.specs, observations, strict=True)
            ]
            steps = world.step(actions)
            observations = [step[0] for step in steps]
            for agent, (_, reward, terminated, truncated) in enumerate(steps):
                rewards[agent, frame], ends[agent, frame] = reward[0], terminated[0] or truncated[0]
            if frame % TELL_EVERY == 0:
                tell("progress", f"{frame} of {frames} frames of random play, for the size of rewards")
        limits = [spec.max_episode_steps for spec in world.specs]
        return {
            name: _seen(own, ended, limit)
            for name, own, ended, limit in zip(world.agents, rewards, ends, limits, strict=True)
        }


def _seen(rewards: Any, ends: Any, limit: int | None) -> RewardsSeen:
    size = np.abs(rewards)
    there = size[size > 0]
    if not len(there):
        return RewardsSeen(len(size), 0.0, 0.0, 0.0, True, limit)
    return RewardsSeen(
        len(size), float(size.mean()), float(np.quantile(there, 0.95, method="lower")), float(there.max()),
        not (size[~ends] > 0).any(), limit,
    )  # fmt: skip
