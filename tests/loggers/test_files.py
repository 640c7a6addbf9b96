"""metrics.jsonl, metrics.csv and log.txt: what a reader finds in them."""

import csv
import json
import math
import re
from datetime import datetime

import numpy as np
import pytest

from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.csv import open_csv
from trainer.telemetry.loggers.jsonl import open_jsonl
from trainer.telemetry.loggers.sink import Event
from trainer.telemetry.loggers.text import open_text

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
    sink.write(
        {"loss": math.nan, "q_max": math.inf, "q_mean": -math.inf, "churn": np.float32(0.5), "eta_s": np.float32("nan")}
    )
    sink.close({})
    assert json_rows(run) == [{"loss": None, "q_max": None, "q_mean": None, "churn": 0.5, "eta_s": None}]


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
    sink.write({"frames": 1, "bottleneck_reason": "waited 3 %, then went on"})
    sink.write({"frames": 2, "loss": math.nan})
    sink.write({"eval_return_mean": 475.5, "frames": 3, "loss": 0.5})
    sink.close({})
    assert csv_rows(run) == [
        {"frames": "1", "bottleneck_reason": "waited 3 %, then went on", "loss": "", "eval_return_mean": ""},
        {"frames": "2", "bottleneck_reason": "", "loss": "", "eval_return_mean": ""},
        {"frames": "3", "bottleneck_reason": "", "loss": "0.5", "eval_return_mean": "475.5"},
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


def test_csv_and_jsonl_hold_the_same_numbers(run, real_rows, real_run):
    sinks = [opened(open_csv, run), opened(open_jsonl, run)]
    for row in real_rows:
        for sink in sinks:
            sink.write(row)
    for sink in sinks:
        sink.close({})
    assert json_rows(run) == real_rows
    assert csv_rows(run) == [
        {key: "" if (v := row.get(key)) is None else str(v) for key in csv_rows(run)[0]} for row in real_rows
    ]
    for name in ("metrics.csv", "metrics.jsonl"):
        assert (run.run_dir / name).read_bytes() == (real_run / name).read_bytes()


@pytest.mark.parametrize("damage", [b"frames,\xff\xfe\n1,2\n", b"frames,loss\n1,\xff\n", b'frames,"loss\n1,2\n'])
def test_a_damaged_table_is_kept_aside_and_a_new_one_begun(run, real_rows, damage):
    (run.run_dir / "metrics.csv").write_bytes(damage)
    said = []
    sink = open_csv(CONFIG, run, said.append)
    sink.write(real_rows[0])
    sink.close({})
    assert [row["frames"] for row in csv_rows(run)] == [str(real_rows[0]["frames"])]
    assert (run.run_dir / "metrics.csv.damaged").read_bytes() == damage
    assert len(said) == 1 and "metrics.csv is damaged" in said[0]


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
