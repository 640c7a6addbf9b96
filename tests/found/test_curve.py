"""What a person sees of a run on the real main: its curve, also after it went on, and after its rows were damaged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trainer.telemetry import plot, rows

JUDGED = ["evaluator.every_frames=200", "schedule=sync", "schedule.frames_per_round=40", "evaluator.episodes=2"]


def lines_of(axes):
    return [tuple(np.asarray(data).tolist() for data in line.get_data()) for line in axes.get_lines()]


def test_the_curve_shows_evaluations_and_the_best_policy_of_a_real_run_that_went_on(run):
    """1.5: a run of 600 frames has told of 640, as one that is killed has, and goes on from 600 to 1,000."""
    first = run("env.id=Hurting/Plain-v0", *JUDGED)
    assert first.code == 0, first.said
    judged = [row["frames"] for row in first.rows if "eval_return_mean" in row]
    assert judged == [200, 400, 600]
    assert "evaluation" in first.out and (first.run_dir / "curve.png").stat().st_size > 10_000
    lost = [{**row, "frames": 640} for row in first.rows if rows.kind(row) in ("training", "evaluation")][-2:]
    with open(first.run_dir / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in lost)
    ended = run(f"resume={first.run_dir}", "budget_frames=1000", quick=False)
    assert ended.code == 0, ended.said
    found, problem = rows.read(ended.run_dir)
    assert problem == "" and found == [row for row in ended.rows if row not in lost]
    axes = plot.draw({ended.run_dir: found}).axes[0]
    expected = [(row["frames"], row["eval_return_mean"]) for row in found if "eval_return_mean" in row]
    assert [frames for frames, _ in expected] == [200, 400, 600, 800, 1000]
    assert tuple(map(list, zip(*expected, strict=True))) in [
        tuple([*map(float, data)] for data in line) for line in lines_of(axes)
    ]
    final = [row for row in ended.rows if "final_best_return_mean" in row]
    assert len(final) == 2 and final[-1]["final_best_return_mean"] == ended.summary["eval_return_mean"]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(text.startswith(f"best policy at the end: {ended.summary['eval_return_mean']:.5g} ±") for text in legend)


@pytest.mark.parametrize(
    "damage",
    [
        b'\xff\xfe{"frames": 1}\n',
        pytest.param(b'{"frames": "many", "loss": []}\n[' * 50 + b"\n", marks=pytest.mark.slow),
    ],
)
def test_damaged_metrics_cost_no_run_its_summary_and_no_plot_a_traceback(run, damage):
    ended = run("env.id=Hurting/Plain-v0", "budget_frames=200", *JUDGED)
    with open(ended.run_dir / "metrics.jsonl", "ab") as file:
        file.write(damage)
    (ended.run_dir / "metrics.csv").write_bytes(damage)
    again = run(f"resume={ended.run_dir}", "budget_frames=300", quick=False)
    assert again.code == 0 and "Traceback" not in again.said
    assert again.summary["status"] == "finished" and again.summary["frames"] == 300
    assert "metrics.jsonl is damaged: " in again.out
    assert (again.run_dir / "metrics.csv.damaged").read_bytes() == damage
    drawn = run(str(ended.run_dir), module="trainer.plot")
    assert drawn.code == 0 and drawn.err.count("\n") == 1 and "Traceback" not in drawn.said


def test_plot_says_in_one_sentence_what_is_no_run(run, tmp_path):
    drawn = run(str(tmp_path), module="trainer.plot")
    assert (drawn.code, drawn.out) == (2, "")
    assert drawn.err == f"error: {tmp_path} is no run: it has no metrics.jsonl\n"
