"""The front: which sinks are opened, and that a failing one disturbs nobody."""

import json
import os
from collections import deque

import pytest

from trainer.config.fields import ConfigError
from trainer.config.registries import LOGGERS
from trainer.config.sections import LoggerConfig
from trainer.telemetry.loggers import Loggers, open_loggers


class FullDisk:
    """A sink onto /dev/full, which refuses every write as a full disk does."""

    def __init__(self):
        self.file = open("/dev/full", "wb", buffering=0)

    def write(self, row):
        self.file.write(b"row")

    def event(self, event):
        self.file.write(b"event")

    def close(self, summary):
        self.file.close()


class Memory:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.rows, self.events, self.summary = [], [], None

    def write(self, row):
        self.rows.append(row)

    def event(self, event):
        self.events.append((event.role, event.text))

    def close(self, summary):
        self.summary = summary


def test_files_are_always_on(run, capsys):
    loggers = open_loggers(LoggerConfig(), run)
    loggers.write({"frames": 500, "return_mean": 21.5})
    loggers.event("evaluation 99.0 over 20 episodes", role="evaluator")
    loggers.close({"status": "finished", "reason": "budget reached", "frames": 500})
    loggers.close({"status": "failed"})  # a second call does nothing
    assert sorted(path.name for path in run.run_dir.iterdir()) == ["log.txt", "metrics.csv", "metrics.jsonl"]
    assert json.loads((run.run_dir / "metrics.jsonl").read_text()) == {"frames": 500, "return_mean": 21.5}
    assert (run.run_dir / "metrics.csv").read_text() == "frames,return_mean\n500,21.5\n"
    log = (run.run_dir / "log.txt").read_text()
    assert (
        f"[evaluator pid {os.getpid()}] evaluation 99.0 over 20 episodes\n" in log
        and "finished (budget reached)" in log
    )
    shown = capsys.readouterr().out
    assert "500/50,000 frames" in shown and "return 21.5" in shown and "[evaluator] evaluation 99.0" in shown
    assert "failed" not in log + shown


@pytest.mark.parametrize("silence", [{"config": LoggerConfig(terminal="none")}, {"print_to_terminal": False}])
def test_silent_terminal(run, capsys, silence):
    loggers = open_loggers(**{"config": LoggerConfig(), "run": run, **silence})
    loggers.write({"frames": 1})
    loggers.event("something")
    loggers.close({})
    assert capsys.readouterr().out == ""
    assert "something" in (run.run_dir / "log.txt").read_text()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (LoggerConfig(name="wanbd"), "logger.name=wanbd is unknown: .*nearest: wandb"),
        (LoggerConfig(name="jsonl"), "logger.name=jsonl is unknown"),
        (LoggerConfig(terminal="lively"), "logger.terminal=lively is unknown: .*nearest: live"),
        (LoggerConfig(name="wandb", wandb_mode="on"), "logger.wandb_mode=on is unknown"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_written(run, config, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_loggers(config, run)
    assert list(run.run_dir.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_full_disk_is_reported_once_and_others_go_on():
    memory = Memory()
    loggers = Loggers({"full": FullDisk(), "memory": memory}, deque())
    for frames in range(5):
        loggers.write({"frames": frames})
    loggers.event("still here")
    loggers.close({"status": "finished"})
    assert [row["frames"] for row in memory.rows] == [0, 1, 2, 3, 4]
    assert [text for _, text in memory.events] == [
        "warning: the full logger cannot write ([Errno 28] No space left on device); training goes on",
        "still here",
    ]
    assert memory.summary == {"status": "finished"}


def test_notices_of_a_closing_sink_reach_the_later_ones():
    class LastWords(Memory):
        def close(self, summary):
            notices.append("warning: 3 rows dropped")

    notices = deque()
    memory = Memory()
    Loggers({"first": LastWords(), "memory": memory}, notices).close({})
    assert memory.events == [("main", "warning: 3 rows dropped")]


def test_terminal_is_closed_last_and_optional_sinks_open_first():
    assert list(LOGGERS)[-1] == "terminal"
    assert list(LOGGERS)[:2] == ["wandb", "tensorboard"]
