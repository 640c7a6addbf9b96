"""The ends of a run, final evaluation and league, and its begin: beside the main process, watched, limited."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest

from tests.found.conftest import QUICK, command, environment
from trainer.telemetry import plot

MODULE = "env.import_modules=[hurting_evals]"


def fails(how: str, where: str, **more: object) -> list[str]:
    """An environment that fails in one kind of process."""
    kwargs = {"how": how, "where": where, **more}
    return [MODULE, "env.id=Hurting/Fails-v0", *(f"env.kwargs.{name}={value}" for name, value in kwargs.items())]


def errors(ended) -> list[str]:
    """What it wrote on stderr, but for warnings."""
    return [line for line in ended.err.splitlines() if not line.startswith("warning: ")]


@pytest.mark.slow
def test_nothing_of_a_users_environment_runs_in_the_main_process(run, tmp_path):
    """Not even the import of its module; with a resume in the middle, which looks where the workers stood."""
    log = tmp_path / "log"
    words = [MODULE, "env.id=Hurting/Logged-v0", "schedule=sync", "evaluator.every_frames=200"]
    assert run(*words, EVALS_LOG=str(log)).code == 0
    ended = run(f"resume={tmp_path / 'run'}", "budget_frames=900", quick=False, EVALS_LOG=str(log))
    assert ended.code == 0 and "goes on after" in ended.said and "begin new episodes" not in ended.said, ended.said
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert "MainProcess" not in {row["role"] for row in rows}
    roles = {"first look at the environment", "evaluator", "final evaluation", "look at where the workers stood"}
    assert roles < {row["role"] for row in rows if row["what"] == "made"}
    for role in roles:  # and all of them are closed at an orderly end
        what = [row["what"] for row in rows if row["role"] == role]
        assert what.count("made") == what.count("closed") > 0, role


@pytest.mark.parametrize(("how", "cause"), [("exit", "SystemExit: 0"), ("segfault", "signal SIGSEGV")])
def test_a_final_evaluation_that_dies_costs_its_figures_only(run, how, cause):
    ended = run(*fails(how, "final evaluation"), "faults.max_failures=1")
    assert ended.code == 1, ended.said
    (error,) = errors(ended)
    assert error.startswith("error: the final evaluation (pid ") and cause in error and "the training is whole" in error
    summary = ended.summary
    assert (summary["status"], summary["frames"], summary["eval_return_mean"]) == ("failed", 600, None)
    assert "another one takes its place" in ended.out
    assert (ended.run_dir / "last" / "policy.safetensors").exists()


def test_a_final_evaluation_that_fails_once_is_made_again(run, tmp_path):
    ended = run(*fails("segfault", "final evaluation", once=tmp_path / "once"))
    assert ended.code == 0, ended.said
    assert (ended.summary["status"], ended.summary["eval_episodes"]) == ("finished", 2)
    assert ended.out.count("another one takes its place") == 1


def test_a_final_evaluation_that_hangs_is_ended(run):
    words = ["faults.max_failures=0", "faults.hang_seconds=3", "evaluator.final_episodes=4", "env.kwargs.after=7"]
    ended = run(*fails("hang", "final evaluation"), *words)
    assert ended.code == 1, ended.said
    assert "showed no sign of life for 3 s and was ended: the training is whole" in ended.err


def test_a_final_evaluation_has_a_limit_and_says_how_far_it_is(run):
    """2 environments, each of whose first episode ends after 3 steps: 2 of 4 episodes, in steps of 0.2 s."""
    ended = run(
        MODULE, "env.id=Hurting/SlowEnd-v0", "evaluator.final_episodes=4", "evaluator.final_max_seconds=4",
    )  # fmt: skip
    assert ended.code == 0, ended.said
    assert re.search(r"final evaluation(: \w+ policy, \d of 4 episodes)?, \d+ s\n", ended.out)  # the progress line
    words = "over 2 greedy episodes of 4: the time for it was up (evaluator.final_max_seconds)"
    assert ended.out.count(words) == 2, ended.said
    summary = ended.summary
    assert (summary["status"], summary["eval_episodes"], summary["eval_last_episodes"]) == ("finished", 2, 2)


def test_episodes_that_are_cut_are_said_and_counted(run):
    """Two environments whose first episodes do not end have no other ones: 2 of 10."""
    ended = run(
        MODULE, "env.id=Hurting/Endless-v0", "evaluator.max_episode_steps=50", "evaluator.final_episodes=10",
        "evaluator.episodes=3", "evaluator.every_frames=300", "schedule=sync",
    )  # fmt: skip
    assert ended.code == 0, ended.said
    cut = "2 of them were cut at evaluator.max_episode_steps=50"
    assert f"over 2 greedy episodes; {cut}, 8 of 10 were not played" in ended.out
    assert f"over 2 greedy episodes, the best so far; {cut}, 1 of 3 were not played" in ended.out
    assert (ended.summary["eval_episodes"], ended.summary["eval_cut_episodes"]) == (2, 2)
    row = next(row for row in ended.rows if "eval_return_mean" in row)
    assert (row["eval_episodes"], row["eval_cut_episodes"]) == (2, 2)


def test_last_and_best_are_played_in_one_world(run):
    """An environment whose constructor draws what it pays: the same policy, or any, is paid the same in one world."""
    ended = run(MODULE, "env.id=Hurting/OwnProblem-v0", "evaluator.every_frames=150", "evaluator.num_envs=1")
    assert ended.code == 0, ended.said
    assert ended.summary["eval_return_mean"] == ended.summary["eval_last_return_mean"] > 0


@pytest.mark.parametrize("how", ["exit", "segfault", "interrupt", "raise"])
def test_an_environment_that_fails_as_it_is_made_ends_in_one_sentence(run, how):
    words = {"exit": "SystemExit: 0", "segfault": "SIGSEGV", "interrupt": "was interrupted", "raise": "its licence"}
    ended = run(*fails(how, "first look at the environment", made="true"))
    assert ended.code == 2, ended.said
    (error,) = errors(ended)
    assert error.startswith("error: Hurting/Fails-v0: ") and words[how] in error
    assert not ended.run_dir.exists()


@pytest.mark.slow
def test_an_environment_that_hangs_as_it_is_made_can_be_interrupted(tmp_path):
    """Its process has a limit of its own, 60 s and faults.hang_seconds, and says that it waits."""
    words = [word for word in QUICK if not word.startswith("env.import")]
    started = subprocess.Popen(
        command(*words, *fails("hang", "first look at the environment", made="true"), f"run_dir={tmp_path / 'run'}"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert started.stdout is not None
    try:
        lines = [started.stdout.readline() for _ in range(2)]
        assert lines[1].startswith("first look at the environment, "), lines
        started.send_signal(signal.SIGINT)
        assert started.wait(20) == 130
        assert "Traceback" not in started.communicate()[1]
    finally:
        started.kill()


@pytest.mark.slow
def test_a_league_that_takes_too_long_is_ended_with_a_warning(run):
    ended = run(
        "env=tictactoe", "env.import_modules=[]", "evaluator.league_games=100000", "evaluator.final_max_seconds=2",
        "schedule.frames_per_update=10", timeout=120,
    )  # fmt: skip
    assert ended.code == 0, ended.said
    assert "warning: the league stopped after 2 s with " in ended.out, ended.said
    assert ended.summary["league_games"] > 0 and "random" in ended.summary["elo"]


def test_a_run_that_is_stopped_between_its_final_policies_has_a_curve(tmp_path):
    row = {"frames": 600, "wall_s": 1.0, "final_last_return_mean": 5.0, "final_last_return_std": 0.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**row, "final_last_episodes": 2, "final_last_cut_episodes": 0}))
    plot.curve(tmp_path)
    assert (tmp_path / "curve.png").exists()
