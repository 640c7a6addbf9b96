"""Evaluations beside the training: watched, labelled with the frames of their weights, closed at the end."""

from __future__ import annotations

import time

import pytest

from trainer.memory import pulse

MODULE = "env.import_modules=[hurting_evals]"


@pytest.mark.slow
def test_a_hung_evaluator_is_noticed_and_started_anew(run, tmp_path):
    """It stops itself as SIGSTOP would; in `sync` the round waits for its successor's evaluation."""
    words = [f"env.kwargs.{word}" for word in ("how=stop", "where=evaluator", f"once={tmp_path / 'once'}")]
    more = ["schedule=sync", "evaluator.every_frames=500", "faults.hang_seconds=4", "evaluator.nice=0"]
    ended = run(MODULE, "env.id=Hurting/Fails-v0", *words, *more)
    assert ended.code == 0, ended.said
    text = "2 x Hurting/Fails-v0) showed no sign of life for 4 s and was ended; another one takes its place"
    assert ended.out.count(text) == 1, ended.said
    assert [row["eval_episodes"] for row in ended.rows if "eval_return_mean" in row] == [2]


def test_an_evaluator_that_hangs_as_it_starts_is_noticed_though_nothing_is_asked_of_it(
    small_config, started, tmp_path, monkeypatch
):
    """Its first environment hangs in its constructor, once; the time that a start may take is left out."""
    monkeypatch.setattr(pulse, "START_S", 0.0)
    kwargs = {"how": "hang", "where": "evaluator", "made": True, "once": str(tmp_path / "once")}
    env = {"id": "Hurting/Fails-v0", "backend": "gymnasium", "import_modules": ("hurting_evals",), "kwargs": kwargs}
    config = small_config(
        env=env, evaluator={"nice": 0}, faults={"hang_seconds": 4.0, "max_failures": 1}, budget_frames=10**9,
        schedule={"frames_per_update": None}, learner={"warmup_frames": 10**9},
    )  # fmt: skip
    system = started(config)
    evaluator, deadline = system.evaluator.supervised, time.monotonic() + 60
    while evaluator.restarts == 0 and time.monotonic() < deadline:
        system.check()
        time.sleep(0.05)
    assert evaluator.restarts == 1 and (tmp_path / "once").exists()
    system.evaluator.request()
    while (evaluation := system.evaluator.poll()) is None and time.monotonic() < deadline:
        system.check()
        time.sleep(0.05)
    assert evaluation is not None and len(evaluation.returns) == 4
    assert "showed no sign of life for 4 s and was ended" in (system.run_dir / "log.txt").read_text()


@pytest.mark.slow
def test_an_evaluator_with_slow_resets_is_not_taken_for_hung(run):
    """6 environments that take half a second each for a reset, 3 s together."""
    more = ["schedule=sync", "evaluator.every_frames=500", "evaluator.episodes=6", "evaluator.final_episodes=6"]
    ended = run(
        MODULE, "env.id=Hurting/SlowReset-v0", "evaluator.num_envs=6", "faults.hang_seconds=2", "faults.max_failures=0",
        *more,
    )  # fmt: skip
    assert ended.code == 0, ended.said
    assert "no sign of life" not in ended.said and ended.summary["eval_episodes"] == 6


def test_an_evaluator_that_exits_or_is_interrupted_ends_in_a_sentence(run):
    for how, cause in (("exit", "SystemExit: 0"), ("interrupt", "KeyboardInterrupt: the simulator was interrupted")):
        ended = run(
            MODULE, "env.id=Hurting/Fails-v0", f"env.kwargs.how={how}", "env.kwargs.where=evaluator", "schedule=sync",
            "evaluator.every_frames=500", "faults.max_failures=0", name=how,
        )  # fmt: skip
        (error,) = [line for line in ended.err.splitlines() if not line.startswith("warning: ")]
        assert ended.code == 1 and error.startswith("error: the evaluator (pid ") and cause in error, error


def test_an_evaluation_is_labelled_with_the_frames_of_its_weights(small_config, started):
    """The second one is asked for after 100 frames, while the evaluator is busy; its weights are those of 500."""
    system = started(small_config(env={"kwargs": {"max_length": 10}}))
    board, evaluator, labels = system.plans[0].board, system.evaluator, []
    board.frames[:] = (99, 1)
    evaluator.request()
    evaluator.request()
    board.frames[:] = (499, 1)
    deadline = time.monotonic() + 60
    while len(labels) < 2 and time.monotonic() < deadline:
        evaluation = evaluator.poll()
        labels += [] if evaluation is None else [evaluation.frames]
    assert labels == [100, 500]
