"""What environments say in `info` at the end of an episode, in everything that tells how a run goes."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.commands import eval as evaluating
from trainer.config.sections import Config
from trainer.envs.info import at, scalars_of
from trainer.memory.boards import INFO_KEPT, MOST_INFO, AgentBoard
from trainer.roles.shared_memory import SharedMemoryAgentLink
from trainer.telemetry.loggers.view import Newest, info, plain_line
from trainer.telemetry.metrics import ReturnWindow
from trainer.training.train import train

TELLING = {"id": "Hurting/Telling-v0", "backend": "gymnasium", "import_modules": ["hurting"]}


def run_of(config: Config) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Rows, summary and events of a run."""
    train(config, ["test"])
    folder = Path(str(config.run_dir))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "summary.json").read_text()), (folder / "log.txt").read_text()


def test_every_scalar_of_the_last_step_is_a_metric(small_config: Callable[..., Config], capsys):
    """8 environments in step, of which all or none succeed: of 40 episodes or more 40 to 60 % have."""
    config = small_config(
        env=TELLING, schedule={"name": "sequential"}, budget_frames=960,
        evaluator={"every_frames": 400, "episodes": 4, "final_episodes": 8, "num_envs": 2},
    )  # fmt: skip
    rows, summary, events = run_of(config)
    trained = [row for row in rows if row.get("episodes", 0) >= 40 and "eval_episodes" not in row]
    assert trained and all(0.4 <= row["info_is_success"] <= 0.6 and row["info_share"] == 0.5 for row in trained)
    told = {key for row in rows for key in row if "info" in key}
    kinds = ("", "eval_", "final_last_", "final_best_")
    assert told == {f"{kind}info_{key}" for kind in kinds for key in ("is_success", "share")}
    # each of the two environments plays two episodes in a row, and one of two in a row succeeds
    assert all(row["eval_info_is_success"] == 0.5 for row in rows if "eval_info_is_success" in row)
    assert (summary["eval_info_is_success"], summary["eval_info_share"]) == (0.5, 0.5)
    assert re.search(r"return \S+ \+- \S+ over 4 greedy episodes, is_success 0.5, share 0.5", events)
    table = list(csv.DictReader((Path(str(config.run_dir)) / "metrics.csv").open()))
    assert float(table[-1]["info_share"]) == 0.5
    assert evaluating.main([str(config.run_dir), "--episodes", "4", "--num-envs", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_info_is_success"] == 0.5


def test_named_keys_alone_come_from_every_worker(small_config: Callable[..., Config]):
    config = small_config(
        env=TELLING, schedule={"name": "sync"}, logger={"info_keys": ["robot.x", "missing"], "terminal": "none"}
    )
    rows, _, _ = run_of(config)
    told = {key for row in rows for key in row if "info" in key}
    assert {key.rpartition("info_")[2] for key in told} == {"robot.x"}
    assert [row["info_robot.x"] for row in rows if "info_robot.x" in row][-1] == 5.0


def test_scalars_are_numbers_without_axes():
    known = {
        "yes": True, "count": 3, "half": np.float64(0.5), "one": torch.tensor(1), "point": np.array(2.5),
        "two/words !": 1, "nan": math.nan, "huge": 10**400, "text": "3", "none": None, "many": np.zeros(2),
        "episode": {"r": 1.0}, "frame_number": 7,
    }  # fmt: skip
    assert scalars_of(known, None) == {
        "yes": 1.0, "count": 3.0, "half": 0.5, "one": 1.0, "point": 2.5, "two_words__": 1.0
    }  # fmt: skip
    named = ["half", "episode.r", "episode.l", "frame_number", "gone"]
    assert scalars_of(known, named) == {"half": 0.5, "episode.r": 1.0, "frame_number": 7.0}


def test_the_info_of_a_vector_is_taken_apart():
    whole = {
        "x": np.array([1.0, 2.0]), "_x": np.array([True, False]), "y": np.array([3, 4]),
        "deep": {"z": np.array([5, 6]), "_z": np.array([False, True])}, "shared": "text",
    }  # fmt: skip
    assert at(whole, 0, 2) == {"x": 1.0, "y": 3, "deep": {}}
    assert at(whole, 1, 2) == {"y": 4, "deep": {"z": 6}}


def test_the_board_keeps_the_last_episodes_of_each_worker():
    board, nothing = AgentBoard(2, 2), np.zeros(2, np.int64)
    assert board.read_info(nothing, nothing) == []
    for worker, names in enumerate((["a", "b"], ["b"])):
        columns = [board.name_info(worker, name) for name in names]
        assert columns == list(range(len(names)))
    board.info[:] = np.nan
    board.info[0, :3, 0], board.info[0, 1, 1], board.info[1, 0, 0] = (1.0, 2.0, 3.0), 4.0, 5.0
    read = [(name, values.tolist()) for name, values in board.read_info(nothing, np.array([3, 1]))]
    assert read == [("a", [1.0, 2.0, 3.0]), ("b", [4.0]), ("b", [5.0])]
    board.info[0, :, 0] = np.arange(INFO_KEPT)
    (_, values), _ = board.read_info(nothing, np.array([INFO_KEPT + 2, 0]))  # rows 2 .. and then 0 and 1
    assert values.tolist() == [*range(2, INFO_KEPT), 0, 1]


def test_more_scalars_than_there_is_room_for_are_named_once(small_config, started, capsys):
    system = started(small_config(schedule={"name": "sequential"}))
    link = SharedMemoryAgentLink(system.plans[0], 0)
    many = {f"key_{number}": float(number) for number in range(MOST_INFO + 1)}
    for _ in range(2):
        link.write_episodes(np.ones(1), np.ones(1, np.int32), [many])
    assert capsys.readouterr().err.count(f"key_{MOST_INFO} is left out: choose others by logger.info_keys") == 1
    again = SharedMemoryAgentLink(system.plans[0], 0)  # of a worker that takes over
    again.write_episodes(np.ones(1), np.ones(1, np.int32), [{"key_1": 3.0, "new": 1.0}])
    done = system.plans[0].board.episodes_done
    read = dict(system.plans[0].board.read_info(done - 1, done))
    assert read["key_1"].tolist() == [3.0] and "new" not in read


def test_the_window_of_returns_keeps_them_and_goes_through_a_checkpoint():
    window, copy = ReturnWindow(size=2), ReturnWindow(size=2)
    window.add(1.0, 5)
    window.add_info("is_success", [0.0, 1.0, 1.0])
    copy.load_state_dict(window.state_dict())
    assert copy.row()["info_is_success"] == window.row()["info_is_success"] == 1.0
    assert "info_is_success" not in ReturnWindow().row()


def test_the_terminal_shows_the_first_of_them(run_info):
    row = {"frames": 10, "return_mean": 1.0, "info_is_success": 0.25, "info_share": 1 / 3}
    assert info(row) == "is_success 0.25  share 0.333"
    newest = Newest()
    newest.add(row)
    newest.add({"frames": 10, "eval_return_mean": 1.0, "eval_info_is_success": 0.5})
    line = plain_line(newest, run_info)
    assert "| return 1.00 | is_success 0.25  share 0.333 | evaluation 1.00  is_success 0.5 |" in line


@pytest.fixture
def run_info(tmp_path: Path):
    from trainer.telemetry.loggers import RunInfo

    return RunInfo(tmp_path, "Telling", "dqn", 0, 100, {}, 1, 1, "cpu")
