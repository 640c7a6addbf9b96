"""The trace of real runs: every role's spans, in their place in time, bounded, and whole whoever was killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from trainer.commands import timeline as timeline_command
from trainer.config.sections import Config
from trainer.run_folder import manifest
from trainer.telemetry import timeline
from trainer.telemetry.trace import PARTS, NoTrace, Trace, merge
from trainer.training.system import System
from trainer.training.train import train

COUNTING = {"id": "Counting", "backend": "counting_agents", "kwargs": {"num_agents": 2, "max_length": 9}}
AGENTS = ("agent_0", "agent_1")
ALL = "agent_0 .. agent_1"
TRACKS = ("process_name", "thread_name")
COLLECTING = {("env step", ALL), ("inference", ALL), ("write", ALL)}
UPDATES = {
    "process": {("update", "agent_0"), ("update", "agent_1")},
    "sequential": {("update", "agent_0"), ("update", "agent_1")},
    "stacked": {("update", ALL)},
}
LEARNING = {(kind, agent) for kind in ("sample", "publish", "log", "checkpoint") for agent in AGENTS}


def spans_of(run_dir: Path) -> list[dict[str, Any]]:
    whole = json.loads((run_dir / "trace.json").read_text())
    events = whole["traceEvents"]
    assert set(whole) == {"displayTimeUnit", "traceEvents"} and whole["displayTimeUnit"] == "ms"
    assert_in_the_format(events)
    return [event for event in events if event["ph"] == "X"]


def assert_in_the_format(events: list[dict[str, Any]]) -> None:
    """What Chrome's trace event format asks of the two phases that are used: fields, their types, names of tracks."""
    named = {what: {(e["pid"], e["tid"]) for e in events if e["name"] == what} for what in TRACKS}
    for event in events:
        assert type(event["name"]) is str and type(event["pid"]) is type(event["tid"]) is int
        assert type(event["args"]) is dict
        if event["ph"] == "M":
            assert set(event) == {"name", "ph", "pid", "tid", "args"}
            assert event["name"] == "end" or type(event["args"]["name"]) is str
        else:
            assert event["ph"] == "X" and set(event) == {"name", "cat", "ph", "pid", "tid", "args", "ts", "dur"}
            assert event["ts"] >= 0 and event["dur"] >= 0  # microseconds
            assert all((event["pid"], event["tid"]) in tracks for tracks in named.values())


def assert_in_their_place(spans: list[dict[str, Any]]) -> None:
    """What one thread does ends before the next begins, or contains it whole: a publish may lie within another span."""
    for thread in {(span["pid"], span["tid"]) for span in spans}:
        own = [(s["ts"], s["ts"] + s["dur"]) for s in spans if (s["pid"], s["tid"]) == thread]
        open_until: list[float] = []
        for start, end in sorted(own, key=lambda span: (span[0], -span[1])):
            assert 0 <= start <= end
            while open_until and open_until[-1] <= start + 0.001:  # microseconds are rounded to three digits
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.001
            open_until.append(end)


