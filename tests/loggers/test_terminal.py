"""Real outputs: a pseudo-terminal, a pipe, and both going away."""

import io
import os
import pty
import re
import subprocess
import sys
from collections import deque
from datetime import datetime

import pytest

from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers import Loggers
from trainer.telemetry.loggers.sink import Event
from trainer.telemetry.loggers.terminal import TerminalSink
from trainer.telemetry.loggers.text import open_text
from trainer.telemetry.rows import of_kind

NOON = datetime(2025, 1, 2, 12, 0, 0)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Logs the rows of a real run, over and over, as 200 rows of a run in another folder; says on stderr how it ended.
LOGGING_RUN = """
import itertools, json, pathlib, sys
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers import RunInfo, open_loggers
run = RunInfo(pathlib.Path(sys.argv[1]), "CartPole-v1", "dqn", 0, 200, {}, 1, 16, "cpu")
loggers = open_loggers(LoggerConfig(terminal=sys.argv[2]), run)
rows = itertools.cycle(map(json.loads, pathlib.Path(sys.argv[3]).read_text().splitlines()))
for frames, row in zip(range(1, 201), rows):
    loggers.write(row | {"frames": frames})
    loggers.event(f"event {frames} " + "x" * 1_000)
loggers.close({"status": "finished"})
print("printed after the end")
"""


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def read_all(master):
    """What a pseudo-terminal shows, without escape sequences, until its other side is closed."""
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65_536)
        except OSError:  # EIO: the other side is closed
            chunk = b""
        if not chunk:
            return ESCAPE.sub("", b"".join(chunks).decode()).replace("\r", "")
        chunks.append(chunk)


@pytest.fixture
def training(real_rows):
    """A run's rows of training."""
    return of_kind(real_rows, "training")


def test_plain_lines_come_every_five_seconds_and_events_at_once(run, training):
    stream, clock = io.StringIO(), Clock()
    sink = TerminalSink(run, pytest.fail, live=False, stream=stream, clock=clock)
    for second in range(12):
        clock.now = 100.0 + second
        sink.write(training[second % len(training)] | {"frames": second * 100})
    sink.event(Event(NOON, "collector 1", "warning: died (SIGKILL), replaced"))
    sink.close({"status": "finished", "frames": 1_100})
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["0/50,000", "500/50,000", "1,000/50,000"]
    assert lines[3] == "12:00:00 [collector 1] warning: died (SIGKILL), replaced"
    assert lines[4].startswith("finished: 1,100 frames")
    assert lines[5:] == [f"run folder: {run.run_dir}"]


def test_live_view_on_a_terminal_with_events_above_it(run, real_rows, training):
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        sink = TerminalSink(run, pytest.fail, live=True, stream=stream)
        sink.write(training[-2] | {"frames": 12_500})
        sink.event(Event(NOON, "main", "evaluation 99.0 over 20 episodes"))
        sink.write(evaluation := next(row for row in real_rows if "eval_s" in row))
        sink.write(training[-1] | {"frames": 25_000})
        sink.close({"status": "finished", "reason": "budget reached"})
    shown = read_all(master)
    os.close(master)
    order = (
        "25 %, 12,500 of 50,000", "12:00:00 evaluation 99.0", f"3 episodes, at {evaluation['frames']:,} frames",
        "50 %, 25,000 of 50,000", "finished (budget",
    )  # fmt: skip
    positions = [shown.index(text) for text in order]
    assert positions == sorted(positions)
    assert sys.stdout.__class__.__name__ != "FileProxy"


def test_hung_up_terminal_turns_the_view_off_with_one_notice(run, notices, training):
    master, slave = pty.openpty()
    stdout = sys.stdout
    with open(slave, "w", encoding="utf-8") as stream:
        sink = TerminalSink(run, notices.append, live=True, stream=stream)
        sink.write(training[0])
        os.close(master)
        for row in training[1:4]:
            sink.write(row)
        sink.event(Event(NOON, "main", "still training"))
        sink.close({})
    assert len(notices) == 1 and notices[0].startswith("warning: the terminal went away ([Errno 5]")
    assert sys.stdout is stdout


