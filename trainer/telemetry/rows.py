"""Every figure that a run tells of itself: name, type, unit, meaning. Whoever writes or reads a row goes by this.

`python -m trainer.telemetry.rows` prints docs/metrics.md.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainer.config.run_files import RunFolder
from trainer.reading import read_jsonl

# One measurement of the run: flat; with several agents each one's own figures stand under "<agent>/".
Row = dict[str, float | int | str]

# How the figures of several agents make the one under the plain key.
JOINS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "sum": sum, "max": max, "min": min,
}  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """What a key of a row stands for.

    Args:
        name: the key; a part in <> stands for a number or a name.
        type: int, float, str, or dict in the summary; a float may be missing (null in JSON, empty in CSV).
        unit: "" for a number without one.
        meaning: a line for docs/metrics.md.
        own: with several agents each one has its own, under `<agent>/<name>`.
        join: what the plain key then is of theirs, one of `JOINS`; text is the first agent's.
    """

    name: str
    type: type
    unit: str
    meaning: str
    own: bool = False
    join: str = "mean"


EVERY_ROW = (
    Metric("frames", int, "frames", "Frames collected until now, or when the weights were taken.", True, "max"),
    Metric("wall_s", float, "s", "Time in training at which that was, over all starts of the run."),
)  # fmt: skip

TRAINING = (
    Metric("updates", int, "updates", "Updates of the weights.", True, "sum"),
    Metric("frames_per_s", float, "frames/s", "Frames collected, over the last 10 s."),
    Metric("updates_per_s", float, "updates/s", "Updates, over the last 10 s.", True, "sum"),
    Metric("episodes", int, "episodes", "Training episodes that have ended.", True, "sum"),
    Metric("return_mean", float, "return", "Undiscounted return of the last 100 training episodes, mean.", True),
    Metric("return_min", float, "return", "The lowest of these.", join="min"),
    Metric("return_max", float, "return", "The highest of these.", join="max"),
    Metric("length_mean_frames", float, "frames", "Their mean length.", True),
    Metric("epsilon_mean", float, "", "Share of random actions, mean over the environments.", True),
    Metric("replay_fill", float, "", "Share of the replay's rows that are filled."),
    Metric("samples_per_insert", float, "", "Transitions drawn for each one stored since warm-up.", True),
    Metric("policy_lag_updates", float, "updates", "By these the collectors' weights are behind.", True),
    Metric("share_collectors_waiting", float, "", "Share of the time that collectors waited for the learner."),
    Metric("share_learner_waiting", float, "", "Share of the time that the learner waited for frames."),
    Metric("bottleneck", str, "", "Which side holds the other one up: collection, learning or balanced."),
    Metric("bottleneck_reason", str, "", "Why, in words."),
    Metric("eta_s", float, "s", "Until the budget is collected, at the present speed."),
    Metric("learning_rate", float, "", "Step size of Adam.", True),
    Metric("loss", float, "", "What is minimised, mean over the updates since the last row.", True),
    Metric("td_error", float, "", "Mean absolute TD error of these updates.", True),
    Metric("grad_norm", float, "", "Euclidean norm of their gradients before clipping, mean.", True),
    Metric("q_mean", float, "", "Value of the greedy action, mean over the last batch.", True),
    Metric("q_max", float, "", "Its largest.", True, "max"),
    Metric("target_q_mean", float, "", "The mean by the target network.", True),
    Metric("parameter_norm", float, "", "Euclidean norm of all trained values."),
    Metric("dormant_share", float, "", "Share of units below 2.5 % of their layer's mean activity.", True),
    Metric("churn", float, "", "Share of the last batch where online and target network act differently.", True),
    Metric("greedy_share_<action>", float, "", "Share of the last batch where this is the greedy action."),
    Metric("priority_entropy", float, "", "Entropy of the draws from a prioritized replay; 1 is uniform."),
    Metric("priority_max_over_mean", float, "", "Its largest priority over the mean one."),
    Metric("priority_beta", float, "", "Exponent of the importance weights."),
    Metric("staleness_updates", float, "updates", "Others' updates between its weights and its gradient, mean.", True),
    Metric("overlapped_updates", int, "updates", "Updates without a lock that ran while another one did.", True, "sum"),
    Metric("optimizer_steps", int, "updates", "Steps of the optimiser that local agents share."),
    Metric("lock_recoveries", int, "", "How often the holder of its lock was found dead."),
    Metric("score_<opponent>", float, "", "Share of games won against this kind of opponent, draws as halves."),
    Metric("score_low_<opponent>", float, "", "Lower end of its 95 % interval (Wilson)."),
    Metric("score_high_<opponent>", float, "", "Upper end of it."),
    Metric("games_<opponent>", int, "games", "Games behind it."),
    Metric("pool_size", int, "", "Past selves that are kept as opponents."),
    Metric("worker_restarts", int, "", "Collector processes that took the place of a dead or hung one."),
    Metric("checkpoint_s", float, "s", "Time that the last checkpoint took."),
    Metric("checkpoint_replay_mib", float, "MiB", "Of the replay, written by it."),
)  # fmt: skip

EVALUATION = (
    Metric("eval_return_mean", float, "return", "Undiscounted return of greedy episodes, mean.", True),
    Metric("eval_return_std", float, "return", "Its standard deviation over the episodes."),
    Metric("eval_episodes", int, "episodes", "How many they are; several agents: of all."),
    Metric("eval_cut_episodes", int, "episodes", "Of them cut at evaluator.max_episode_steps."),
    Metric("eval_length_mean_frames", float, "frames", "Their mean length."),
    Metric("eval_overestimation", float, "", "Value of their first action less the discounted return of it, mean."),
    Metric("eval_s", float, "s", "Time that the evaluation took."),
)  # fmt: skip

FINAL = (
    Metric("final_<policy>_frames", int, "frames", "Frames when the weights of the best, or last, were taken."),
    Metric("final_<policy>_return_mean", float, "return", "Fresh greedy episodes of the best or last policy, mean."),
    Metric("final_<policy>_return_std", float, "return", "Its standard deviation over the episodes."),
    Metric("final_<policy>_episodes", int, "episodes", "How many they are."),
    Metric("final_<policy>_cut_episodes", int, "episodes", "Of them cut at evaluator.max_episode_steps."),
)  # fmt: skip

LEAGUE = (Metric("elo_<player>", float, "Elo", "Rating above random play in the league at the end of the run."),)

SUMMARY = (
    Metric("env_id", str, "", "Environment."),
    Metric("algorithm", str, "", "Algorithm."),
    Metric("seed", int, "", "Seed of the run."),
    Metric("preset", str, "", "Preset that it was started with."),
    Metric("status", str, "", "finished, stopped or failed."),
    Metric("reason", str, "", "Why it ended."),
    Metric("stop_signal", int, "", "Number of the signal that stopped it, or null."),
    Metric("frames", int, "frames", "Frames collected."),
    Metric("updates", int, "updates", "Updates made."),
    Metric("episodes", int, "episodes", "Training episodes that ended."),
    Metric("return_mean", float, "return", "Mean of the last 100 of them."),
    Metric("wall_s", float, "s", "Time in training, over all starts of the run."),
    Metric("total_s", float, "s", "Time of its last start, with start-up and final evaluation."),
    Metric("frames_per_s", float, "frames/s", "Frames over the time in training."),
    Metric("updates_per_s", float, "updates/s", "Updates over it."),
    Metric("solved_s", float, "s", "Time in training until the weights that reached evaluator.stop_at_return."),
    Metric("solved_frames", int, "frames", "Their frames."),
    Metric("eval_return_mean", float, "return", "Final evaluation of the best policy on fresh episodes, mean."),
    Metric("eval_return_std", float, "return", "Its standard deviation over the episodes."),
    Metric("eval_episodes", int, "episodes", "How many they are."),
    Metric("eval_cut_episodes", int, "episodes", "Of them cut at evaluator.max_episode_steps."),
    Metric("eval_last_return_mean", float, "return", "The same of the last policy."),
    Metric("eval_last_episodes", int, "episodes", "How many they are."),
    Metric("eval_return_mean_by_agent", dict, "return", "The best policy's, by agent."),
    Metric("redrawn_rows", int, "rows", "Rows drawn anew, as they were overwritten meanwhile."),
    Metric("learner_restarts", int, "", "Learner processes that took the place of a dead or hung one."),
    Metric("league_games", int, "games", "Games of each pair in the league."),
    Metric("elo", dict, "Elo", "Ratings of the league, by player."),
)  # fmt: skip

# Kind of row -> its own keys; a row is of the first kind of which it has a key, and training's where it has none.
KINDS = {"evaluation": EVALUATION, "final": FINAL, "league": LEAGUE, "training": TRAINING}


def declared(key: str) -> Metric | None:
    """What a row's key stands for, None where nobody has declared it."""
    return _declared(key)[1]