@pytest.mark.parametrize(
    ("schedule", "learner"),
    [
        ("async", "process"),
        pytest.param("async", "stacked", marks=pytest.mark.slow),
        ("sync", "sequential"),
        ("sequential", "stacked"),
    ],  # fmt: skip
)
def test_every_role_shows_every_kind_of_what_it_does(
    schedule: str, learner: str, small_config: Callable[..., Config]
) -> None:
    config = small_config(
        env=COUNTING,
        agents={"learner": learner},
        schedule={"name": schedule},
        evaluator={"every_frames": 400, "stop_at_return": -1e9},  # the run ends when one evaluation is made
        telemetry={"trace": True, "trace_events": 10**6},  # all of them, however long the evaluation takes
        budget_frames=10**6,
    )
    summary = train(config, ["test"])
    run_dir = Path(str(config.run_dir))
    spans = spans_of(run_dir)
    assert_in_their_place(spans)
    found: dict[str, set[tuple[str, str]]] = {}
    for span in spans:
        found.setdefault(span["args"]["role"], set()).add((span["name"], span["args"]["agent"]))
        assert span["cat"] == span["args"]["role"].partition(" ")[0]
    for worker in range(2):
        assert found[f"collector {worker}"] - {("wait", ALL)} == COLLECTING
    assert found["evaluator"] == {("evaluate", ALL)}
    if learner == "process":
        assert found["main"] == {("idle", "")}
        for agent in AGENTS:
            own = {(kind, name) for kind, name in LEARNING | UPDATES[learner] if name == agent}
            perhaps = {("idle", agent), ("log", agent)}  # once a second, and the run may be shorter
            assert found[f"learner {agent}"] - perhaps == own - perhaps
    else:
        assert found["learner"] - {("idle", ALL)} == LEARNING | UPDATES[learner]
        assert ("idle", ALL) in found["learner"] or schedule == "sequential"
    log = (run_dir / "log.txt").read_text()
    pid = next(span["pid"] for span in spans if span["name"] == "evaluate")
    assert f"[evaluator pid {pid}] evaluation at" in log and f"[main pid {os.getpid()}] run folder" in log
    processes = {span["pid"] for span in spans}
    assert len(processes) == {"sequential": 1, "sync": 4}.get(schedule, 6 if learner == "process" else 4)
    updates = sum(span["name"] == "update" for span in spans)
    if learner == "process":
        assert updates >= summary["updates"]  # processes go on learning until they are told to stop
    else:  # a stack's update is one of both agents, or of one that is ahead
        assert summary["updates"] / (2 if learner == "stacked" else 1) <= updates <= summary["updates"]
    steps = sum(span["name"] == "env step" for span in spans)
    assert 3 * steps < summary["frames"] < 4 * steps  # the rows of final observations are no frames
    assert not (run_dir / PARTS).exists()


@pytest.mark.slow
def test_waits_of_either_side_are_few_and_long(small_config: Callable[..., Config]) -> None:
    """A collector that the limiter holds back, and a learner that has nothing due, look up 5,000 times a second."""
    config = small_config(
        env=COUNTING,
        telemetry={"trace": True},
        learner={"prefetch_batches": 1},
        schedule={"frames_per_update": 0.25, "tolerance_frames": 8},
    )
    train(config, ["test"])
    waits = [span for span in spans_of(Path(str(config.run_dir))) if span["name"] == "wait"]
    assert {span["args"]["role"] for span in waits} == {"collector 0", "collector 1"}
    assert max(span["dur"] for span in waits) > 2_000  # us; a look takes 200
    steps = 2 * 2_000 // 8
    assert len(waits) < 2 * steps


def test_each_process_keeps_its_last_spans_only(small_config: Callable[..., Config]) -> None:
    config = small_config(
        env=COUNTING,
        telemetry={"trace": True, "trace_events": 30},
        evaluator={"every_frames": 400},
        budget_frames=2_000,
    )
    train(config, ["test"])
    run_dir = Path(str(config.run_dir))
    spans = spans_of(run_dir)
    count = Counter(span["args"]["role"] for span in spans)
    assert count["collector 0"] == count["collector 1"] == count["learner"] == 30 and count["evaluator"] <= 30
    assert (run_dir / "trace.json").stat().st_size < 200 * (4 * 30 + 10)
    last = max(span["ts"] for span in spans if span["args"]["role"] == "learner")
    kinds = [span["name"] for span in spans if span["args"]["role"] == "learner" and span["ts"] == last]
    assert kinds == ["checkpoint"]  # which is the last thing that it does


