"""The learning curve of a real run: the numbers that are drawn, and that few rows are enough."""

from __future__ import annotations

import json
import shutil

import matplotlib.image
import numpy as np
import pytest

from trainer.commands import plot as plot_command
from trainer.telemetry import plot, rows


@pytest.fixture
def copy_of(real_run, tmp_path):
    """`copy_of(rows)`: the real run's folder again, with other rows in its metrics.jsonl."""

    def copy(changed, name="run", end=""):
        shutil.copytree(real_run, tmp_path / name)
        text = "".join(json.dumps(row) + "\n" for row in changed)
        (tmp_path / name / "metrics.jsonl").write_text(text + end)
        return tmp_path / name

    return copy


def drawn(run_dir):
    return plot.draw(plot.read_runs([run_dir]))


def lines_of(axes):
    return [tuple(np.asarray(data).tolist() for data in line.get_data()) for line in axes.get_lines()]


def column(real_rows, x, y):
    """The figures of the rows of the kind that y belongs to."""
    known = [row for row in rows.of_kind(real_rows, rows.kind({y: 0})) if row.get(y) is not None]
    return [float(row[x]) for row in known], [float(row[y]) for row in known]


def test_the_picture_shows_the_rows(real_run, real_rows):
    returns, frames_speed, updates_speed = drawn(real_run).axes
    assert returns.get_title(loc="left") == "CartPole-v1 · dqn · seed 7"
    assert column(real_rows, "frames", "return_mean") in lines_of(returns)
    evaluations = column(real_rows, "frames", "eval_return_mean")
    assert len(evaluations[0]) >= 5 and evaluations in lines_of(returns)
    assert lines_of(frames_speed) == [column(real_rows, "wall_s", "frames_per_s")]
    assert lines_of(updates_speed) == [column(real_rows, "wall_s", "updates_per_s")]
    band = returns.collections[0].get_paths()[0].vertices
    lowest, highest = column(real_rows, "frames", "return_min")[1], column(real_rows, "frames", "return_max")[1]
    assert band[:, 1].min() == min(lowest) and band[:, 1].max() == max(highest)


def test_evaluations_are_the_main_line_and_end_with_the_best_policy(real_run, real_rows):
    returns = drawn(real_run).axes[0]
    by_data = {json.dumps(data): line for data, line in zip(lines_of(returns), returns.get_lines(), strict=True)}
    training = by_data[json.dumps(column(real_rows, "frames", "return_mean"))]
    evaluated = by_data[json.dumps(column(real_rows, "frames", "eval_return_mean"))]
    assert evaluated.get_linewidth() > 1.5 * training.get_linewidth()
    assert evaluated.get_zorder() > training.get_zorder()
    final = column(real_rows, "final_best_frames", "final_best_return_mean")
    summary = json.loads((real_run / "summary.json").read_text())
    assert final[1] == [summary["eval_return_mean"]] and final in lines_of(returns)
    legend = [text.get_text() for text in returns.get_legend().get_texts()]
    assert any(text.startswith("best policy at the end: ") and text.endswith(" 5 episodes") for text in legend)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_rows_are_enough_at_the_end_of_a_run(copy_of, real_rows, count):
    run_dir = copy_of(real_rows[:count])
    assert plot.curve(run_dir) == ""
    pixels = matplotlib.image.imread(run_dir / "curve.png")
    assert pixels.shape == (715, 990, 4) and pixels[..., :3].std() > 0.01


def test_before_the_first_episode_the_picture_says_so_under_the_folders_name(copy_of, real_rows):
    run_dir = copy_of([{**real_rows[0], "return_mean": None}])
    (run_dir / "config.yaml").unlink()
    axes = drawn(run_dir).axes[0]
    assert axes.get_title(loc="left") == "run"
    assert axes.texts[0].get_text() == "no episode has ended yet"


def test_an_evaluation_that_comes_late_leaves_nothing_out(copy_of, real_rows):
    late = rows.of_kind(real_rows, "evaluation")
    training = rows.of_kind(real_rows, "training")
    found, problem = rows.read(copy_of([*training, *late]))
    assert (found, problem) == ([*training, *late], "")


def test_what_a_resumed_run_went_through_again_is_taken_from_its_later_attempt(copy_of, real_rows):
    evaluated = [row["frames"] for row in rows.of_kind(real_rows, "evaluation")]
    trained = [row["frames"] for row in rows.of_kind(real_rows, "training")]
    middle = next(frames for frames in trained[3:] if frames not in evaluated)
    again = [row for row in real_rows if row["frames"] >= middle]
    assert rows.kind(again[0]) == "training" and len(again) < len(real_rows)
    found, _ = rows.read(copy_of([*real_rows, *again], end='{"frames": 3'))
    assert found == [*[row for row in real_rows if row["frames"] <= middle], *again]


def test_long_runs_are_thinned_and_keep_their_last_point(real_rows):
    one = rows.of_kind(real_rows, "training")[-1]
    frames, loss = plot.series([one | {"frames": i, "loss": float(i)} for i in range(1, 10_001)], "frames", "loss")
    assert len(frames) == plot.MAX_POINTS and frames[-1] == loss[-1] == 10_000.0
    assert np.all(np.diff(frames) == 5.0)


def test_command_line_overlays_runs(copy_of, real_run, real_rows, tmp_path, capsys):
    runs = [real_run, copy_of(real_rows, "again")]
    out = tmp_path / "both.png"
    assert plot_command.main([*map(str, runs), "--each", "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert matplotlib.image.imread(out).shape == (715, 990, 4)
    axes = plot.draw(plot.read_runs(runs)).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "CartPole-v1 · dqn · seed 7  (run)", "CartPole-v1 · dqn · seed 7  (again)",
    ]  # fmt: skip
    assert lines_of(axes).count(column(real_rows, "frames", "eval_return_mean")) == 2


@pytest.mark.parametrize(
    "what", ["nothing", "a file", "no run", "a run that failed at its start", "no rows", "garbage"]
)
def test_command_line_refuses_what_is_no_run_in_one_sentence(tmp_path, capsys, what):
    run_dir = tmp_path / "run"
    if what == "a file":
        run_dir.touch()
    elif what != "nothing":
        run_dir.mkdir()
    if what == "a run that failed at its start":
        (run_dir / "config.yaml").touch()
    elif what == "no rows":
        (run_dir / "metrics.jsonl").touch()
    elif what == "garbage":
        (run_dir / "metrics.jsonl").write_bytes(b'\xff\xfe\n[1]\n{"frames": "many"}\n')
    with pytest.raises(SystemExit) as end:
        plot_command.main([str(run_dir)])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith(f"error: {run_dir}") and said.count("\n") == 1


@pytest.mark.parametrize("out", ["", "folder", "missing/curve.png", "curve.gifff"])
def test_command_line_refuses_a_place_for_the_picture_in_one_sentence(real_run, tmp_path, capsys, out):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SystemExit) as end:
        plot_command.main([str(real_run), "--out", str(tmp_path / out)])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith(f"error: {tmp_path / out}") and said.count("\n") == 1


def test_values_that_no_picture_can_show_are_left_out(copy_of, real_rows):
    wild = [1e308, -1e308, float("inf"), float("nan"), "many", [1], True, None, 10**400]
    changed = [{key: wild[i % len(wild)] for key in row} | {"frames": i} for i, row in enumerate(real_rows)]
    text = json.dumps(changed[0])
    assert "1e+308" in text
    run_dir = copy_of(changed, end='{"frames": -1}\n{"frames": 1e400}\n')
    assert "damaged" in plot.curve(run_dir)
    assert plot_command.main([str(run_dir)]) == 0