def kind(row: Mapping[str, Any]) -> str:
    """Which of `KINDS` a row is of."""
    kinds = {_declared(key)[0] for key in row}
    return next((name for name in KINDS if name in kinds), "training")


def faults(row: Mapping[str, Any], summary: bool = False) -> list[str]:
    """What is wrong with a row, a sentence each: keys that nobody has declared, values of another type.

    Args:
        row: one, or what summary.json holds.
        summary: it is the latter.
    """
    found = []
    for key, value in row.items():
        metric = _find(key, SUMMARY) if summary else declared(key)
        if metric is None:
            found.append(f"{key} is not declared in trainer/telemetry/rows.py")
        elif value is None:
            if metric.type is str:
                found.append(f"{key} is missing")
        elif isinstance(value, bool) or not isinstance(value, (int, float) if metric.type is float else metric.type):
            found.append(f"{key}={value!r} is no {metric.type.__name__}")
    return found


def figure(row: Mapping[str, Any], key: str) -> float:
    """The number under a declared key, NaN where there is none or it is not finite.

    Raises:
        KeyError: nobody has declared the key, so that nobody writes it.
    """
    if declared(key) is None and _find(key, SUMMARY) is None:
        raise KeyError(f"{key} is not declared in trainer/telemetry/rows.py")
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # a whole number of 400 digits, which only a damaged file holds
        return math.nan


