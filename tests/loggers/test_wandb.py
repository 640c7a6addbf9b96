"""Weights & Biases for real, offline: its file read back, its service killed, its service hanging."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave

from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers.sink import Event
from trainer.telemetry.loggers.wandb import WandbSink, choose_mode, has_credentials, reachable, service_pids
from trainer.telemetry.video import opened

OFFLINE = LoggerConfig(name="wandb", wandb_mode="offline", wandb_project="test")


def records(path):
    """The records of a .wandb file: LevelDB's log format (blocks of 32 KiB) after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, record, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if 32_768 - position % 32_768 < 7:
            position += 32_768 - position % 32_768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, or the last part
            found.append(Record.FromString(record))
            record = b""
    return found


def history(path):
    """The logged rows as dicts of the values' JSON texts."""
    rows = [record.history for record in records(path) if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): item.value_json for item in row.item} for row in rows]


def wait_for(sink, condition):
    """Wait until the sink's thread has come so far; a thread that never does fails the test by its time-out."""
    for _ in range(600):
        if condition():
            return
        sink._thread.join(0.05)
    raise AssertionError("W&B's thread did not come so far within 30 s")


def wandb_file(run):
    (path,) = (run.run_dir / "wandb").glob("offline-run-*/run-*.wandb")
    return path


def test_the_video_of_an_evaluation_is_in_wandbs_file(run, notices):
    path = run.run_dir / "frames_000000000007.mp4"
    with opened(path, 30) as add:
        for grey in range(3):
            add(np.full((16, 16, 3), 80 * grey, np.uint8))
    sink = WandbSink(OFFLINE, run, notices.append, close_timeout_s=60)
    sink.event(Event(datetime.now(), "evaluator", "video of an evaluation", video=path, frames=7))
    sink.event(Event(datetime.now(), "evaluator", "and no video"))
    sink.close({"status": "finished"})
    (row, *_) = history(wandb_file(run))
    assert json.loads(row["frames"]) == 7
    assert any(json.loads(text) == "video-file" for key, text in row.items() if key.startswith("eval_video"))


def test_rows_summary_and_curve_are_in_wandbs_file(run, notices, real_rows):
    for picture in ("curve.png", "league.png"):
        imsave(run.run_dir / picture, np.zeros((4, 4)))
    sink = WandbSink(OFFLINE, run, notices.append, close_timeout_s=60)
    for row in real_rows:
        sink.write(row)
    sink.close({"status": "finished", "eval_return_mean": 475.5})
    assert len(notices) == 1 and notices[0].startswith("Weights & Biases is offline; upload with `wandb sync ")
    path = wandb_file(run)
    assert str(path.parent) in notices[0]
    rows = history(path)
    for told, row in zip(rows, real_rows, strict=False):
        numbers = {key: value for key, value in row.items() if value is not None and "bottleneck" not in key}
        assert {key: json.loads(told[key]) for key in told if not key.startswith("_")} == numbers
    assert any("curve" in key for key in rows[len(real_rows)])
    assert any("league" in key for row in rows[len(real_rows) :] for key in row)
    everything = records(path)
    (started,) = [record.run for record in everything if record.WhichOneof("record_type") == "run"]
    assert (started.run_id, started.project) == ((run.run_dir / "wandb_id.txt").read_text().strip(), "test")
    summary = {}
    for record in everything:
        if record.WhichOneof("record_type") == "summary":
            summary |= {item.key: item.value_json for item in record.summary.update}
    assert (summary["status"], summary["eval_return_mean"]) == ('"finished"', "475.5")
    metrics = [record.metric for record in everything if record.WhichOneof("record_type") == "metric"]
    assert any(metric.glob_name == "*" and metric.step_metric == "frames" for metric in metrics)
    assert service_pids() == []


def test_a_resumed_run_keeps_its_id(run, notices):
    (run.run_dir / "wandb_id.txt").write_text("kept1234\n")
    sink = WandbSink(OFFLINE, run, notices.append)
    sink.close({})
    assert wandb_file(run).name == "run-kept1234.wandb"


def test_a_killed_service_turns_wandb_off_with_one_warning(run, notices):
    sink = WandbSink(OFFLINE, run, notices.append)
    wait_for(sink, lambda: notices)
    (pid,) = service_pids()
    os.kill(pid, signal.SIGKILL)
    for frames in range(10_000):
        sink.write({"frames": frames})
        if not sink._thread.is_alive():
            break
        sink._thread.join(0.01)
    sink.write({"frames": -1})
    sink.close({"status": "finished"})
    assert len(notices) == 2
    assert notices[1].startswith("warning: Weights & Biases failed (") and "goes on without it" in notices[1]
    assert not sink._thread.is_alive()


