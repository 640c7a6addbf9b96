"""Figures that did not hold: divided by another machine's, of unequal work, or without the rows that miss."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import learning, peer_ours, peers
from benchmarks.works import WORKS

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
TABLE = (ROOT / "docs" / "learning.md").read_text()


def rows_of(markdown: str) -> list[list[str]]:
    """The cells of every line of every table."""
    return [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("| ")]


def test_4_no_speed_is_divided_by_another_machines() -> None:
    """Neither a row of a page nor a benchmark; what the repository needs lies in it."""
    assert "public program" not in README
    speeds, _, statistics = BENCHMARKS.partition("Statistics of play")
    assert "public program" not in speeds and "/s" not in statistics.partition("## ")[0]
    for path in (ROOT / "benchmarks").glob("*.py"):
        text = path.read_text()
        assert "PUBLIC" not in text and "public program" not in text and "../shared" not in text, path


def line(peer: str, rate: float, updates: int, frames: int = 100_000) -> dict[str, Any]:
    """What a driver prints, as far as it is compared."""
    return {"peer": peer, "env_steps_per_s": rate, "updates": updates, "env_steps": frames}


def test_4_unequal_numbers_of_updates_are_told_in_the_report() -> None:
    """11,250 updates of 100,000 frames against 9,000 are 20 % less; 9,050 are .55 %."""
    cartpole = peers.COMPARISONS[0]
    ours = {"8 environments, 1 threads": [line("ours", 12_000, 9_000)]}
    for theirs, difference, holds in ((11_250, 20.0, False), (9_050, 0.552, True)):
        slow, fast = line("sb3", 2_000, 9_000), line("sb3", 3_000, theirs)
        ratio, updates = peers.rows_of(cartpole, ours, {"one": [slow], "two": [fast]})
        assert ratio.value == pytest.approx(4)  # the peer's best choice counts
        assert updates.value == pytest.approx(difference, rel=1e-2) and updates.holds is holds


def test_4_both_sides_have_the_same_choice_of_environments() -> None:
    class Args:
        share, sb3 = 1.0, "python"

    for comparison in peers.COMPARISONS:
        sides = peers.commands(comparison, Args)  # type: ignore[arg-type]
        if comparison.their_envs is None:
            assert list(sides["ours"]) == list(sides["theirs"]) and len(sides["ours"]) >= 4
        else:  # as it is documented, which the name says
            assert "one environment" in comparison.peer


@pytest.mark.parametrize("envs", [8, 64])
def test_4_our_side_makes_the_jobs_updates(envs: int, monkeypatch: Any, capsys: Any) -> None:
    """One for each 10 frames behind the first 10,000, to 1 %."""
    monkeypatch.setattr(sys, "argv", ["peer_ours", "--n-envs", str(envs), "--steps", "14000"])
    peer_ours.main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    work = WORKS["CartPole-v1"]
    assert told["updates"] == pytest.approx((told["env_steps"] - work.learning_starts) / work.train_every, rel=0.01)


def test_4_the_learning_table_shows_the_last_policy_and_marks_what_its_command_does_not_give_now() -> None:
    rows = [cells for cells in rows_of(TABLE) if cells[0].strip() in learning.ALGORITHMS]
    runs = list(learning.finished().values())
    assert len(rows) == len({(run["task"], run["algorithm"]) for run in runs}) >= 39  # every run is in the table
    for cells in rows:
        *_, last, _frames, _minutes, _hardware, made_at = cells
        assert re.fullmatch(r" -?[\d.]+ \((-?[\d.]+(, )?)+\) ", last), cells  # the median, and each
        assert re.match(r" [0-9a-f]{7}", made_at), cells
    outdated = {(run["task"], run["algorithm"]) for run in runs if learning.outdated(run)}
    assert sum(r"\*" in cells[-1] for cells in rows) == len(outdated)


def test_4_benchmarks_tell_misses_and_who_the_judge_is() -> None:
    """Every row that soak and resume print, and how often a preset meets its judge while it learns."""
    for words in (
        "soak: growth of memory", "soak: frames/s at the end / at the start", "fall of the greedy return over a stop",
        "most updates/s after a resume",
    ):  # fmt: skip
        assert words in BENCHMARKS
    assert len(re.findall(r"\| \*\*[^|]*\*\* \|", BENCHMARKS)) > 5  # those that miss their bar are bold
    judges = {"the heuristic": "scripted", "random play": "random"}
    for game in ("ludo", "connect four"):
        preset = yaml.safe_load((ROOT / "configs" / "preset" / f"{game.replace(' ', '_')}_selfplay.yaml").read_text())
        for judge, key in judges.items():
            rows = [[cell.strip() for cell in cells] for cells in rows_of(BENCHMARKS)]
            shares = {cells[2] for cells in rows if cells[0].partition(",")[0] == game and cells[1] == judge}
            assert shares == {f"{100 * preset['opponents'][key]:.0f} %"}, (game, judge)


def test_4_every_cell_of_the_benchmarks_holds_one_number() -> None:
    """What was measured stands in a row of its own: no list of numbers in a cell that has a bar beside it."""
    head: list[str] = []
    for line in BENCHMARKS.splitlines():
        cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        head = (head or cells) if cells else []
        if cells and "bar" in head and cells is not head and "measured" in head:
            measured = cells[head.index("measured")]
            assert re.fullmatch(r"-?[\d.,]+( of \d+| to \d+)?( ?[\w/%]+)?|not recorded", measured), line


def test_4_what_was_never_run_is_said_where_it_is_promised() -> None:
    assert "**Not run so far**: a learner on a GPU" in README
    (torch,) = [text for text in (ROOT / "pyproject.toml").read_text().splitlines() if '"torch>=' in text]
    assert (
        "2.11.0, 2.13.0 and 2.14.1 on CPUs; no GPU so far" in torch
        and f"torch=={'2.13.0'}" in (ROOT / "constraints.txt").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["publish", "evaluator"])
def test_4_what_a_publish_and_the_evaluator_cost_is_a_benchmark(name: str, tmp_path: Path) -> None:
    """Tried with little: every row has a value, and is written as JSON."""
    words = {"publish": ["--workers", "2"], "evaluator": ["--trained-frames", "1500"]}[name]
    command = [sys.executable, "-m", f"benchmarks.{name}", "--seconds", "0.5", "--repeats", "1"]
    subprocess.run([*command, *words, "--json", tmp_path / "rows.json"], cwd=ROOT, check=True, capture_output=True)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) >= 4 and all(row["value"] is not None and row["value"] > 0 for row in rows)
