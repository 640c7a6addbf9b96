"""Every metric of a run: name, type, unit and meaning. A row may hold no other keys.

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

# The metrics of one moment, a flat dictionary. With several agents each one's metrics stand under "<agent>/<name>".
Row = dict[str, float | int | str]

# How the metrics of several agents are joined into one.
JOINS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "sum": sum, "max": max, "min": min,
}  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """The meaning of a key of a row.

    Args:
        name: the key; a part in <> stands for a number or a name, and `<key>` for a key of an environment's `info`.
        type: int, float or str, and in the summary also dict. A float may be missing: null in JSON, empty in CSV.
        unit: "" for a number without one.
        meaning: one sentence for docs/metrics.md.
        per_agent: whether, with several agents, each one's value also stands under `<agent>/<name>`.
        join: how the agents' values make the one under `<name>`, a key of `JOINS`. Of texts the first agent's counts.
    """

    name: str
    type: type
    unit: str
    meaning: str
    per_agent: bool = False
    join: str = "mean"


EVERY_ROW = (
    Metric("frames", int, "frames", "Frames collected; of an evaluation: those of its weights.", True, "max"),
    Metric("wall_s", float, "s", "Time in training at these frames, summed over all starts of the run."),
)  # fmt: skip

TRAINING = (
    Metric("updates", int, "updates", "Updates made so far.", True, "sum"),
    Metric("frames_per_s", float, "frames/s", "Frames collected per second, over the last 10 s."),
    Metric("updates_per_s", float, "updates/s", "Updates per second, over the last 10 s.", True, "sum"),
    Metric("episodes", int, "episodes", "Training episodes that have ended so far.", True, "sum"),
    Metric("return_mean", float, "return", "Mean undiscounted return of the last 100 training episodes.", True),
    Metric("return_min", float, "return", "Lowest return of the last 100 training episodes.", join="min"),
    Metric("return_max", float, "return", "Highest return of the last 100 training episodes.", join="max"),
    Metric("length_mean_frames", float, "frames", "Mean length of the last 100 training episodes.", True),
    Metric("info_<key>", float, "", "Mean of `info[key]` at the end of the last 100 training episodes with it.", True),
    Metric("epsilon_mean", float, "", "Mean epsilon (share of random actions) over the environments.", True),
    Metric("replay_fill", float, "", "Share of the replay's rows that are filled."),
    Metric("replay_ratio", float, "", "Updates for each frame since warm-up.", True),
    Metric("policy_lag_updates", float, "updates", "Updates that the workers' weights are behind, mean.", True),
    Metric("share_collectors_waiting", float, "", "Share of the time that the collectors waited for the learner."),
    Metric("share_learner_waiting", float, "", "Share of the time that the learner waited for frames."),
    Metric("bottleneck", str, "", "The side that the other one waits for: collection, learning or balanced."),
    Metric("bottleneck_reason", str, "", "Why that side is the bottleneck, in words."),
    Metric("eta_s", float, "s", "Time until `budget_frames` are collected, at the present speed."),
    Metric("learning_rate", float, "", "Learning rate of the optimiser.", True),
    Metric("loss", float, "", "Mean loss of the updates since the last row; with an actor, that of the critics.", True),
    Metric("actor_loss", float, "", "Mean loss of the actor, and of the temperature where it is learned.", True),
    Metric("actor_grad_norm", float, "", "As `grad_norm`, of the actor.", True),
    Metric("entropy", float, "", "Mean entropy of the policy, of actions scaled to -1 .. 1 (SAC).", True),
    Metric("temperature", float, "", "Weight of the policy's entropy (SAC).", True),
    Metric("q_spread", float, "", "Standard deviation of the critics' values over the critics, mean.", True),
    Metric("action_saturation", float, "", "Share of the numbers of the policy's actions next to a bound.", True),
    Metric("td_error", float, "", "Mean absolute TD error of the updates since the last row.", True),
    Metric("grad_norm", float, "", "Mean Euclidean norm of the gradients of these updates, before clipping.", True),
    Metric("q_mean", float, "", "Mean value of the greedy action over the last batch.", True),
    Metric("q_max", float, "", "Largest value of a greedy action in the last batch.", True, "max"),
    Metric("target_q_mean", float, "", "`q_mean` computed by the target network.", True),
    Metric("parameter_norm", float, "", "Euclidean norm of all parameters."),
    Metric("dormant_share", float, "", "Share of units with less than 2.5 % of their layer's mean activity.", True),
    Metric("churn", float, "", "Share of the last batch where the target network has another greedy action.", True),
    Metric("greedy_share_<action>", float, "", "Share of the last batch where this action is the greedy one."),
    Metric("priority_entropy", float, "", "Entropy of the prioritized draws, from 0 to 1; 1 is uniform."),
    Metric("priority_max_over_mean", float, "", "Largest priority in the replay, divided by the mean priority."),
    Metric("priority_beta", float, "", "Exponent of the importance weights."),
    Metric("staleness_updates", float, "updates", "Updates of others since it read the weights, mean.", True),
    Metric("overlapped_updates", int, "updates", "Updates that overlapped with one of others (hogwild).", True, "sum"),
    Metric("optimizer_steps", int, "updates", "Steps of the optimiser that all local agents share."),
    Metric("lock_recoveries", int, "", "How often the process that held the optimiser's lock was found dead."),
    Metric("score_<opponent>", float, "", "Share of games won against this kind of opponent; a draw counts as half."),
    Metric("score_low_<opponent>", float, "", "Lower end of the 95 % interval of `score_<opponent>` (Wilson)."),
    Metric("score_high_<opponent>", float, "", "Upper end of the 95 % interval of `score_<opponent>`."),
    Metric("games_<opponent>", int, "games", "Games that `score_<opponent>` counts."),
    Metric("pool_size", int, "", "Snapshots in the pool of opponents."),
    Metric("nodes", int, "", "Nodes of the cluster that collect."),
    Metric("node_<number>_frames_per_s", float, "frames/s", "Frames that this node collected per second."),
    Metric("link_mb_per_s", float, "MB/s", "What came from all nodes."),
    Metric("link_round_trip_ms", float, "ms", "Longest time between orders to a node and its report."),
    Metric("worker_restarts", int, "", "Restarts of collector workers that had died or hung."),
    Metric("checkpoint_s", float, "s", "Time that the last checkpoint took."),
    Metric("checkpoint_replay_mib", float, "MiB", "Part of the replay that the last checkpoint wrote."),
)  # fmt: skip

EVALUATION = (
    Metric("eval_return_mean", float, "return", "Mean undiscounted return of greedy episodes.", True),
    Metric("eval_return_std", float, "return", "Standard deviation of the return over these episodes."),
    Metric("eval_episodes", int, "episodes", "Number of these episodes, with several agents of all agents."),
    Metric("eval_cut_episodes", int, "episodes", "Of these, cut at `evaluator.max_episode_steps`."),
    Metric("eval_length_mean_frames", float, "frames", "Mean length of these episodes."),
    Metric("eval_info_<key>", float, "", "Mean of `info[key]` at the end of these episodes, as `is_success`."),
    Metric("eval_overestimation", float, "", "Value of an episode's first action minus its discounted return, mean."),
    Metric("eval_s", float, "s", "Time that the evaluation took."),
)  # fmt: skip

FINAL = (
    Metric("final_<policy>_frames", int, "frames", "Frames at which the best or last policy was taken."),
    Metric("final_<policy>_return_mean", float, "return", "Mean return of the best or last policy, fresh episodes."),
    Metric("final_<policy>_return_std", float, "return", "Standard deviation of the return over these episodes."),
    Metric("final_<policy>_episodes", int, "episodes", "Number of these episodes."),
    Metric("final_<policy>_info_<key>", float, "", "Mean of `info[key]` at the end of these episodes."),
    Metric("final_<policy>_cut_episodes", int, "episodes", "Of these, cut at `evaluator.max_episode_steps`."),
)  # fmt: skip

LEAGUE = (Metric("elo_<player>", float, "Elo", "Rating in the league at the end of the run; random play has 0."),)

SUMMARY = (
    Metric("env_id", str, "", "Environment."),
    Metric("algorithm", str, "", "Algorithm."),
    Metric("seed", int, "", "Seed of the run."),
    Metric("preset", str, "", "Preset that the run was started with."),
    Metric("status", str, "", "finished, stopped or failed."),
    Metric("reason", str, "", "Why the run ended."),
    Metric("stop_signal", int, "", "Number of the signal that stopped the run, or null."),
    Metric("frames", int, "frames", "Frames collected."),
    Metric("updates", int, "updates", "Updates made."),
    Metric("episodes", int, "episodes", "Training episodes that ended."),
    Metric("return_mean", float, "return", "Mean undiscounted return of the last 100 training episodes."),
    Metric("wall_s", float, "s", "Time in training, over all starts of the run."),
    Metric("total_s", float, "s", "Time since the last start of the run, with start-up and final evaluation."),
    Metric("frames_per_s", float, "frames/s", "Frames divided by the time in training."),
    Metric("updates_per_s", float, "updates/s", "Updates divided by the time in training."),
    Metric("solved_s", float, "s", "Time in training of the first weights that reached `evaluator.stop_at_return`."),
    Metric("solved_frames", int, "frames", "Frames at which these weights were taken."),
    Metric("eval_return_mean", float, "return", "Mean return of the best policy in the final evaluation."),
    Metric("eval_return_std", float, "return", "Standard deviation of the return over these episodes."),
    Metric("eval_episodes", int, "episodes", "Number of these episodes."),
    Metric("eval_cut_episodes", int, "episodes", "Of these, cut at `evaluator.max_episode_steps`."),
    Metric("eval_info_<key>", float, "", "Mean of `info[key]` at the end of these episodes."),
    Metric("eval_last_return_mean", float, "return", "Mean return of the last policy in the final evaluation."),
    Metric("eval_last_episodes", int, "episodes", "Number of these episodes."),
    Metric("eval_return_mean_by_agent", dict, "return", "`eval_return_mean` of each agent, by its name."),
    Metric("redrawn_rows", int, "rows", "Sampled rows that were overwritten while they were read, and drawn again."),
    Metric("learner_restarts", int, "", "Restarts of learner processes that had died or hung."),
    Metric("league_games", int, "games", "Games of each pair in the league."),
    Metric("elo", dict, "Elo", "Rating of each player in the league, by its name."),
)  # fmt: skip

# Kind of row -> the keys that only this kind has. A row is of the first kind of which it has a key, else of training.
KINDS = {"evaluation": EVALUATION, "final": FINAL, "league": LEAGUE, "training": TRAINING}


def declared(key: str) -> Metric | None:
    """The metric of a row's key; None for a key that is not declared."""
    return _declared(key)[1]


