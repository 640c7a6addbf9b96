"""What the live view and the plain lines say of the rows of a real run."""

import json
import math
import re

import pytest
from rich.console import Console

from trainer.telemetry.loggers.view import History, Newest, closing_lines, duration, panel, plain_line, sparkline
from trainer.telemetry.rows import of_kind, return_texts


def newest(rows):
    found = Newest()
    for row in rows:
        found.add(row)
    return found


def last(rows, key):
    return [row for row in rows if key in row][-1]


def rendered(rows, run, progress="", width=80):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    console.print(panel(newest(rows), run, progress))
    lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines)
    return [" ".join(line.strip("│ ").split()) for line in lines]


def test_panel_says_everything_in_80_columns(run, real_rows):
    text = rendered(real_rows, run)
    row, judged = last(real_rows, "updates"), last(real_rows, "eval_s")
    row = last(real_rows, "loss") | row  # the last one has none where nothing was learned since the one before
    assert "CartPole-v1 · dqn · seed 3" in text[0]
    share = round(100 * row["frames"] / 50_000)
    assert re.fullmatch(rf"progress .* {share} %, {row['frames']:,} of 50,000 frames, \d+:\d\d left", text[1])
    returns = f"{row['return_mean']:,.1f} ({row['return_min']:,.1f} to {row['return_max']:,.1f})"
    assert re.fullmatch(r"return [▁▂▃▄▅▆▇█]{2,14} (.*)", text[2])[1] == (
        f"{returns}, {row['episodes']} episodes, {row['length_mean_frames']:.0f} frames"
    )
    assert re.fullmatch(r"evaluation [▁▂▃▄▅▆▇█]{5,7} (.*)", text[3])[1] == (
        f"{' ± '.join(return_texts(judged['eval_return_mean'], judged['eval_return_std']))}, 3 episodes,"
        f" at {judged['frames']:,} frames"
    )
    speeds = f"{row['frames_per_s']:,.0f} frames/s {row['updates_per_s']:,.0f} updates/s"
    assert text[4] == f"speed {speeds} running {duration(row['wall_s'])}"
    assert text[5].startswith(f"flow replay ratio {row['replay_ratio']:.3g} policy lag")
    assert text[6].startswith(
        f"learning epsilon {row['epsilon_mean']:.3f} loss {row['loss']:.3g} q {row['q_mean']:.3g}"
    )
    assert " ".join(text[7:9]).startswith(f"bottleneck {row['bottleneck']}: {row['bottleneck_reason'][:40]}")
    assert "2 workers · 32 environments · learner on cpu" in text[-1]


def test_an_evaluation_does_not_turn_the_progress_back(run, real_rows):
    late = [row for row in real_rows if "eval_s" in row]
    training = of_kind(real_rows, "training")
    assert late[0]["frames"] < training[-1]["frames"]
    text = rendered([*training, late[0]], run)
    assert f"{training[-1]['frames']:,} of 50,000 frames" in text[1] and "running " in text[4]
    assert f"at {late[0]['frames']:,} frames" in text[3]


def test_what_is_not_known_yet_is_a_dash(run, real_rows):
    row = {key: None if isinstance(value, float) else value for key, value in real_rows[0].items()}
    text = "\n".join(rendered([row | {"frames": 0, "episodes": 0}], run))
    assert "0 %, 0 of 50,000 frames, ? left" in text
    assert "- (- to -), 0 episodes, - frames" in text and "- frames/s" in text
    assert "epsilon - loss -" in text and "evaluation" not in text


def test_progress_stops_at_the_budget(run, real_rows):
    text = "\n".join(rendered([of_kind(real_rows, "training")[-1] | {"frames": 51_000}], run))
    assert "100 %, 51,000 of 50,000 frames" in text


def test_returns_below_ten_have_two_decimals_and_what_stands_together_as_many() -> None:
    assert return_texts(0.953, 0.046) == ["0.95", "0.05"]
    assert return_texts(1_272.34, 8.127) == ["1,272.3", "8.1"] and return_texts(math.nan, -9.996) == ["-", "-10.00"]


def test_plain_line(run, real_rows):
    row, judged = last(real_rows, "updates"), last(real_rows, "eval_s")
    parts = plain_line(newest(real_rows), run).split(" | ")
    assert parts[0] == f"{row['frames']:,}/50,000 frames"
    returns = [return_texts(value)[0] for value in (row["return_mean"], judged["eval_return_mean"])]
    assert parts[4:6] == [f"return {returns[0]}", f"evaluation {returns[1]}"]
    assert parts[6] == f"epsilon {row['epsilon_mean']:.3f}" and parts[-1] == f"bottleneck {row['bottleneck']}"


def test_closing_lines_name_the_curve_when_there_is_one(run, real_run):
    summary = json.loads((real_run / "summary.json").read_text())
    ended, evaluated, folder = closing_lines(run, summary)
    assert ended.startswith(
        f"finished (the budget is used up): {summary['frames']:,} frames and {summary['updates']:,} updates in 0:"
    )
    returns = return_texts(summary["eval_return_mean"], summary["eval_return_std"])
    assert evaluated == f"evaluation: {' ± '.join(returns)} over 5 episodes"
    assert folder == f"run folder: {run.run_dir}"
    (run.run_dir / "curve.png").touch()
    assert closing_lines(run, {})[-1] == f"run folder: {run.run_dir}  learning curve: {run.run_dir / 'curve.png'}"


def test_what_takes_long_has_a_line_and_stands_alone_before_the_first_row(run):
    text = rendered([], run, "starting workers: 3 of 16")
    assert len(text) == 3 and text[1] == "now starting workers: 3 of 16"


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([], 8, ""),
        ([5.0], 8, "▁"),
        ([3.0, 3.0, 3.0], 8, "▁▁▁"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
        (list(range(800)), 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7, 0], 2, "▁█"),  # means of [0, 0] and [7, 7, 0]
        ([-1e30, 1e30], 8, "▁█"),
    ],
)
def test_sparkline(values, width, drawn):
    assert sparkline(values, width) == drawn


def test_history_thins_itself_and_spans_the_whole_run():
    history = History(capacity=64)
    for value in range(10_000):
        history.add(float(value))
    history.add(math.nan)
    assert 32 <= len(history.values) < 64
    steps = {b - a for a, b in zip(history.values, history.values[1:], strict=False)}
    assert history.values[0] == 0.0 and history.values[-1] > 9_700 and steps == {256.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (7, "0:07"), (754, "12:34"), (3_723, "1:02:03"), (183_840, "2 d 03:04"), (math.nan, "?"),
     (math.inf, "?"), (-3, "0:00")],
)  # fmt: skip
def test_duration(seconds, text):
    assert duration(seconds) == text
