"""Every figure that a run tells is declared in `trainer.telemetry.rows`; every declared one is told by some run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainer.cluster.nodes import Node, figures
from trainer.telemetry import rows
from trainer.training.train import train

ROOT = Path(__file__).parent.parent.parent
BRIEF = {"budget_frames": 800, "schedule": {"name": "sequential"}, "evaluator": {"every_frames": 300}}
AGENTS = {"env": {"id": "CountingAgents", "backend": "counting_agents"}}
SHARED = {"name": "shared_gradient", "num_agents": 2, "frames_per_round": 32}
VARIANTS = {
    "dqn": {},
    "c51": {"algorithm": {"name": "c51"}},
    "qrdqn": {"algorithm": {"name": "qrdqn"}},
    "iqn": {"algorithm": {"name": "iqn"}},
    "munchausen": {"algorithm": {"name": "munchausen"}},
    "noisy and prioritized": {"algorithm": {"noisy": True, "prioritized": True, "n_step": 3}},
    "good enough": {"evaluator": {"every_frames": 300, "stop_at_return": -1e9}},
    "info": {"env": {"id": "Hurting/Telling-v0", "backend": "gymnasium", "import_modules": ["hurting"]}},
    "actions in a box": {
        "algorithm": {"name": "sac", "hidden_sizes": [8]},
        "env": {"id": "Pendulum-v1", "backend": "gymnasium"},
    },
    "agents": AGENTS,
    "agents in a stack": AGENTS | {"agents": {"learner": "stacked"}},
    "agents in processes": AGENTS | {"schedule": {"name": "async"}, "agents": {"learner": "process"}},
    "locked": {"schedule": SHARED},
    "hogwild": {"schedule": SHARED | {"application": "hogwild"}},
}
SEEN: dict[str, set[str]] = {"rows": set(), "summary": set()}


def look(folder: Path) -> list[dict]:
    """Check rows and summary of a run, and note their keys."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    assert [fault for row in found for fault in rows.faults(row)] == []
    assert rows.faults(summary, summary=True) == []
    SEEN["rows"] |= {key for row in found for key in row}
    SEEN["summary"] |= {re.sub("info_.*", "info_<key>", key) for key in summary}
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_row_of_a_real_run_goes_by_the_schema(small_config, variant):
    config = small_config(**{**BRIEF, **VARIANTS[variant]})
    train(config, ["test"])
    folder = Path(config.run_dir)
    found = look(folder)
    training = rows.of_kind(found, "training")
    assert training[-1]["frames"] >= 300
    assert all(row["learning_rate"] == 2.5e-4 for row in training)
    assert rows.of_kind(found, "final")[-1]["final_best_episodes"] >= 2
    assert rows.read(folder) == (found, "")


def test_every_row_of_self_play_goes_by_the_schema(game_run):
    found = look(game_run)
    assert rows.of_kind(found, "training")[-1]["pool_size"] > 0 and rows.of_kind(found, "league")


def test_every_figure_that_is_declared_is_told_by_one_of_these_runs():
    """Last, by what the others saw: a key that is read, and that nobody writes, is how evaluations were lost."""
    if not SEEN["rows"] or not SEEN["summary"]:
        pytest.skip("the runs of this file were not made")
    seen = SEEN["rows"] | figures([(Node(0, [0], placed=None), 0)]).keys()  # which a run with a cluster adds
    told = {metric.name for metric in map(rows.declared, seen) if metric is not None}
    declared = {metric.name for metrics in (rows.EVERY_ROW, *rows.KINDS.values()) for metric in metrics}
    assert declared - told == set()
    assert {metric.name for metric in rows.SUMMARY} - SEEN["summary"] == set()


def test_a_reader_that_asks_for_what_nobody_writes_is_an_error(real_rows):
    with pytest.raises(KeyError, match="eval_frames is not declared"):
        rows.value_of(real_rows[0], "eval_frames")
    assert rows.faults({"frames": 1, "eval_frames": 2}) == ["eval_frames is not declared in trainer/telemetry/rows.py"]
    assert rows.faults({"frames": 1.5}) == ["frames=1.5 is no int"]
    assert rows.faults({"red/eta_s": 1.0, "red/loss": 1.0}) == [
        "red/eta_s is not declared in trainer/telemetry/rows.py"
    ]


def test_the_documents_name_the_figures_that_there_are():
    assert (ROOT / "docs/metrics.md").read_text() == rows.markdown()
    table = (ROOT / "docs/diagnostics.md").read_text().partition("| key |")[2].partition("\n\n")[0]
    keys = [key for line in table.splitlines()[2:] for key in re.findall(r"`([\w<>]+)`", line.split("|")[1])]
    assert len(keys) > 10
    assert [key for key in keys if rows.declared(re.sub("<.*>", "0", key)) is None] == []


def test_figures_of_several_agents_are_joined_as_declared():
    one = {"frames": 10, "updates": 3, "return_mean": 1.0, "return_min": -1.0, "q_max": 5.0, "bottleneck": "learning"}
    two = {"frames": 12, "updates": 4, "return_mean": float("nan"), "return_min": -2.0, "q_max": 4.0, "loss": 0.5}
    row = rows.joined(["red", "blue"], [one, two])
    plain = {key: value for key, value in row.items() if "/" not in key}
    assert plain == {
        "frames": 12, "updates": 7, "return_mean": 1.0, "return_min": -2.0, "q_max": 5.0, "bottleneck": "learning",
        "loss": 0.5,
    }  # fmt: skip
    assert (row["red/updates"], row["blue/loss"], "red/return_min" in row) == (3, 0.5, False)
