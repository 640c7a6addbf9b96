"""The work of the final evaluation: greedy episodes of the last and of the best policy, in one world.

Same environments, same seeds for both: environments may draw a problem of their own when they are made. It runs beside
the main process (`trainer.processes.task`); `trainer.final` is what waits for it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from envs import EnvSpec
from trainer import checkpoint, seeds
from trainer.config import Config
from trainer.processes import evaluator as evaluating
from trainer.processes.evaluator import Episodes
from trainer.processes.task import Tell

TELL_S = 0.5  # between two words of how far it is


def play(
    config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path, seconds: float, tell: Tell
) -> None:  # fmt: skip
    """Tells "evaluation", the last policy's by which it may become the best, and now and then "played".

    The latter is (policy, its frames, episodes of each agent, whether these are all).

    Args:
        config: the run.
        agents: configuration and spec of each agent.
        run_dir: its folder, with the policies.
        seconds: that it may take; the rest is not played.
        tell: the main process.
    """
    end = time.monotonic() + seconds
    last = checkpoint.load(run_dir / "checkpoints" / "last_policy.pt")
    path, count = run_dir / "best" / "policy.pt", config.evaluator.final_episodes
    if checkpoint.whole(path, partial(tell, "warning"), "weights", "frames") is None:  # torn, or never asked for
        checkpoint.write_aside(last, path)
    if checkpoint.load(path)["frames"] != last["frames"]:
        _judge(config, agents, run_dir, last, (time.monotonic() + end) / 2, tell)
    best = checkpoint.load(path)
    crew, seed = evaluating.Players(agents), seeds.of_final_evaluation(config.seed, config.evaluator.num_envs)
    with closing(evaluating.world_of(config, min(config.evaluator.num_envs, count))) as world:
        same = best["frames"] == last["frames"]
        # The best one has what the last one leaves of the time, which is half of it at least.
        for name, kept, until in (("last", last, end if same else (time.monotonic() + end) / 2), ("best", best, end)):
            if name == "last" or not same:
                crew.load(kept["weights"])
                watch = _watch(name, kept["frames"], count, until, tell)
                played = evaluating.evaluate(crew, world, count, seed, watch=watch)
            tell("played", (name, kept["frames"], played, True))


def _judge(
    config: Config, agents: Sequence[tuple[Config, EnvSpec]], run_dir: Path, last: dict[str, Any], until: float,
    tell: Tell,
) -> None:  # fmt: skip
    """Keep the last policy as the best if it is, where there is time to find out."""
    watch = _watch("", 0, config.evaluator.episodes, until, tell)
    with closing(evaluating.Judge(config, agents, run_dir, watch)) as judge:
        evaluation = judge.evaluate(last["weights"], last["frames"], time.monotonic())
    if evaluation is not None:
        tell("evaluation", evaluation)


def _watch(name: str, frames: int, count: int, until: float, tell: Tell) -> Callable[[list[Episodes]], bool]:
    """For `evaluate`: signs of life, now and then what was played, and False once the time is up."""
    told = time.monotonic()

    def watch(played: list[Episodes]) -> bool:
        nonlocal told
        now = time.monotonic()
        if now - told < TELL_S:
            tell("", None)
        else:
            told = now
            done = min(len(own.returns) for own in played)
            tell("progress", f"{f'{name} policy, ' if name else ''}{done} of {count} episodes")
            if name:
                tell("played", (name, frames, played, False))
        return now < until

    return watch
