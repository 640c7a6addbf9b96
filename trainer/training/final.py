"""After the training: the final evaluation of the last and the best policy, and the league of self-play.

Each runs as a task in another process, with a time limit. Results up to the limit, or to a failure of the process,
count. If the league fails there is only a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from trainer.config.sections import Config
from trainer.host.errors import RunFailed
from trainer.roles import final_work
from trainer.roles.evaluator import Evaluation
from trainer.roles.greedy import Episodes, info_means
from trainer.selfplay import league
from trainer.telemetry.rows import Row, return_texts
from trainer.training.system import System
from trainer.training.tasks import Task, TaskFailed, beside

LEAST_S = 60.0  # for the final evaluation, and for the league, however short the training was
SHOWN_INFO = 4  # most scalars of `info` in a sentence
LONGEST_LEAGUE_S = 120.0  # unless evaluator.final_max_seconds says something else


def finish(system: System, summary: dict[str, Any]) -> None:
    """Run the final evaluation and the league of a closed system, and add their metrics to `summary`.

    Raises:
        RunFailed: the final evaluation failed too often; `summary` has the results until then.
    """
    config = system.config
    limit_s = config.evaluator.final_max_seconds
    trained_s = max(LEAST_S, summary["wall_s"])
    try:
        final_evaluation(system, summary, trained_s if limit_s is None else limit_s)
    finally:
        if system.plans[0].spec.against_opponents and config.evaluator.league_games:
            _league(system, summary, min(trained_s, LONGEST_LEAGUE_S) if limit_s is None else limit_s)


def final_evaluation(system: System, summary: dict[str, Any], seconds: float) -> None:
    """Play fresh greedy episodes of the last and the best policy; the metrics `eval_*` are those of the best one.

    The best policy was chosen by evaluations on other episodes, so its return here is not biased by the choice.

    Args:
        system: after the training.
        summary: takes the metrics.
        seconds: time limit; episodes that have ended by then count.

    Raises:
        RunFailed: its process failed too often.
    """
    config, loggers = system.config, system.loggers
    played: dict[str, list[Episodes]] = {}
    row: Row = dict(system.last_row)  # so that a run's last row says how it ended, all of it

    def take(found: tuple[str, int, list[Episodes], bool]) -> None:
        name, frames, episodes, ended = found
        played[name] = episodes
        told = {"frames": frames, **_metrics_of(episodes)}
        row.update({f"final_{name}_{key}": value for key, value in told.items() if value is not None})
        if ended:
            loggers.event(f"final evaluation, {name} policy: {in_words(config, episodes, seconds)}", role="evaluator")

    task = Task(
        "final evaluation",
        "evaluator",
        partial(final_work.play_episodes, config, system.players(), system.run_dir, seconds),
        loggers.progress,
        {"evaluation": partial(report, system), "played": take, "warning": loggers.event},
    )
    try:
        beside(config, task, loggers.event)
    except TaskFailed as error:
        many = " and ".join(f"{len(episodes[0].returns)} of the {name} policy" for name, episodes in played.items())
        kept = f"episodes that ended are kept, {many}" if many else "only its metrics are missing"
        text = f"{error}: the training is whole, {kept}; python -m trainer.eval {system.run_dir} plays others"
        raise RunFailed(text, "evaluator", error.traceback, error.pid) from error
    finally:
        summary |= summary_metrics([plan.name for plan in system.learners.acting], played)
        if played:
            loggers.write(row)


def in_words(config: Config, played: Sequence[Episodes], seconds: float) -> str:
    """The result of a final evaluation in words: return, number of episodes, and why there are fewer than asked for."""
    returns = [value for episodes in played for value in episodes.returns]
    asked, done, cut = config.evaluator.final_episodes, len(played[0].returns), played[0].cut
    if not returns:
        return f"none of {asked} greedy episodes ended within {seconds:.0f} s (evaluator.final_max_seconds)"
    told = " +- ".join(return_texts(float(np.mean(returns)), float(np.std(returns))))
    text = f"return {told} over {done} greedy episodes"
    text += info_in_words(info_means(played))
    if cut:
        text += cut_in_words(config, done, cut, asked)
    elif done < asked:
        text += f" of {asked}: the time for it was up (evaluator.final_max_seconds)"
    return text


def info_in_words(info: Mapping[str, float]) -> str:
    """Means of what `info` held at the ends of episodes, for the end of a sentence."""
    return "".join(f", {name} {mean:.3g}" for name, mean in list(info.items())[:SHOWN_INFO])


def cut_in_words(config: Config, done: int, cut: int, asked: int) -> str:
    """The end of a sentence about episodes: how many were cut."""
    fewer = (
        f", {asked - done} of {asked} were not played, as their environments still were in those"
        if done < asked
        else ""
    )
    return f"; {cut} of them were cut at evaluator.max_episode_steps={config.evaluator.max_episode_steps}{fewer}"


def _metrics_of(played: Sequence[Episodes]) -> dict[str, float | int | None]:
    """Metrics of one policy's episodes; None for a mean without episodes."""
    returns = [value for episodes in played for value in episodes.returns]
    return {
        "return_mean": float(np.mean(returns)) if returns else None,
        "return_std": float(np.std(returns)) if returns else None,
        "episodes": len(played[0].returns) if played else 0,
        "cut_episodes": played[0].cut if played else 0,
        **{f"info_{name}": mean for name, mean in info_means(played).items()},
    }


