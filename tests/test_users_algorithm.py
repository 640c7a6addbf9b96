"""An algorithm of the user's by import path: its keys are refused like ours; it trains, is evaluated and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from tensordict import TensorDict

from trainer.commands import eval as evaluating
from trainer.commands.run import main
from trainer.config.algorithms import ALGORITHMS
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.run_config import from_yaml, to_yaml
from trainer.config.sections import config_keys
from trainer.config.users_algorithms import use_algorithms

EXAMPLES = Path(__file__).parent.parent / "examples"
PATH = "corridor.algorithm:ENTRY"
SMALL = [
    "preset=cartpole", "env.id=corridor.environment:Corridor", "env.kwargs.length=6", "env.max_episode_steps=50",
    "budget_frames=2500", "learner.warmup_frames=200", "learner.batch_size=32", "learner.device=cpu",
    "collector.num_workers=1", "collector.envs_per_worker=4", "collector.epsilon_decay_frames=1500",
    "evaluator.every_frames=0", "evaluator.final_episodes=4", "logger.terminal=none", "algorithm.hidden_sizes=[32]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder in which commands are started; afterwards there are no algorithms but ours."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    use_algorithms([])


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(arguments, cores=2)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_its_keys_are_typed_bounded_and_refused_like_ours() -> None:
    algorithm = f"algorithm={PATH}"
    config = load([algorithm, "algorithm.patience=0.5", "algorithm.gamma=0.9"], cores=2).config
    assert (type(config.algorithm).__name__, config.algorithm.name) == ("HystereticConfig", PATH)
    assert (config.algorithm.patience, config.algorithm.gamma) == (0.5, 0.9)  # type: ignore[attr-defined]
    assert load([algorithm], cores=2).config.algorithm.patience == 0.3  # type: ignore[attr-defined]
    assert refused(algorithm, "algorithm.patience=2").startswith(
        "algorithm.patience=2.0 is out of range: it must be fr"
    )
    assert (
        refused(algorithm, "algorithm.patience=abc")
        == "algorithm.patience=abc does not fit: algorithm.patience takes a number"
    )
    assert "the nearest is algorithm.patience" in refused(algorithm, "algorithm.patiense=0.2")
    assert refused(algorithm, "algorithm.v_min=0").startswith("algorithm.v_min is a key of c51 and rainbow, and algor")
    (warning,) = load([algorithm, "algorithm.patience=0.01"], cores=2).warnings
    assert warning.startswith("algorithm.patience=0.01 is unusual")
    said = refused(algorithm, "algorithm.prioritized=true", "replay.initial_priority=collector")
    assert "whose priority depends on the error's sign" in said


def test_another_command_knows_only_ours_again() -> None:
    load([f"algorithm={PATH}"], cores=2)
    assert "algorithm.patience" in config_keys() and PATH in ALGORITHMS
    load(["algorithm=c51"], cores=2)
    assert "algorithm.patience" not in config_keys() and PATH not in ALGORITHMS
    assert "there is no key algorithm.patience" in refused("algorithm.patience=0.5")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nowhere:ENTRY", "algorithm=nowhere:ENTRY: there is no module nowhere"),
        ("corridor.algorithm:HystereticConfig", "is type, and must be a trainer.config.algorithms.AlgorithmEntry"),
        ("corridor.algorithm:NONE", "has AlgorithmEntry, ENTRY, HystereticConfig, .*, not NONE"),
        ("no_bounds:ENTRY", "algorithm=no_bounds:ENTRY has a key speed without bounds: declare it by trainer.config"),
        ("no_build:ENTRY", "algorithm=no_build:nothing: no_build .* not nothing|algorithm=nowhere.at:all: there is no"),
    ],
)
def test_what_is_no_algorithm_is_one_sentence(
    path: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    head = "from dataclasses import dataclass\nfrom trainer.config.algorithms import AlgorithmEntry, ValueConfig\n"
    section = "@dataclass(frozen=True)\nclass Section(ValueConfig):\n    {}\n"
    (tmp_path / "no_bounds.py").write_text(
        f"{head}def build(section, learner, spec): pass\n{section.format('speed: float = 1.0')}"
        "ENTRY = AlgorithmEntry(Section, 'no_bounds:build')\n"
    )
    (tmp_path / "no_build.py").write_text(
        f"{head}{section.format('pass')}ENTRY = AlgorithmEntry(Section, 'nowhere.at:all')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert re.search(sentence, refused(f"algorithm={path}")), refused(f"algorithm={path}")


def test_errors_that_lower_a_value_count_less() -> None:
    """Values 0 and 1; rewards without a next state make errors of 0.5, -0.5 and -2."""
    from corridor.loss import objective

    section = load([f"algorithm={PATH}", "algorithm.patience=0.25"], cores=2).config.algorithm
    batch = TensorDict(
        {
            "action": torch.tensor([0, 0, 1]),
            "next": {
                "reward": torch.tensor([[0.5], [-0.5], [-1.0]]),
                "terminated": torch.ones(3, 1, dtype=torch.bool),
            },
        },
        [3],
    )
    values = torch.tensor([0.0, 1.0]).expand(3, 2).unsqueeze(-1)
    loss, td_error, priority = objective(lambda _: values, lambda _: values, batch, section)  # type: ignore[arg-type]
    assert loss.tolist() == pytest.approx([0.125, 0.25 * 0.125, 0.25 * 1.5])  # Huber: x^2 / 2 below 1, |x| - 0.5 above
    assert td_error.tolist() == priority.tolist() == [0.5, 0.5, 2.0]


@pytest.mark.parametrize("schedule", ["sequential", "sync"])
def test_it_trains_is_evaluated_and_resumed(schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = [*SMALL, f"schedule={schedule}", f"algorithm={PATH}", "algorithm.patience=0.5", f"run_dir={run}"]
    assert main(words) == 0
    kept = yaml.safe_load((run / "config.yaml").read_text())["algorithm"]
    assert (kept["name"], kept["patience"]) == (PATH, 0.5)
    use_algorithms([])  # as in a new process
    capsys.readouterr()
    assert evaluating.main([str(run), "--episodes", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_return_mean"] == pytest.approx(0.96)
    use_algorithms([])
    assert main([f"resume={run}", "budget_frames=3000"]) == 0
    assert json.loads((run / "summary.json").read_text())["frames"] >= 3_000
    use_algorithms([])
    again = load([f"from={run}", "algorithm.patience=0.75"], cores=2).config
    assert (again.algorithm.name, again.algorithm.patience) == (PATH, 0.75)  # type: ignore[attr-defined]
    assert to_yaml(from_yaml(run / "config.yaml")) == (run / "config.yaml").read_text()
