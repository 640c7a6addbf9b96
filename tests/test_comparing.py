"""Comparing runs that the real main wrote: groups found by themselves, and averages that are rliable's."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace

import imageio.v3 as imageio
import matplotlib.image
import numpy as np
import pytest
import scipy.stats

from trainer.commands import plot, report
from trainer.comparing import groups, picture, profiles, runs, statistics

metrics = pytest.importorskip("rliable.metrics")
SEEDS = 5
LABELS = ["dqn, learning_rate=0.003", "dqn, learning_rate=1e-05", "munchausen, learning_rate=0.003"]


@pytest.fixture(scope="module")
def folder(make_config, tmp_path_factory):
    """15 short runs of CartPole: two learning rates of dqn, and munchausen, five seeds each; nobody changes them."""
    from trainer.training.train import train

    folder = tmp_path_factory.mktemp("fifteen")
    for group, (algorithm, rate) in enumerate((("dqn", 3e-3), ("dqn", 1e-5), ("munchausen", 3e-3))):
        for seed in range(SEEDS):
            config = make_config(
                folder / f"{group}_{seed}", seed=seed, budget_frames=500, algorithm={"name": algorithm},
                env={"id": "CartPole-v1", "backend": "gymnasium"}, collector={"num_workers": 1},
                
                schedule={"name": "sequential", "frames_per_round": 64, "frames_per_update": 40},
                learner={"learning_rate": rate, "warmup_frames": 100, "execution": "eager"},
                evaluator={"every_frames": 100, "episodes": 2, "num_envs": 2},
            )  # fmt: skip
            train(config, ["python", "-m", "trainer.run", f"seed={seed}"])
    return folder


@pytest.fixture(scope="module")
def fifteen(folder):
    return runs.read([folder])


@pytest.fixture(scope="module")
def three(fifteen):
    return groups.groups(fifteen)


def table(group):
    """Frames that all runs have reached, and the evaluations of each there, by straight lines: [frames, runs]."""
    found = []
    for run in group.runs:
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        found.append({line["frames"]: line["eval_return_mean"] for line in lines if "eval_return_mean" in line})
    every = sorted(frames for some in found for frames in some)
    least, most = max(min(some) for some in found), min(max(some) for some in found)
    grid = sorted({frames for frames in every if least <= frames <= most})
    assert len(grid) >= 5
    return grid, np.array([np.interp(grid, list(some), list(some.values())) for some in found]).T


def test_groups_are_found_and_named_by_what_differs(fifteen, three):
    assert [group.label for group in three] == LABELS
    assert [[run.config["seed"] for run in group.runs] for group in three] == [list(range(SEEDS))] * 3
    assert groups.differences(fifteen)[:2] == ["algorithm.name", "learner.learning_rate"]
    by_algorithm = groups.groups(fifteen, ["algorithm"])
    assert [(group.label, len(group.runs)) for group in by_algorithm] == [("dqn", 10), ("munchausen", 5)]


def test_plot_of_15_runs_has_3_bands_whose_iqm_is_rliables(three):
    drawn, _ = picture.draw_curves(three, "iqm")
    (axes,) = drawn.axes
    assert len(axes.collections) == len(axes.get_lines()) == 3
    for group, line in zip(three, axes.get_lines(), strict=True):
        frames, scores = table(group)
        assert line.get_label() == f"{group.label} (5)"
        assert line.get_xdata().tolist() == frames
        assert line.get_ydata().tolist() == [metrics.aggregate_iqm(point) for point in scores]


def test_bands_are_the_bootstrap_of_scipy_and_of_rliable(three):
    _, scores = table(three[0])
    ours, tolerance = statistics.interval(scores, statistics.iqm), 0.15 * np.ptp(scores, axis=1)
    scipys = scipy.stats.bootstrap(
        (scores,), lambda x, axis: statistics.iqm(x), axis=1, method="percentile", n_resamples=2_000, rng=0
    ).confidence_interval
    assert np.all(np.abs(ours - [scipys.low, scipys.high]) <= tolerance)
    try:
        from rliable import library
    except TypeError:
        pytest.skip("rliable needs arch < 8, which cannot be imported beside pandas 3")
    np.random.seed(0)
    each = [lambda x, i=i: metrics.aggregate_iqm(x[..., i]) for i in range(len(scores))]
    _, rliables = library.get_interval_estimates(
        {"": scores.T[:, None, :]}, lambda x: np.array([one(x) for one in each]), reps=1_000
    )
    assert np.all(np.abs(ours - rliables[""]) <= tolerance)


def test_profiles_and_probabilities_are_rliables(three):
    found = profiles.profiles(three)
    scores = [np.array([[run.summary["eval_return_mean"]] for run in group.runs]) for group in three]
    for label, of_group in zip(LABELS, scores, strict=True):
        share = [(of_group > threshold).mean() for threshold in found.thresholds]
        assert found.shares[label].tolist() == share
        low, high = found.intervals[label]
        assert np.all((low <= share) & (share <= high))
    assert found.pairs[LABELS[0], LABELS[2]][0] == metrics.probability_of_improvement(scores[0], scores[2])
    for point, low, high in found.pairs.values():
        assert 0 <= low <= point <= high <= 1
    assert list(found.pairs) == [(LABELS[0], LABELS[1]), (LABELS[0], LABELS[2]), (LABELS[1], LABELS[2])]


def test_report_is_one_page_with_everything(folder, three, tmp_path, capsys):
    copied = tmp_path / "runs"
    shutil.copytree(folder, copied)
    imageio.imwrite(copied / "0_3" / "play.gif", np.zeros((2, 8, 8, 3), np.uint8))
    assert report.main([str(copied), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    text = (tmp_path / "page.html").read_text()
    sources = re.findall(r'src="([^"]*)"', text)
    assert [source.partition(";")[0] for source in sources] == ["data:image/png"] * 2 + ["data:image/gif"]
    assert not re.search(r"https?://|<script|<link", text)
    scores = [run.summary["eval_return_mean"] for run in three[0].runs]
    assert f"<td>{metrics.aggregate_iqm(np.array(scores)):.4g}</td>" in text
    assert "<td>learner.learning_rate</td><td>0.003</td><td>1e-05</td><td>0.003</td>" in text
    assert all(f"<td>{run.folder.name}</td>" in text for group in three for run in group.runs)
    assert "python -m trainer.run seed=0" in text


def test_a_report_without_rliable_says_what_it_lacks(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rliable", None)  # what Python does with a package that is not installed
    assert report.main([str(folder), "--out", str(tmp_path / "page.html")]) == 0
    said = "profiles and the probability of improvement are left out, as they need rliable: pip install rliable"
    text = (tmp_path / "page.html").read_text()
    assert said in capsys.readouterr().err and said in text
    assert "<h2>Performance profiles" not in text and text.count('src="data:image/png') == 1 and "<h2>Scores" in text


def test_more_groups_than_colours_leave_out_those_with_the_lowest_scores(folder, fifteen):
    every = groups.groups(fifteen, ["run_dir"])
    kept = picture.drawn(every, "iqm")
    assert len(every) == 15 and len(kept) == picture.MOST_LINES
    lowest_kept = min(group.runs[0].score for group in kept)
    assert all(group.runs[0].score <= lowest_kept for group in every if group not in kept)


def test_a_solved_run_keeps_its_last_value_and_any_other_ends_the_curve(three):
    first, *others = three[0].runs
    frames, scores = table(three[0])
    own, values = statistics.evaluations(first)
    short = replace(first, rows=[row for row in first.rows if row["frames"] <= own[1]])
    cut = statistics.curve([short, *others], statistics.mean)
    assert cut.frames[-1] == own[1] < frames[-1] and "the last evaluation of 0_0 (finished)" in cut.note
    solved = replace(short, summary={**short.summary, "solved_frames": own[1]})
    held = statistics.curve([solved, *others], statistics.mean)
    assert "0_0" not in held.note and held.frames[-1] == min(statistics.evaluations(run)[0][-1] for run in others)
    assert held.centre[-1] >= (values[1] + scores[-1, 1:].min() * (SEEDS - 1)) / SEEDS
    assert statistics.curve([solved], statistics.mean).centre.tolist() == values[:2].tolist()


def test_environments_have_a_panel_each_and_are_no_difference(fifteen):
    other = [replace(run, config={**run.config, "env.id": "Other-v0", "preset": "other"}) for run in fifteen]
    six = groups.groups([*fifteen, *other])
    assert [group.label for group in six] == LABELS and [len(group.runs) for group in six] == [10] * 3
    drawn, _ = picture.draw_curves(six, "mean")
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["CartPole-v1", "Other-v0"]
    assert profiles.profiles(six).thresholds[[0, -1]] == pytest.approx([-0.02, 1.02])


def test_a_run_that_cannot_be_read_is_left_out_with_a_warning(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "runs")
    (tmp_path / "runs" / "0_0" / "config.yaml").write_text("[")
    (tmp_path / "runs" / "0_1" / "metrics.jsonl").write_text("")
    assert plot.main([str(tmp_path / "runs"), "--out", str(tmp_path / "curves.png")]) == 0
    said = capsys.readouterr().err
    assert said.count("warning: left out: ") == 2 and "0_0" in said and "0_1" in said
    assert matplotlib.image.imread(tmp_path / "curves.png").shape[2] == 4


def test_an_unknown_key_is_refused_in_one_sentence(folder, tmp_path, capsys):
    assert report.main([str(folder), "--group", "learner.learning_rat", "--out", str(tmp_path / "page.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --group learner.learning_rat: ") and "learner.learning_rate" in said
    assert said.count("\n") == 1 and not (tmp_path / "page.html").exists()
