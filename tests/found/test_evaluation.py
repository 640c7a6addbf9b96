"""Evaluations beside the training: watched, labelled with the frames of their weights, closed at the end."""

from __future__ import annotations

import time

MODULE = "env.import_modules=[hurting_evals]"


def test_a_hung_evaluator_is_noticed_and_started_anew(run, tmp_path):
    """It stops itself as SIGSTOP would; in `sync` the round waits for its successor's evaluation."""
    words = [f"env.kwargs.{word}" for word in ("how=stop", "where=evaluator", f"once={tmp_path / 'once'}")]
    more = ["schedule=sync", "evaluator.every_frames=500", "faults.hang_seconds=4", "evaluator.nice=0"]
    ended = run(MODULE, "env.id=Hurting/Fails-v0", *words, *more)
    assert ended.code == 0, ended.said
    text = "2 x Hurting/Fails-v0) showed no sign of life for 4 s and was ended; another one takes its place"
    assert ended.out.count(text) == 1, ended.said
    assert [row["eval_episodes"] for row in ended.rows if "eval_return_mean" in row] == [2]


def test_an_evaluator_with_slow_resets_is_not_taken_for_hung(run):
    """8 environments that take half a second each for a reset, 4 s together."""
    more = ["schedule=sync", "evaluator.every_frames=500", "evaluator.episodes=8", "evaluator.final_episodes=8"]
    ended = run(
        MODULE, "env.id=Hurting/SlowReset-v0", "evaluator.num_envs=8", "faults.hang_seconds=3", "faults.max_failures=0",
        *more,
    )  # fmt: skip
    assert ended.code == 0, ended.said
    assert "no sign of life" not in ended.said and ended.summary["eval_episodes"] == 8


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
