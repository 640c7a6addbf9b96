"""The learning table's arithmetic, and what it writes."""

import json

import pytest

from benchmarks import learning


def run(seed, result, hardware="a desk", algorithm="c51", task="Acrobot-v1"):
    """A run on record."""
    return {
        "task": task,
        "algorithm": algorithm,
        "seed": seed,
        "command": f"python -m trainer.run preset=acrobot algorithm={algorithm} seed={seed}",
        "return": result,
        "last_return": result - 1,
        "frames": 100_000,
        "wall_s": 60.0 * (seed + 1),
        "hardware": hardware,
        "jobs": 1,
        "curve": [[50_000, -200.0], [100_000, result]],
    }


def test_interquartile_mean_leaves_out_the_quarters_at_either_end():
    assert learning.interquartile_mean([-1000, 1, 2, 3, 4, 5, 6, 1000]) == 3.5  # of 2, 3, 4, 5
    low, high = learning.interval([7.0] * 5)
    assert (low, high) == (7.0, 7.0)


def test_newest_run_of_a_seed_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "RUNS", tmp_path / "runs.jsonl")
    assert learning.finished() == {}
    learning.RUNS.write_text("".join(json.dumps(run(0, value)) + "\n" for value in (-90.0, -75.0)))
    assert [found["return"] for found in learning.finished().values()] == [-75.0]


def test_bar_stands_beside_the_best_algorithm_of_a_task():
    runs = [run(seed, value) for seed, value in enumerate((-73, -75, -70, -76, -74))]
    runs += [run(seed, -80.0, algorithm="dqn") for seed in range(5)]
    dqn, c51 = learning.rows(runs)
    assert (dqn.name, dqn.value, dqn.bar) == ("Acrobot-v1, dqn", -80.0, None)
    assert (c51.name, c51.value, c51.bar, c51.holds) == ("Acrobot-v1, c51", -74, -75, True)


def test_table_names_each_lines_hardware_and_ends_with_the_notes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(learning, "FOLDER", tmp_path / "learning")
    monkeypatch.setattr(learning, "NOTES", tmp_path / "learning" / "notes.md")
    learning.FOLDER.mkdir()
    learning.NOTES.write_text("## Missed\n\nNothing.\n")
    learning.write_table([run(0, -70.0), run(1, -80.0, "a cluster"), run(2, -78.0)])
    text = (tmp_path / "learning.md").read_text()
    assert "- a: a cluster; 1 at a time\n- b: a desk; 1 at a time\n" in text
    line = next(line for line in text.splitlines() if line.startswith("| c51"))
    assert line.startswith("| c51 | 0-2 | -78.0 | -76.0 [")
    assert line.endswith(r"| -70.0, -80.0, -78.0 | -79.0 (-71.0, -81.0, -79.0) | 100,000 | 2.0 | a, b | ? \*\* |")
    assert r"- \*\* made before 594b125: values begin at 0, no longer in the middle of the support" in text
    assert "    python -m trainer.run preset=acrobot algorithm=c51 seed=0\n" in text
    assert text.endswith("## Missed\n\nNothing.\n")
    assert (tmp_path / "learning" / "acrobot-v1.png").stat().st_size > 1_000
