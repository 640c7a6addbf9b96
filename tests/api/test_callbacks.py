"""Callbacks: what each is given and when, and that they may stop a run or change its learning rate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.sections import Config
from trainer.host.errors import RunFailed
from trainer.run_folder import checkpoint
from trainer.training.train import train

SHORT: dict[str, dict[str, Any]] = {"schedule": {"name": "sequential"}, "evaluator": {"every_frames": 250}}


class Recorder:
    """Writes down every call as (method, what it was given)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_row(self, run: Any, row: dict[str, Any]) -> None:
        self.calls.append(("row", row))

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        self.calls.append(("evaluation", (evaluation.frames, evaluation.mean, run.frames)))

    def on_checkpoint(self, run: Any, frames: int) -> None:
        assert checkpoint.numbered(run.run_dir / "checkpoints")[-1].name == f"frames_{frames:012d}.pt"
        self.calls.append(("checkpoint", frames))

    def on_end(self, run: Any, summary: dict[str, Any]) -> None:
        self.calls.append(("end", summary))

    def of(self, method: str) -> list[Any]:
        return [given for called, given in self.calls if called == method]


class Slower:
    """Sets another learning rate at the first evaluation."""

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        run.set_learning_rate(1e-5)


class Enough:
    """Stops the run at an evaluation after 500 frames or more."""

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        if evaluation.frames >= 500:
            run.stop("enough")


class Broken:
    """Fails with the first row."""

    def __init__(self) -> None:
        self.calls = 0

    def on_row(self, run: Any, row: dict[str, Any]) -> None:
        self.calls += 1
        raise ValueError("no such table")


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_each_is_given_what_the_run_folder_holds_and_may_change_the_learning_rate(
    small_config: Callable[..., Config],
) -> None:
    config, recorder = small_config(**SHORT), Recorder()
    summary = train(config, ["test"], [recorder, Slower()])
    rows = rows_of(Path(str(config.run_dir)))
    evaluated = [row for row in rows if "eval_return_mean" in row and "updates" not in row]
    assert [(frames, mean) for frames, mean, _ in recorder.of("evaluation")] == [
        (row["frames"], row["eval_return_mean"]) for row in evaluated
    ]
    assert all(now >= frames >= 250 for frames, _, now in recorder.of("evaluation"))
    trained = [row["frames"] for row in rows if "updates" in row and "final_best_frames" not in row]
    assert [row["frames"] for row in recorder.of("row")] == trained
    assert recorder.of("row")[-1]["learning_rate"] == pytest.approx(1e-5)
    assert recorder.of("checkpoint")[-1] == summary["frames"]
    assert recorder.calls[-1] == ("end", json.loads((Path(str(config.run_dir)) / "summary.json").read_text()))
    assert len(recorder.of("end")) == 1


def test_one_may_stop_the_run_which_is_evaluated_and_can_go_on(small_config: Callable[..., Config]) -> None:
    config = small_config(**SHORT)
    summary = train(config, ["test"], [Enough()])
    assert (summary["status"], summary["reason"]) == ("finished", "enough")
    assert 500 <= summary["frames"] < config.budget_frames
    assert summary["eval_episodes"] == 2
    assert load([f"resume={config.run_dir}"]).finished == ""


def test_an_exception_ends_the_run_with_a_sentence_and_a_checkpoint(small_config: Callable[..., Config]) -> None:
    config, broken, recorder = small_config(**SHORT), Broken(), Recorder()
    with pytest.raises(RunFailed, match="the callback Broken failed in on_row: ValueError: no such table") as caught:
        train(config, ["test"], [broken, recorder])
    assert isinstance(caught.value.__cause__, ValueError | RunFailed)
    assert broken.calls == 1
    assert checkpoint.numbered(Path(str(config.run_dir)) / "checkpoints")
    assert recorder.of("end")[0]["status"] == "failed"


def test_a_learning_rate_reaches_learners_in_other_processes(small_config: Callable[..., Config]) -> None:
    """Each local agent reports its own about once a second."""

    class Watch:
        def on_row(self, run: Any, row: dict[str, Any]) -> None:
            run.set_learning_rate(1e-5)
            if row["local_1/learning_rate"] == pytest.approx(1e-5):
                run.stop("it is there")

    config = small_config(schedule={"name": "shared_gradient"}, budget_frames=1_000_000)
    assert train(config, ["test"], [Watch()])["reason"] == "it is there"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Recorder, "the callback Recorder is a class: make an object of it, Recorder()"),
        (object(), "the callback object has none of the methods on_row, on_evaluation"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_started(
    given: Any, sentence: str, small_config: Callable[..., Config]
) -> None:
    config = small_config(**SHORT)
    with pytest.raises(ConfigError, match=sentence):
        train(config, ["test"], [given])
    assert not Path(str(config.run_dir)).exists()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_must_be_above_0(rate: float, small_config: Callable[..., Config]) -> None:
    class Wrong:
        def on_row(self, run: Any, row: dict[str, Any]) -> None:
            run.set_learning_rate(rate)

    with pytest.raises(RunFailed, match="is not above 0"):
        train(small_config(**SHORT, budget_frames=300), ["test"], [Wrong()])