def kind(row: Mapping[str, Any]) -> str:
    """The kind of a row, a key of `KINDS`."""
    kinds = {_declared(key)[0] for key in row}
    return next((name for name in KINDS if name in kinds), "training")


def faults(row: Mapping[str, Any], summary: bool = False) -> list[str]:
    """What is wrong with a row, one sentence for each key that is not declared and each value of another type.

    Args:
        row: a row, or the content of summary.json.
        summary: whether it is the content of summary.json.
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


def return_texts(*values: float) -> list[str]:
    """Returns as texts with as many decimals each: one, or two where all are smaller than 10; a dash for NaN."""
    form = ",.1f" if any(abs(value) >= 10 for value in values) else ",.2f"
    return [format(value, form) if math.isfinite(value) else "-" for value in values]


def value_of(row: Mapping[str, Any], key: str) -> float:
    """The number under a declared key; NaN where the row has none, or one that is not finite.

    Raises:
        KeyError: the key is not declared, so no row has it.
    """
    if declared(key) is None and _find(key, SUMMARY) is None:
        raise KeyError(f"{key} is not declared in trainer/telemetry/rows.py")
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # an integer of 400 digits, which only a damaged file holds
        return math.nan


def joined(names: Sequence[str], rows: Sequence[Row]) -> Row:
    """One row of the rows of several agents.

    Args:
        names: of the agents.
        rows: one for each agent.

    Returns:
        For each key the agents' values joined as its `Metric.join` says, NaN left out; and the value of each agent
        under `<agent>/<key>` where the metric is `per_agent`.
    """
    row: Row = {}
    if len(rows) == 1:  # the row of the only agent is the run's
        return dict(rows[0])
    for key in dict.fromkeys(key for of_agent in rows for key in of_agent):
        metric, values = declared(key), [of_agent[key] for of_agent in rows if key in of_agent]
        assert metric is not None, key
        if metric.type is str:
            row[key] = values[0]
        else:
            known = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
            row[key] = JOINS[metric.join](known) if known else math.nan
    for name, of_agent in zip(names, rows, strict=True):
        for key, value in of_agent.items():
            if (metric := declared(key)) and metric.per_agent:
                row[f"{name}/{key}"] = value
    return row


def read(run_dir: Path) -> tuple[list[Row], str]:
    """Read the rows of RUN/metrics.jsonl.

    A resumed run repeats the frames after its checkpoint. Then the rows of the repetition count: where a row of
    training has fewer frames than the one before it, the earlier rows with more frames are left out.

    Returns:
        The rows, oldest first, and one sentence about damaged lines, or "".

    Raises:
        ReadError: the file could not be read.
    """
    found, problem = read_jsonl(RunFolder(run_dir).metrics)
    rows: list[Row] = []
    reached = -math.inf
    for row in found:
        frames = value_of(row, "frames")
        if not frames >= 0:
            problem = problem or f"{RunFolder(run_dir).metrics} is damaged: rows without frames are left out"
            continue
        if kind(row) == "training":
            if frames < reached:
                rows = [before for before in rows if value_of(before, "frames") <= frames]
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
        if (metric.per_agent or not agent) and _pattern(metric.name).fullmatch(name):
            return metric
    return None


@cache
def _pattern(name: str) -> re.Pattern[str]:
    name = name.replace("<key>", "[A-Za-z0-9_.-]+")
    return re.compile(re.sub(r"<\w+>", "[A-Za-z0-9]+", name))


HEAD = """\
# The metrics of a run

Every metric is declared in `trainer/telemetry/rows.py`; `python -m trainer.telemetry.rows > docs/metrics.md` writes
this page. [Reading a run](diagnostics.md) says which values are healthy.

A **row** holds the metrics of one moment. Rows are written to `metrics.jsonl` and `metrics.csv`, and go to W&B and
TensorBoard over `frames`.

- A row of training is written every `logger.every_seconds`.
- A row of an evaluation is written when the evaluation has ended. Its `frames` and `wall_s` are those at which the
  evaluated weights were taken.
- The row of the final evaluation repeats the last metrics of training.

A value that is not known is null in JSON and an empty cell in CSV. With several agents, a metric marked with * also has
one value for each agent, under `<agent>/<key>`; the value under `<key>` is their mean, unless the table says otherwise.

An **event** is a line of text: a warning, an evaluation in words, the death of a process. `log.txt` has every event
with its time, role, agent and process id; the terminal shows the first line of each. W&B has no events.
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
            star = " *" if metric.per_agent else ""
            parts.append(
                f"| `{metric.name}`{star} | {metric.type.__name__} | {metric.unit} | {metric.meaning}{joint} |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(markdown())
