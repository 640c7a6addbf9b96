"""What the live view and the plain lines say."""

import math

import pytest
from rich.console import Console

from trainer.loggers.view import History, closing_lines, duration, panel, plain_line, sparkline

ROW = {
    "frames": 30_500, "updates": 2_950, "wall_s": 65.0, "frames_per_s": 9_012.3, "updates_per_s": 901.2,
    "episodes": 612, "return_mean": 231.44, "return_min": 12.0, "return_max": 500.0, "length_mean": 231.44,
    "epsilon_mean": 0.05, "replay_fill": 0.61, "samples_per_insert": 12.8, "policy_lag_updates": 8,
    "bottleneck": "learning", "bottleneck_reason": "collectors waited 63 % of the time for the replay-ratio limit",
    "eta_s": 42.4, "loss": 0.0312, "q_mean": 41.2, "grad_norm": 1.7,
    "eval_return_mean": 475.2, "eval_return_std": 31.0, "eval_episodes": 20, "eval_frames": 25_000,
}  # fmt: skip


def rendered(row, run, returns=(), evaluations=(), width=80):
    histories = []
    for values in (returns, evaluations):
        histories.append(History())
        for value in values:
            histories[-1].add(value)
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    console.print(panel(row, run, *histories))
    return console.export_text().splitlines()


def test_panel_says_everything_in_80_columns(run):
    lines = rendered(ROW, run, returns=[0, 100, 231], evaluations=[90, 475])
    assert all(len(line) <= 80 for line in lines)
    text = [line.strip("│ ") for line in lines]
    assert "CartPole-v1 · dqn · seed 3" in text[0]
    assert text[1].endswith("61 %, 30,500 of 50,000 frames, 0:42 left")
    assert text[2].split(maxsplit=2) == ["return", "▁▄█", "231.4 (12.0 to 500.0), 612 episodes, 231 frames"]
    assert text[3].split(maxsplit=2) == ["evaluation", "▁█", "475.2 ± 31.0, 20 episodes, at 25,000 frames"]
    assert text[4] == "speed      9,012 frames/s  901 updates/s  running 1:05"
    assert text[5] == "flow       12.80 samples per insert  policy lag 8 updates  replay 61 % full"
    assert text[6] == "learning   epsilon 0.050  loss 0.0312  q 41.2  gradient norm 1.7"
    assert " ".join(text[7:9]) == ("bottleneck learning: collectors waited 63 % of the time for the replay-ratio limit")
    assert "2 workers · 32 environments · learner on cpu" in text[-1]


@pytest.mark.parametrize(
    "row", [{"frames": 0}, {"frames": 0, "return_mean": math.nan, "eta_s": math.inf, "loss": math.nan}]
)
def test_missing_and_unmeasured_values_are_dashes(run, row):
    text = "\n".join(rendered(row, run))
    assert "0 %, 0 of 50,000 frames, ? left" in text
    assert "- (- to -), - episodes" in text and "loss -" in text and "evaluation" not in text


def test_progress_stops_at_the_budget(run):
    assert "100 %, 51,000 of 50,000 frames" in "\n".join(rendered({"frames": 51_000}, run))


def test_plain_line(run):
    assert plain_line(ROW, run) == (
        "30,500/50,000 frames | 0:42 left | 9,012 frames/s | 901 updates/s | return 231.4 | evaluation 475.2"
        " | epsilon 0.050 | replay 61 % | 12.80 samples/insert | lag 8 | bottleneck learning"
    )


def test_closing_lines_name_the_curve_when_there_is_one(run):
    summary = ROW | {"status": "finished", "reason": "budget reached"}
    ended, evaluated, folder = closing_lines(run, summary)
    assert ended == (
        "finished (budget reached): 30,500 frames and 2,950 updates in 1:05, 9,012 frames/s, 901 updates/s"
    )
    assert evaluated == "evaluation: 475.2 ± 31.0 over 20 episodes"
    assert folder == f"run folder: {run.run_dir}"
    (run.run_dir / "curve.png").touch()
    assert closing_lines(run, {})[-1] == f"run folder: {run.run_dir}  learning curve: {run.run_dir / 'curve.png'}"


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


def test_what_takes_long_has_a_line_and_stands_alone_before_the_first_row(run):
    console = Console(width=80, record=True, file=open("/dev/null", "w"))
    console.print(panel({}, run, History(), History(), "starting workers: 3 of 16"))
    lines = console.export_text().splitlines()
    assert len(lines) == 3 and lines[1].strip("│ ") == "now starting workers: 3 of 16"
