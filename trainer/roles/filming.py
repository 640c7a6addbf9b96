"""Pictures of greedy episodes: for `trainer.play`, and for the videos of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.sections import Config
from trainer.envs import EnvError
from trainer.roles.greedy import Episodes, Players, evaluate
from trainer.telemetry.video import opened, pictures_of

FPS, GAME_FPS = 30, 2  # pictures per second; of a turn-based game
MOST_STEPS = 1_000  # of a video of an evaluation

MakeWorld = Callable[..., Any]  # see `trainer.roles.evaluator.world_of`


def fps_of(world: Any) -> int:
    """Pictures per second for a world."""
    return GAME_FPS if world.specs[0].against_opponents else FPS


def play(
    players: Players, world: Any, episodes: int, max_steps: int, seed: int
) -> tuple[dict[str, list[float]], list[Any]]:
    """Play greedy episodes in a world of one sub-environment.

    Args:
        players: the policies.
        world: of one sub-environment, with rendering.
        episodes: to be played.
        max_steps: of all episodes together.
        seed: of the first episode.

    Returns:
        Returns of the finished episodes by agent, and what `render` returned after each step.

    Raises:
        EnvError: the environment failed.
    """
    shown: list[Any] = []

    def watch(_: object) -> bool:
        rendered = world.render()
        shown.append(rendered.copy() if isinstance(rendered, np.ndarray) else rendered)
        return len(shown) < max_steps

    played = evaluate(players, world, episodes, seed, watch=watch)
    return {agent: found.returns for agent, found in zip(world.agents, played, strict=True)}, shown


def film(
    config: Config, players: Players, make_world: MakeWorld, seed: int, path: Path,
    watch: Callable[[list[Episodes]], bool] | None = None,
) -> str:  # fmt: skip
    """Write a video of one greedy episode, or of its first `MOST_STEPS` steps.

    Args:
        config: of the run.
        players: the policies.
        make_world: `make_world(config, num_envs, render_mode) -> world`.
        seed: of the episode.
        path: of the video, ending in .mp4.
        watch: called after every step with what was played so far; once it returns False, the video ends.

    Returns:
        "", or in words why there is no video.
    """
    if config.env.vectorization == "native":  # which draws nothing
        config = replace(config, env=replace(config.env, vectorization="auto"))
    steps = pictures = 0
    try:
        with closing(make_world(config, 1, render_mode="rgb_array")) as world, opened(path, fps_of(world)) as add:

            def look(played: list[Episodes]) -> bool:
                nonlocal steps, pictures
                steps += 1
                for picture in pictures_of(world.render(), config.env.id):
                    add(picture)
                    pictures += 1
                return steps < MOST_STEPS and (watch is None or watch(played))

            evaluate(players, world, 1, seed, watch=look)
    except (EnvError, OSError) as error:
        return str(error)
    return "" if pictures else f"{config.env.id}: its render gave nothing (None) after each of {steps} steps"