def test_a_run_without_a_trace_wraps_nothing(
    small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    system = started(small_config(env=COUNTING, schedule={"name": "sequential"}))
    rollout, agent = system.collectors.rollouts[0], system.learners.local[0]
    assert isinstance(system.trace, NoTrace) and isinstance(rollout.trace, NoTrace)
    parts: list[Any] = [rollout, agent, agent.updater, agent.feed, system.learners.updating[0]]
    methods = {"step", "publish", "metrics", "save", "update", "gather"}
    assert not [name for part in parts for name in vars(part) if name in methods]
    system.close()
    assert not (system.run_dir / "trace.json").exists()


def test_processes_that_are_killed_leave_the_others_trace_whole(
    small_config: Callable[..., Config], started: Callable[[Config], System]
) -> None:
    config = small_config(
        env=COUNTING, agents={"learner": "process"}, telemetry={"trace": True}, budget_frames=10**9,
        schedule={"tolerance_frames": 2_000}, faults={"max_failures": 3},
    )  # fmt: skip
    system = started(config)

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "gave up waiting"
            system.check()
            time.sleep(0.01)

    boards = [plan.board for plan in system.plans]
    until(lambda: all(board.updates[0] > 20 for board in boards))
    killed = system.learners.remote[1].supervised.pid
    os.kill(killed, signal.SIGKILL)
    until(lambda: system.learners.remote[1].restarts == 1)
    until(lambda: boards[1].updates[0] > 0 and boards[1].learner_heartbeat[0] < time.monotonic())
    parts = system.run_dir / PARTS
    parts.mkdir(exist_ok=True)
    torn = parts / f".{killed}_learner.json.partial"
    manifest.add(torn)
    torn.write_text('{"role": "lear')  # it was writing as it was killed
    system.close()
    spans = spans_of(system.run_dir)
    assert_in_their_place(spans)
    by_role = {span["args"]["role"]: span["pid"] for span in spans}
    assert {"collector 0", "collector 1", "learner agent_0", "learner agent_1"} <= set(by_role)
    assert killed not in by_role.values()
    assert not parts.exists()


def test_spans_that_are_known_come_out_as_chrome_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.telemetry.trace.WAIT_GAP_NS", 10**10)  # however busy the machine is
    manifest.begin(tmp_path)
    trace, other = Trace(tmp_path / PARTS, "collector", "0", 10), Trace(tmp_path / PARTS, "learner", "", 10)
    add = trace.timed(lambda a, b: a + b, "add", "agent_1")
    number, record = trace.chain("one", "two", agent="both")
    rest, pause = other.waiting(time.sleep, "idle"), other.timed(time.sleep, "update")
    assert add(1, b=2) == 3
    now = time.monotonic_ns()
    record((number, now, now + 1_000, now + 3_000))
    rest(0.002), rest(0.002), pause(0.001), rest(0.002)
    trace.save(), other.save(), trace.save()
    with pytest.raises(TypeError):
        add(1, None)
    path = merge(tmp_path)
    assert path == tmp_path / "trace.json" and merge(tmp_path) is None
    spans = spans_of(tmp_path)
    assert [(s["name"], s["cat"], s["args"]) for s in spans] == [
        ("add", "collector", {"role": "collector 0", "agent": "agent_1"}),
        ("one", "collector", {"role": "collector 0", "agent": "both"}),
        ("two", "collector", {"role": "collector 0", "agent": "both"}),
        ("idle", "learner", {"role": "learner", "agent": ""}),
        ("update", "learner", {"role": "learner", "agent": ""}),
        ("idle", "learner", {"role": "learner", "agent": ""}),
    ]
    assert spans[0]["ts"] == 0 and spans[2]["tid"] != spans[3]["tid"] and spans[0]["pid"] == os.getpid()
    assert (spans[1]["dur"], spans[2]["dur"]) == (1, 2)
    assert spans[2]["ts"] == pytest.approx(spans[1]["ts"] + 1, abs=0.002)
    assert spans[3]["dur"] >= 4_000 and spans[5]["dur"] >= 2_000  # two sleeps and one
    names = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "thread_name"]
    assert [name["args"]["name"] for name in names] == ["collector 0", "learner"]


def test_the_picture_shows_what_the_trace_holds(tmp_path: Path) -> None:
    a, b = "collector 0", "learner"
    spans = [timeline.Span(a, "env step", i / 10, i / 10 + 0.04) for i in range(10)]
    spans += [timeline.Span(b, "update", 0.2 + i / 10, 0.3 + i / 10) for i in range(7)]
    assert timeline.middle(spans, 0.4) == pytest.approx((0.2 + 0.9 - 0.4) / 2)
    upper, lower = timeline.draw(spans, 0.2, 0.5).axes
    assert [label.get_text() for label in upper.get_yticklabels()] == [a, b]
    assert len(upper.collections[0].get_paths()) == 5 + 5  # of each track those that reach into 0.2 .. 0.7 s
    assert lower.get_xlim() == pytest.approx((0, 5))  # ms
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(SystemExit):
        timeline_command.main([str(tmp_path / "missing")])
    events = [
        {"name": s.kind, "ph": "X", "ts": s.start * 1e6, "dur": (s.end - s.start) * 1e6, "args": {"role": s.track}}
        for s in spans
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert timeline_command.main([str(tmp_path), "--seconds", "0.5"]) == 0
    assert matplotlib.image.imread(tmp_path / "trace.png")[..., :3].std() > 0.01