def summary_metrics(names: Sequence[str], played: dict[str, list[Episodes]]) -> dict[str, Any]:
    """Metrics of summary.json: of the best policy, and the mean of the last one; None if no episode ended."""
    found: dict[str, Any] = {f"eval_{key}": value for key, value in _metrics_of(played.get("best", [])).items()}
    last = _metrics_of(played.get("last", []))
    found |= {f"eval_last_{key}": last[key] for key in ("return_mean", "episodes")}
    if len(names) > 1 and played.get("best"):
        found["eval_return_mean_by_agent"] = {
            name: float(np.mean(episodes.returns))
            for name, episodes in zip(names, played["best"], strict=True)
            if episodes.returns
        }
    return found


def report(system: System, evaluation: Evaluation) -> None:
    """Report an evaluation to the loggers and the callbacks."""
    best, count = ", the best so far" if evaluation.best else "", len(evaluation.returns)
    cut = cut_in_words(system.config, count, evaluation.cut, evaluation.asked) if evaluation.cut else ""
    told = " +- ".join(return_texts(evaluation.mean, evaluation.std))
    system.loggers.event(
        f"evaluation at {evaluation.frames} frames: return {told} over "
        f"{count} greedy episodes{info_in_words(evaluation.info)}{best}{cut}",
        role="evaluator",
        pid=evaluation.pid,
    )
    if evaluation.video is not None:
        system.loggers.event(
            f"video of a greedy episode at {evaluation.frames} frames: {evaluation.video}", role="evaluator",
            pid=evaluation.pid, video=evaluation.video, frames=evaluation.frames,
        )  # fmt: skip
    if evaluation.no_video:
        system.loggers.event(f"warning: there will be no videos ({evaluation.no_video})", role="evaluator")
    if evaluation.problem:
        system.loggers.event(
            f"warning: the best policy could not be kept ({evaluation.problem}): make room in {system.run_dir}",
            role="evaluator",
        )
    system.loggers.write(
        {
            "frames": evaluation.frames,
            "wall_s": evaluation.taken_at - system.telemetry[0].start,
            "eval_return_mean": evaluation.mean,
            "eval_return_std": evaluation.std,
            "eval_episodes": count,
            "eval_cut_episodes": evaluation.cut,
            "eval_length_mean_frames": float(np.mean(evaluation.lengths)),
            "eval_overestimation": evaluation.overestimation,
            "eval_s": evaluation.seconds,
            **{f"eval_info_{name}": mean for name, mean in evaluation.info.items()},
            **{f"{name}/eval_return_mean": mean for name, mean in evaluation.by_agent.items()},
        }
    )
    system.callbacks.evaluation(evaluation)


def _league(system: System, summary: dict[str, Any], seconds: float) -> None:
    """Play the league with `evaluator.league_games` games for each pair; a failure is only a warning."""
    config, run_dir, loggers = system.config, system.run_dir, system.loggers
    asked = config.evaluator.league_games
    task = Task(
        "league",
        "league",
        partial(final_work.play_league, config, run_dir, asked, seconds),
        loggers.progress,
        {"warning": loggers.event},
    )
    try:
        result = beside(config, task)
    except TaskFailed as error:
        why = error.cause or str(error)
        loggers.event(f"warning: the league was not played ({why}); python -m trainer.league {run_dir}")
        return
    games = result["games_per_pair"]
    if games < asked:
        loggers.event(f"warning: the league stopped after {seconds:.0f} s with {games} games a pair")
    ranked = sorted(result["players"], key=lambda player: -player["elo"])
    text = ", ".join(league.rating_text(player) for player in ranked[:5])
    loggers.event(
        f"league of {len(ranked)}, {games} games a pair, Elo above random play: {text}; {run_dir / 'league.png'}"
    )
    elo = {player["name"]: player["elo"] for player in result["players"]}
    summary |= {"league_games": games, "elo": elo}
    row = {f"elo_{name}": value for name, value in elo.items() if name in ("best", "scripted")}
    if row:
        loggers.write({"frames": summary["frames"], "wall_s": summary["wall_s"], **row})
