"""The package in examples/: trained, evaluated and resumed by the real commands, as its README says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.commands import eval as evaluating
from trainer.commands.run import main
from trainer.config.run_config import from_yaml

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which the commands are started."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all parts, with collectors in processes of their own, that its callback has stopped."""
    run = tmp_path_factory.mktemp("corridor") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLES)
        patch.syspath_prepend(EXAMPLES)
        words = [
            "collector.num_workers=2", "learner.device=cpu", "logger.terminal=none", "logger.every_seconds=0.1",
            "schedule.frames_per_update=1",
        ]  # fmt: skip
        assert main(["from=corridor/run.yaml", "seed=1", f"run_dir={run}", *words]) == 0
    return run


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def test_all_parts_train_together_and_the_callback_ends_the_run(trained: Path) -> None:
    found = summary(trained)
    assert (found["status"], found["reason"]) == ("finished", "episodes bring 0.93")
    assert found["frames"] < 10_000 and found["eval_return_mean"] > 0.8  # the best is 1 - 4 x 0.01 = 0.96
    assert (trained / "rows.txt").read_text().endswith("rows, finished\n")
    config = from_yaml(trained / "config.yaml")
    assert config.env.wrappers == [{"wrapper": "corridor.wrapper:Noisy", "scale": 0.1}]
    assert (config.algorithm.network_kwargs, config.collector.exploration_kwargs) == (  # type: ignore[attr-defined]
        {"width": 24}, {"every_frames": 500},
    )  # fmt: skip


def test_eval_finds_the_parts_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluating.main([str(trained), "--episodes", "10"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_return_mean"] > 0.8


def test_a_resumed_run_goes_on_with_them(trained: Path) -> None:
    before = summary(trained)["frames"]
    assert main([f"resume={trained}", f"budget_frames={before + 600}", "callbacks=[]"]) == 0
    after = summary(trained)
    assert after["frames"] >= before + 600 and after["reason"] == "the budget is used up"


def test_the_backend_trains_without_a_process(tmp_path: Path) -> None:
    words = [
        "preset=cartpole", "env.id=Corridors", "env.backend=corridor.backend:make", "env.kwargs.length=6",
        "schedule=sequential", "budget_frames=2000", "learner.warmup_frames=200", "learner.batch_size=32",
        "collector.num_workers=1", "collector.envs_per_worker=4", "collector.epsilon_decay_frames=1000",
        "learner.device=cpu", "evaluator.every_frames=0", "evaluator.final_episodes=4", "logger.terminal=none",
    ]  # fmt: skip
    assert main([*words, f"run_dir={tmp_path / 'run'}"]) == 0
    assert summary(tmp_path / "run")["eval_return_mean"] == pytest.approx(0.96)