def test_a_hanging_service_blocks_neither_rows_nor_the_end(run, notices):
    sink = WandbSink(OFFLINE, run, notices.append, capacity=50, close_timeout_s=0.5)
    wait_for(sink, lambda: notices)
    (pid,) = service_pids()
    os.kill(pid, signal.SIGSTOP)
    filling = "x" * 5_000  # fills the pipe to the service, so that the thread blocks
    for frames in range(2_000):
        sink.write({"frames": frames, filling: 0.0})
    sink.close({"status": "finished"})
    assert not sink._thread.is_alive() and service_pids() == []
    assert sink.dropped_rows > 0
    assert [notice.split("within")[0] for notice in notices[1:2]] == ["warning: Weights & Biases did not finish "]
    assert notices[2:] == [
        f"warning: Weights & Biases was too slow for {sink.dropped_rows} rows, metrics.jsonl has all"
    ]


def test_a_queue_without_reader_keeps_the_newest_rows_and_the_end(run, notices):
    sink = WandbSink(LoggerConfig(wandb_mode="disabled"), run, notices.append, capacity=3)
    sink.close({})
    for frames in range(10):  # nobody reads any more
        sink.write({"frames": frames})
    assert sink.dropped_rows == 7
    assert [sink._queue.get_nowait() for _ in range(3)] == [{"frames": 7}, {"frames": 8}, {"frames": 9}]


def test_a_failing_start_is_one_warning(run, notices):
    sink = WandbSink(LoggerConfig(name="wandb", wandb_mode="online"), run, notices.append)
    sink._thread.join(30)
    sink.write({"frames": 1})
    sink.close({})
    assert notices == [
        "warning: Weights & Biases failed (RuntimeError: no API key, log in with `wandb login` or set"
        " logger.wandb_mode=offline) and is off; training goes on without it"
    ]


def test_a_program_whose_wandb_died_ends_cleanly(run):
    code = f"""
import sys
import threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
import os, pathlib, signal
from test_wandb import OFFLINE, service_pids, wait_for
from trainer.telemetry.loggers import RunInfo, open_loggers
run = RunInfo(pathlib.Path({str(run.run_dir)!r}), "CartPole-v1", "dqn", 0, 100, {{}}, 1, 16, "cpu")
loggers = open_loggers(OFFLINE, run)
wait_for(loggers._sinks["wandb"], lambda: loggers._notices)  # it has started
os.kill(service_pids()[0], signal.SIGKILL)
loggers.write({{"frames": 1}})
loggers.close({{"status": "finished"}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("warning: Weights & Biases failed") == 1
    assert (run.run_dir / "metrics.jsonl").read_text() == '{"frames": 1}\n'


@pytest.mark.parametrize(
    ("wanted", "environ", "key", "answers", "mode"),
    [
        ("auto", {}, True, True, ("online", "")),
        ("auto", {}, True, False, ("offline", "its server does not answer")),
        ("auto", {}, False, True, ("offline", "no API key")),
        ("auto", {"WANDB_MODE": "offline"}, True, True, ("offline", "WANDB_MODE says so")),
        ("offline", {"WANDB_MODE": "online"}, True, True, ("offline", "")),
        ("online", {}, False, False, ("online", "")),
    ],
)
def test_mode(wanted, environ, key, answers, mode):
    assert choose_mode(wanted, environ, lambda: key, lambda: answers) == mode


def test_credentials_are_found_in_netrc_and_environment(run, tmp_path, monkeypatch):
    assert not has_credentials("https://wandb.example.org")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine wandb.example.org login user password not-a-key\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert has_credentials("https://wandb.example.org")
    assert not has_credentials("https://elsewhere.example.org")
    monkeypatch.setenv("WANDB_API_KEY", "not-a-key")
    assert has_credentials("https://elsewhere.example.org")


def test_a_server_that_nobody_runs_is_not_reachable(run, notices, monkeypatch):
    assert not reachable("http://127.0.0.1:9", timeout_s=1.0)  # the discard port: connections are refused
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    sink = WandbSink(LoggerConfig(name="wandb"), run, notices.append)
    sink.close({})
    assert len(notices) == 1 and "offline (its server does not answer)" in notices[0]
    assert wandb_file(run).exists()


def test_a_server_that_refuses_the_key_is_one_warning(run, notices, monkeypatch):
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *arguments):
            """Keep the test's output clean."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        sink = WandbSink(LoggerConfig(name="wandb"), run, notices.append)
        sink._thread.join(30)
        sink.close({})
        server.shutdown()
    assert len(notices) == 1
    assert notices[0].startswith("warning: Weights & Biases failed (") and "401" in notices[0]