def joined(names: Sequence[str], rows: Sequence[Row]) -> Row:
    """One row of several agents': theirs joined under plain keys, leaving out what is NaN, and each one's own below."""
    row: Row = {}
    for key in dict.fromkeys(key for own in rows for key in own):
        metric, values = declared(key), [own[key] for own in rows if key in own]
        assert metric is not None, key
        if metric.type is str:
            row[key] = values[0]
        else:
            known = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
            row[key] = JOINS[metric.join](known) if known else math.nan
    for name, own in zip(names, rows, strict=True):
        row |= {f"{name}/{key}": value for key, value in own.items() if (metric := declared(key)) and metric.own}
    return row


def read(run_dir: Path) -> tuple[list[Row], str]:
    """The rows of RUN/metrics.jsonl, oldest first, and a sentence about damaged lines, or "".

    What a resumed run went through again is taken from its later attempt: that begins with a row of training at the
    frames that it goes on from, and what was told of later frames before is left out. An evaluation that comes late
    leaves nothing out.

    Raises:
        ReadError: the file cannot be read.
    """
    found, problem = read_jsonl(RunFolder(run_dir).metrics)
    rows: list[Row] = []
    reached = -math.inf
    for row in found:
        frames = figure(row, "frames")
        if not frames >= 0:
            problem = problem or f"{RunFolder(run_dir).metrics} is damaged: rows without frames are left out"
            continue
        if kind(row) == "training":
            if frames < reached:
                rows = [before for before in rows if figure(before, "frames") <= frames]
            reached = frames
        rows.append(row)
    return rows, problem


def of_kind(rows: Iterable[Row], wanted: str) -> list[Row]:
    """The rows of one of `KINDS`."""
    return [row for row in rows if kind(row) == wanted]


@cache
def _declared(key: str) -> tuple[str, Metric | None]:
    for name, metrics in KINDS.items():
        if (found := _find(key, metrics)) is not None:
            return name, found
    return "", _find(key, EVERY_ROW)


def _find(key: str, metrics: Iterable[Metric]) -> Metric | None:
    agent, _, name = key.rpartition("/")
    for metric in metrics:
        if (metric.own or not agent) and _pattern(metric.name).fullmatch(name):
            return metric
    return None


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<\w+>", "[A-Za-z0-9]+", name))


HEAD = """\
# The figures of a run

`python -m trainer.telemetry.rows > docs/metrics.md` writes this page from `trainer/telemetry/rows.py`, where each
figure is declared. [Reading a run](diagnostics.md) says which values are healthy.

Rows stand in `metrics.jsonl` and `metrics.csv`, and go to W&B and TensorBoard over `frames`. A row of training comes
each `logger.every_seconds`; one of an evaluation when that has ended, with the frames and the time at which its weights
were taken. That of the final evaluation repeats the last figures of training. What is not known is null, or an empty
cell. With several agents the keys marked with * also stand under `<agent>/`, and the plain key is their mean, if
nothing else is said.

Events (warnings, evaluations in words, deaths) stand in `log.txt`, a line each: time, role, agent, process id, text.
The terminal shows the first line of each; W&B has rows only.
"""
SECTIONS = {
    "In every row": EVERY_ROW, "Training": TRAINING, "Evaluation": EVALUATION, "Final evaluation": FINAL,
    "League": LEAGUE, "summary.json": SUMMARY,
}  # fmt: skip


def markdown() -> str:
    """The text of docs/metrics.md."""
    parts = [HEAD]
    for title, metrics in SECTIONS.items():
        parts += [f"\n## {title}\n\n", "| key | type | unit | meaning |\n|---|---|---|---|\n"]
        for metric in metrics:
            joint = "" if metric.join == "mean" else f" Several agents: their {metric.join}."
            star = " *" if metric.own else ""
            parts.append(
                f"| `{metric.name}`{star} | {metric.type.__name__} | {metric.unit} | {metric.meaning}{joint} |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(markdown())
