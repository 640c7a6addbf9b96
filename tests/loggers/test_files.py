"""metrics.jsonl, metrics.csv and log.txt: what a reader finds in them."""

import csv
import json
import math
import re
from datetime import datetime

import numpy as np
import pytest

from trainer.config import LoggerConfig
from trainer.loggers.csv import open_csv
from trainer.loggers.jsonl import open_jsonl
from trainer.loggers.sink import Event
from trainer.loggers.text import open_text

CONFIG = LoggerConfig()


def opened(open_sink, run):
    return open_sink(CONFIG, run, pytest.fail)


def json_rows(run):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    text = (run.run_dir / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def csv_rows(run):
    with open(run.run_dir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_jsonl_row_is_on_disk_before_the_next_one(run):
    sink = opened(open_jsonl, run)
    sink.write({"frames": 100, "loss": 0.25, "bottleneck": "learning"})
    assert json_rows(run) == [{"frames": 100, "loss": 0.25, "bottleneck": "learning"}]
    sink.write({"frames": 200, "eval_return_mean": 475.5})
    assert [row["frames"] for row in json_rows(run)] == [100, 200]
    sink.close({})


def test_jsonl_has_null_for_nan_and_infinity_and_numbers_for_arrays(run):
    sink = opened(open_jsonl, run)
    sink.write({"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32(0.5), "e": np.float32("nan")})
    sink.close({})
    assert json_rows(run) == [{"a": None, "b": None, "c": None, "d": 0.5, "e": None}]


def test_jsonl_goes_on_after_a_torn_line(run):
    (run.run_dir / "metrics.jsonl").write_text('{"frames": 1}\n{"frames": 2}\n{"fra')
    sink = opened(open_jsonl, run)
    sink.write({"frames": 3})
    sink.close({})
    assert [row["frames"] for row in json_rows(run)] == [1, 2, 3]


def test_jsonl_drops_a_torn_first_line_longer_than_a_block(run):
    (run.run_dir / "metrics.jsonl").write_text("x" * 10_000)
    sink = opened(open_jsonl, run)
    sink.write({"frames": 3})
    sink.close({})
    assert json_rows(run) == [{"frames": 3}]


def test_jsonl_drops_a_torn_last_line_longer_than_a_block(run):
    (run.run_dir / "metrics.jsonl").write_text('{"frames": 1}\n' + "x" * 10_000)
    opened(open_jsonl, run).close({})
    assert json_rows(run) == [{"frames": 1}]


def test_csv_header_grows_and_old_rows_keep_their_values(run):
    sink = opened(open_csv, run)
    sink.write({"frames": 1, "reason": "waited 3 %, then went on"})
    sink.write({"frames": 2, "loss": math.nan})
    sink.write({"eval_return_mean": 475.5, "frames": 3, "loss": 0.5})
    sink.close({})
    assert csv_rows(run) == [
        {"frames": "1", "reason": "waited 3 %, then went on", "loss": "", "eval_return_mean": ""},
        {"frames": "2", "reason": "", "loss": "", "eval_return_mean": ""},
        {"frames": "3", "reason": "", "loss": "0.5", "eval_return_mean": "475.5"},
    ]
    assert sorted(path.name for path in run.run_dir.iterdir()) == ["metrics.csv"]


def test_csv_goes_on_in_the_same_table(run):
    first = opened(open_csv, run)
    first.write({"frames": 1, "loss": 0.5})
    first.close({})
    with open(run.run_dir / "metrics.csv", "a") as file:
        file.write("2,0.")  # a process killed while writing
    second = opened(open_csv, run)
    second.write({"loss": 0.25, "frames": 3})
    second.close({})
    assert csv_rows(run) == [{"frames": "1", "loss": "0.5"}, {"frames": "3", "loss": "0.25"}]


def test_csv_and_jsonl_hold_the_same_numbers(run):
    sinks = [opened(open_csv, run), opened(open_jsonl, run)]
    rng = np.random.default_rng(0)
    for i in range(50):
        row = {f"key{j}": float(rng.normal()) for j in rng.integers(0, 8, size=4)} | {"frames": i}
        for sink in sinks:
            sink.write(row)
    for sink in sinks:
        sink.close({})
    for as_text, as_json in zip(csv_rows(run), json_rows(run), strict=True):
        assert {key: float(value) for key, value in as_text.items() if value} == as_json


def test_log_has_time_role_agent_and_process_of_every_line(run):
    sink = opened(open_text, run)
    noon = datetime(2025, 1, 2, 3, 4, 5, 678)
    sink.event(Event(noon, "collector 1", "warning: died (SIGKILL)", pid=1234))
    sink.event(Event(noon, "learner", "is started anew", "agent_2", 5678))
    log = run.run_dir / "log.txt"
    assert log.read_text() == (
        "2025-01-02 03:04:05 [collector 1 pid 1234] warning: died (SIGKILL)\n"
        "2025-01-02 03:04:05 [learner agent_2 pid 5678] is started anew\n"
    )
    sink.close({"status": "stopped", "reason": "Ctrl-C", "frames": 1234, "updates": 56, "wall_s": 61.0})
    assert "stopped (Ctrl-C): 1,234 frames and 56 updates in 1:01" in log.read_text()
    assert all(
        re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[.* pid \d+\] ", line) for line in log.read_text().splitlines()
    )
    opened(open_text, run).close({"status": "finished"})
    assert log.read_text().startswith("2025-01-02")