@pytest.mark.parametrize("live", [False, True])
def test_closed_stream_turns_the_sink_off_with_one_notice(run, notices, training, live):
    stream, stdout = io.StringIO(), sys.stdout
    sink = TerminalSink(run, notices.append, live=live, stream=stream)
    stream.close()
    sink.write(training[0])
    sink.event(Event(NOON, "main", "still training"))
    sink.close({})
    assert len(notices) == 1 and "its stream is closed" in notices[0]
    assert sys.stdout is stdout


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_broken_pipe_does_not_stop_the_run(run, real_run, mode):
    command = [sys.executable, "-c", LOGGING_RUN, str(run.run_dir), mode, str(real_run / "metrics.jsonl")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as `| head` does
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(), errors) == (0, "")
    assert len((run.run_dir / "metrics.jsonl").read_text().splitlines()) == 200
    log = (run.run_dir / "log.txt").read_text()
    assert log.count("the terminal went away ([Errno 32] Broken pipe)") == 1
    assert "event 200 x" in log and "finished" in log


def test_a_pipe_gets_plain_lines_even_in_ascii(run, real_run):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", LOGGING_RUN, str(run.run_dir), "auto", str(real_run / "metrics.jsonl")]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0 and done.stderr == b""
    assert b"1/200 frames" in done.stdout and b"\x1b" not in done.stdout
    assert done.stdout.endswith(b"printed after the end\n")


def test_progress_is_one_plain_line_in_five_seconds_and_none_in_the_log(run):
    stream, clock = io.StringIO(), Clock()
    loggers = Loggers(
        {
            "text": open_text(LoggerConfig(), run, pytest.fail),
            "terminal": TerminalSink(run, pytest.fail, live=False, stream=stream, clock=clock),
        },
        deque(),
    )
    for second in range(12):
        clock.now = 100.0 + second
        loggers.progress(f"final evaluation: {second} of 12 episodes")
    loggers.close({})
    assert [line[9:] for line in stream.getvalue().splitlines()[:3]] == [
        f"final evaluation: {done} of 12 episodes" for done in (0, 5, 10)
    ]
    assert "final evaluation" not in (run.run_dir / "log.txt").read_text()


def test_progress_in_the_live_view_until_training_goes_on(run, real_rows, training):
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        sink = TerminalSink(run, pytest.fail, live=True, stream=stream)
        sink.event(Event(NOON, "main", "starting workers: 3 of 16", passing=True))
        sink.event(Event(NOON, "main", "starting workers: 4 of 16", passing=True))
        sink.write(next(row for row in real_rows if "eval_s" in row))
        sink.event(Event(NOON, "main", "starting workers: 5 of 16", passing=True))
        sink.write(training[-1] | {"frames": 12_500})
        sink.close({})
    shown = read_all(master)
    os.close(master)
    told = [shown.count(f"starting workers: {done} of 16") for done in (3, 4, 5)]
    assert told == [1, 2, 1]  # drawn again with the evaluation, which ends it no more than another evaluation would
    assert "starting workers" not in shown[shown.index("12,500 of 50,000") :]


def test_an_event_of_many_lines_is_one_on_the_terminal_and_all_of_them_in_the_log(run):
    stream = io.StringIO()
    sinks = {
        "text": open_text(LoggerConfig(), run, pytest.fail),
        "terminal": TerminalSink(run, pytest.fail, live=False, stream=stream),
    }
    loggers = Loggers(sinks, deque())
    loggers.event(
        "traceback of the evaluator:\nTraceback (most recent call last):\n  File x\nValueError: \x1b[2Jno \ud800"
    )
    loggers.close({})
    log = (run.run_dir / "log.txt").read_text()
    assert stream.getvalue().splitlines()[0][9:] == (
        f"traceback of the evaluator: (3 more lines in {run.run_dir / 'log.txt'})"
    )
    assert "Traceback" not in stream.getvalue() and r"ValueError: \x1b[2Jno \ud800" in log
