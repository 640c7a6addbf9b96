"""The learning curve: the numbers that are drawn, and that few rows are enough."""

import json

import matplotlib.image
import numpy as np
import pytest

from trainer import plot


def make_run(run_dir, rows, config=True):
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config:
        (run_dir / "config.yaml").write_text("env:\n  id: CartPole-v1\nalgorithm:\n  name: dqn\nseed: 7\n")
    return run_dir


def training_row(frames, mean, **more):
    return {
        "frames": frames, "wall_s": frames / 1_000, "return_mean": mean, "return_min": mean - 5, "return_max": mean + 5,
        "frames_per_s": 1_000.0, "updates_per_s": 100.0, **more,
    }  # fmt: skip


def lines_of(axes):
    return [tuple(np.asarray(data).tolist() for data in line.get_data()) for line in axes.get_lines()]


def test_the_picture_shows_the_rows(tmp_path):
    rows = [training_row(1_000, 0.0) | {"return_mean": None}, training_row(2_000, 20.0)]
    rows += [
        training_row(3_000, 30.0, eval_frames=2_500, eval_return_mean=90.0, eval_return_std=4.0),
        training_row(4_000, 40.0, eval_frames=2_500, eval_return_mean=90.0, eval_return_std=4.0),
    ]
    run_dir = make_run(tmp_path / "run", rows)
    returns, frames_speed, updates_speed = plot.draw([run_dir]).axes
    assert returns.get_title(loc="left") == "CartPole-v1 · dqn · seed 7"
    drawn = lines_of(returns)
    assert ([2_000.0, 3_000.0, 4_000.0], [20.0, 30.0, 40.0]) in drawn
    assert ([2_500.0], [90.0]) in drawn  # once, though two rows tell it
    assert lines_of(frames_speed) == [([1.0, 2.0, 3.0, 4.0], [1_000.0] * 4)]
    assert lines_of(updates_speed) == [([1.0, 2.0, 3.0, 4.0], [100.0] * 4)]
    band = returns.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == 15.0 and band[:, 1].max() == 45.0


@pytest.mark.parametrize("rows", [[], [training_row(1_000, 5.0)], [{"frames": 10}]])
def test_few_rows_are_enough(tmp_path, rows):
    picture = plot.curve(make_run(tmp_path / "run", rows, config=False))
    assert picture == tmp_path / "run" / "curve.png"
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape == (715, 990, 4) and pixels[..., :3].std() > 0.01


def test_no_rows_and_no_file_are_named_after_the_folder(tmp_path):
    (tmp_path / "bare").mkdir()
    axes = plot.draw([tmp_path / "bare"]).axes[0]
    assert axes.get_title(loc="left") == "bare"
    assert axes.texts[0].get_text() == "no episode has ended yet"


def test_a_torn_line_and_a_repeated_stretch_are_left_out(tmp_path):
    points = [(1_000, 1.0), (2_000, 2.0), (3_000, 3.0), (1_500, 9.0), (2_500, 9.5)]
    run_dir = make_run(tmp_path / "run", [training_row(frames, mean) for frames, mean in points])
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"frames": 3')
    rows = plot.read_rows(run_dir)
    assert [(row["frames"], row["return_mean"]) for row in rows] == [(1_000, 1.0), (1_500, 9.0), (2_500, 9.5)]


def test_long_runs_are_thinned_and_keep_their_last_point():
    rows = [{"frames": i, "loss": float(i)} for i in range(1, 10_001)]
    frames, loss = plot.series(rows, "frames", "loss")
    assert len(frames) == plot.MAX_POINTS and frames[-1] == loss[-1] == 10_000.0
    assert np.all(np.diff(frames) == 5.0)


def test_command_line_overlays_runs(tmp_path, capsys):
    runs = [make_run(tmp_path / name, [training_row(1_000, 1.0), training_row(2_000, 2.0)]) for name in ("a", "b")]
    out = tmp_path / "both.png"
    assert plot.main([*map(str, runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert matplotlib.image.imread(out).shape == (715, 990, 4)
    legend = plot.draw(runs).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        "CartPole-v1 · dqn · seed 7  (a)", "CartPole-v1 · dqn · seed 7  (b)",
    ]  # fmt: skip


def test_command_line_refuses_what_is_no_run(tmp_path, capsys):
    with pytest.raises(SystemExit):
        plot.main([str(tmp_path)])
    assert f"{tmp_path} is no run: it has no metrics.jsonl" in capsys.readouterr().err
