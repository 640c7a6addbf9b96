"""However a run ends, everything ends: real runs of the command, each struck in its own way.

Each run is a process group of its own, whose processes carry a mark in their environment, with a folder of its own for
temporary files. Two runs go on at a time.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from tests.shutdown_scenarios import (
    END_S,
    Outcome,
    carried_out,
)
from trainer.run_folder import checkpoint

SLOW = pytest.mark.slow  # a run takes some 10 s of a core, most of it for imports: one of each kind is quick enough


@pytest.fixture(scope="module")
def futures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """The scenarios of all tests that were chosen, two at a time."""
    asked = [getattr(item, "callspec", None) for item in request.session.items if item.fspath == request.fspath]
    names = dict.fromkeys(spec.params["outcome"] for spec in asked if spec is not None and "outcome" in spec.params)
    with ThreadPoolExecutor(2) as pool:
        # Not named after the scenario: a folder of sockets must have a short name.
        yield {name: pool.submit(carried_out, name, tmp_path_factory.mktemp("run")) for name in names}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def outcome(request: pytest.FixtureRequest, futures: dict[str, Future[Outcome]]) -> Outcome:
    return futures[request.param].result()


def check_end(outcome: Outcome) -> None:
    """No process, no shared memory, no temporary file and no replay is left, in time."""
    assert outcome.processes == {}
    assert outcome.shared == []
    assert outcome.temporary == []
    assert outcome.scratch == []
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    assert outcome.seconds < END_S * max(1.0, load)


def check_checkpoint(outcome: Outcome) -> None:
    """The newest checkpoint loads, its counters are those of the summary, and its weights are finite."""
    state = checkpoint.load(outcome.checkpoints[-1])
    assert state["frames"] == outcome.summary["frames"] > 0
    assert state["learner"]["updates"] == state["limiter"]["updates"] == outcome.summary["updates"] > 0
    assert all(torch.isfinite(value).all() for value in state["learner"]["loss"].values())
    assert state["learner"]["optimizer"]["state"]


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [
        "ctrl_c",
        *(pytest.param(name, marks=SLOW) for name in ("sigterm", "sigterm_to_all", "hang", "hang_sequential")),
    ],
    indirect=True,
)
def test_signal_stops_the_run(outcome: Outcome, request: pytest.FixtureRequest) -> None:
    name = "SIGTERM" if "sigterm" in request.node.callspec.params["outcome"] else "SIGINT"
    check_end(outcome)
    assert outcome.code == 128 + signal.Signals[name]
    assert outcome.stderr == ""
    assert (outcome.summary["status"], outcome.summary["reason"]) == ("stopped", f"signal {name}")
    assert outcome.summary["frames_per_s"] == pytest.approx(outcome.summary["frames"] / outcome.summary["wall_s"])
    assert f"stopped (signal {name})" in outcome.stdout
    check_checkpoint(outcome)


@pytest.mark.parametrize(
    "outcome",
    [pytest.param(name, marks=SLOW) for name in ("ctrl_c_while_starting", "hang_in_constructor")],
    indirect=True,
)
def test_ctrl_c_while_the_run_starts(outcome: Outcome) -> None:
    check_end(outcome)
    assert (outcome.code, outcome.stderr) == (130, "")
    assert (outcome.summary["status"], outcome.summary["reason"]) == ("stopped", "signal SIGINT")
    assert (outcome.summary["frames"], outcome.checkpoints) == (0, [])  # nothing was learned


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["hang_in_constructors_of_local_agents"], indirect=True)
def test_ctrl_c_while_all_local_agents_make_their_environments(outcome: Outcome) -> None:
    check_end(outcome)  # the training loop runs already, and what it keeps are weights at random
    assert (outcome.code, outcome.stderr) == (130, "")
    assert (outcome.summary["status"], outcome.summary["frames"]) == ("stopped", 0)


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["ctrl_c_in_final_evaluation"], indirect=True)
def test_ctrl_c_in_the_final_evaluation(outcome: Outcome) -> None:
    check_end(outcome)
    assert (outcome.code, outcome.stderr) == (130, "")
    assert (outcome.summary["status"], outcome.summary["eval_return_mean"]) == ("stopped", None)
    assert outcome.summary["frames"] >= 2_000
    check_checkpoint(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["ctrl_c_twice"], indirect=True)
def test_second_ctrl_c_ends_at_once(outcome: Outcome) -> None:
    check_end_at_once(outcome)
    assert outcome.code == 130
    assert "Traceback" not in outcome.stderr
    assert outcome.summary == {}
    assert outcome.scratch == []


@pytest.mark.slow  # test_resume.py kills one, too, and sees that its processes end
@pytest.mark.parametrize("outcome", ["kill_main"], indirect=True)
def test_killed_main_process_leaves_no_other(outcome: Outcome) -> None:
    check_end_at_once(outcome)
    assert outcome.code == -signal.SIGKILL
    assert "Traceback" not in outcome.stderr
    # Nobody is there to remove it: the next run has a folder of its own.
    assert [name.partition("_")[0] for name in outcome.scratch] == ["trainer"]


def check_end_at_once(outcome: Outcome) -> None:
    """As `check_end` of a main process that had no time; the next run sweeps its folder of sockets."""
    assert outcome.processes == {}
    assert outcome.shared == []
    assert [name[:8] for name in outcome.temporary] == ["trainer-"]
    assert outcome.seconds < 3.0 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "sentence", "traceback"),
    [
        pytest.param(
            "kill_worker",
            r"collector worker 1 \(pid PID, 4 x Counting, seeds from 4\) died after \d+ frames: it was ended by "
            r"signal SIGKILL",
            "",
            marks=SLOW,
        ),
        pytest.param(
            "kill_evaluator",
            r"the evaluator \(pid PID, 2 x Counting\) died: it was ended by signal SIGKILL",
            "",
            marks=SLOW,
        ),
        pytest.param(
            "raise",
            r"collector worker 1 \(pid \d+, 4 x Counting, seeds from 4\) died after \d+ frames: Counting: "
            r"sub-environment 0 \(seed 4\) failed in step 200 of all: RuntimeError: asked for by raise_at_step",
            "RuntimeError: raise_at_step",
            marks=SLOW,
        ),
        pytest.param(
            "nan_reward",
            r"collector worker 0 \(pid \d+, 4 x Counting, seeds from 0\) died after \d+ frames: Counting: "
            r"sub-environment 0 \(seed 0\) failed in step 200 of all: its reward is nan, which is no finite number",
            "its reward is nan, which is no finite number",
            marks=SLOW,
        ),
        pytest.param("nan_observation", r"the loss or its gradient became NaN or infinite [^\n]*", "", marks=SLOW),
    ],
    indirect=["outcome"],
)
def test_failure_ends_the_run_with_one_sentence(outcome: Outcome, sentence: str, traceback: str) -> None:
    check_end(outcome)
    assert outcome.code == 1
    sentence = sentence.replace("PID", str(outcome.killed))
    assert re.fullmatch(rf"error: {sentence} \(checkpoints: \S+/run/checkpoints\)\n", outcome.stderr)
    assert outcome.summary["status"] == "failed"
    assert f"error: {outcome.summary['reason']}\n" == outcome.stderr
    assert ("Traceback (most recent call last)" in outcome.log) == bool(traceback)
    assert traceback in outcome.log and "Traceback" not in outcome.stdout
    check_checkpoint(outcome)


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        pytest.param(
            "raise_in_constructor",
            r"Faulty-v0: its constructor failed, given env\.kwargs={'fault': 'raise'}: ValueError: the licence server "
            "does not answer see its log",
            marks=SLOW,
        ),
        pytest.param("kill_in_constructor", "it was ended by signal SIGKILL", marks=SLOW),
    ],
    indirect=["outcome"],
)
def test_worker_that_cannot_start_is_named(outcome: Outcome, cause: str) -> None:
    check_end(outcome)
    assert outcome.code == 1
    who = r"collector worker [01] \(pid \d+, 4 x Faulty-v0, seeds from [04]\) died while starting"
    assert re.fullmatch(rf"error: {who}: {cause}\n", outcome.stderr)
    assert (outcome.summary["status"], outcome.summary["frames"]) == ("failed", 0)
    assert f"error: {outcome.summary['reason']}\n" == outcome.stderr
    assert ("faulty_environment.py" in outcome.log) == ("licence" in cause)  # the worker's own traceback
    assert "Traceback" not in outcome.stdout
