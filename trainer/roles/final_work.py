"""The work at a run's end, beside the main process (`trainer.roles.task`): the final evaluation, and the league.

The final evaluation plays greedy episodes of the last and of the best policy in one world, with the same seeds for
both: environments may draw a problem of their own when they are made. `trainer.training.final` is what waits for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.run_files import RunFolder
from trainer.config.sections import Config
from trainer.envs import EnvSpec
from trainer.host import seeds
from trainer.roles import evaluator as evaluating
from trainer.roles.greedy import Episodes, Players, evaluate
from trainer.roles.policies import save_policy
from trainer.roles.task import Tell
from trainer.run_folder import checkpoint
from trainer.selfplay.league import league

TELL_S = 0.5  # between two words of how far it is


def play_episodes(
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
    folder, count = RunFolder(run_dir), config.evaluator.final_episodes
    last = checkpoint.load(checkpoint.last_policy(folder))
    best = checkpoint.whole(checkpoint.best_policy(folder), partial(tell, "warning"), "weights", "frames")
    if best is None:  # torn, or never asked for
        save_policy(folder.best_policy, json.loads(last["policy"]), last["weights"], last["frames"], {})
    elif best["frames"] != last["frames"]:
        _judge(config, agents, run_dir, last, (time.monotonic() + end) / 2, tell)
    best = checkpoint.load(checkpoint.best_policy(folder))
    players, seed = Players(agents), seeds.of_final_evaluation(config.seed, config.evaluator.num_envs)
    with closing(evaluating.world_of(config, min(config.evaluator.num_envs, count))) as world:
        same = best["frames"] == last["frames"]
        # The best one has what the last one leaves of the time, which is half of it at least.
        for name, kept, until in (("last", last, end if same else (time.monotonic() + end) / 2), ("best", best, end)):
            if name == "last" or not same:
                players.load(kept["weights"])
                watch = _watch(name, kept["frames"], count, until, tell)
                played = evaluate(players, world, count, seed, watch=watch)
            tell("played", (name, kept["frames"], played, True))
    _note(folder.best_policy, best, played, tell)


def _note(path: Path, best: dict[str, Any], played: Sequence[Episodes], tell: Tell) -> None:
    """Write into the best policy's file what its final episodes brought, which were not those that it was chosen by."""
    returns = [value for own in played for value in own.returns]
    if not returns or "policy" not in best or not path.exists():
        return
    header = json.loads(best["policy"])
    final = {
        "final_return_mean": float(np.mean(returns)), "final_return_std": float(np.std(returns)),
        "final_episodes": len(returns),
    }  # fmt: skip
    try:
        save_policy(path, header, best["weights"], best["frames"], {**header["returns"], **final})
    except OSError as error:
        tell("warning", f"warning: the best policy's file does not hold its final returns ({error}): make room for it")


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


def play_league(config: Config, run_dir: Path, games: int, seconds: float, tell: Tell) -> dict[str, Any]:
    """The league of a game's run; tells "warning" of what is left out.

    Args:
        config: the run's.
        run_dir: its folder.
        games: of each pair.
        seconds: that it may take.
        tell: the main process.

    Returns, raises:
        as `league`.
    """
    look = _until(time.monotonic() + seconds, tell)

    def watch(done: int, of: int) -> bool:
        going_on, _ = look(lambda: f"{done} of {of} games")
        return going_on

    return league(config, run_dir, games, lambda text: tell("warning", text), seconds, watch=watch)


def _watch(name: str, frames: int, count: int, until: float, tell: Tell) -> Callable[[list[Episodes]], bool]:
    """For `evaluate`: signs of life, now and then what was played, and False once the time is up."""
    look = _until(until, tell)

    def watch(played: list[Episodes]) -> bool:
        done = min(len(episodes.returns) for episodes in played)
        going_on, told = look(lambda: f"{f'{name} policy, ' if name else ''}{done} of {count} episodes")
        if told and name:
            tell("played", (name, frames, played, False))
        return going_on

    return watch


def _until(end: float, tell: Tell) -> Callable[[Callable[[], str]], tuple[bool, bool]]:
    """A sign of life at each call, in words each `TELL_S`; (whether there is time left, whether there were words)."""
    last = time.monotonic()

    def look(words: Callable[[], str]) -> tuple[bool, bool]:
        nonlocal last
        now = time.monotonic()
        if told := now - last >= TELL_S:
            last = now
            tell("progress", words())
        else:
            tell("", None)
        return now < end, told

    return look
