"""Values of the configuration: impossible ones are refused in one sentence, those at the edge are taken."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.test_config import changed
from trainer.config.algorithms import AnyAlgorithmConfig
from trainer.config.fields import ConfigError
from trainer.config.resolving import resolve
from trainer.config.sections import Config, config_keys
from trainer.config.validation import validate

# --- refused values --------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"learner.batch_size": 1001}, "learner.batch_size=1001 is more than learner.warmup_frames=1000"),
    ({"replay.capacity_frames": 999}, "replay.capacity_frames=999 is less than learner.warmup_frames=1000"),
    ({"replay.capacity_frames": 100}, "replay.capacity_frames=100 is less than learner.batch_size=128"),
    ({"budget_frames": 1000}, "learner.warmup_frames=1000 leaves nothing of budget_frames=1000"),
    ({"algorithm.n_step": 3123}, "set replay.capacity_frames=50016 or more"),  # 16 streams x (1 + 3123 + 2)
    (
        {"collector.num_workers": 33, "schedule.tolerance_frames": 512},
        "set schedule.tolerance_frames=528 or more",
    ),  # 33 x 16 environments
    (
        {"schedule.name": "sync", "collector.num_workers": 3, "schedule.frames_per_round": 1024},
        "set schedule.frames_per_round=1008",
    ),  # 21 x 48
    ({"schedule.name": "sync", "schedule.frames_per_update": None}, "schedule.updates_per_round"),
    ({"schedule.name": "sequential", "schedule.frames_per_update": None}, "schedule=sequential"),
    ({"schedule.name": "shared_gradient", "env.backend": "game"}, "shared_gradient has no pool of opponents"),
    (
        {"schedule.name": "shared_gradient", "schedule.applier": "local", "learner.device": "cuda"},
        "set learner.device=cpu, or schedule.applier=device",
    ),
    (
        {"env.backend": "game", **{f"opponents.{kind}": 0.0 for kind in ("random", "latest", "snapshots")}},
        "nobody is played against: set one of opponents.random",
    ),
    (
        {"env.backend": "game", **{f"opponents.{kind}_end": 0.0 for kind in ("random", "latest", "snapshots")}},
        "nobody is played against at the end: set one of opponents.random_end",
    ),
    (
        {"env.backend": "game", "opponents.checkpoints_end": 0.5},
        "opponents.checkpoints_end=0.5 has no policies to play",
    ),
    ({"learner.device": "cuda:x"}, "learner.device=cuda:x is none of auto, cpu, cuda, cuda:N"),
    ({"learner.device": "gpu"}, "the nearest is learner.device=cuda"),
    ({"algorithm.name": "dqm"}, "the nearest is algorithm.name=dqn"),
    ({"env.import_modules": ["ale_py", "my-games.py"]}, "env.import_modules=my-games.py"),
    ({"env.id": " "}, "env.id is empty"),
    ({"run_dir": ""}, "run_dir is empty"),
    ({"learner.learning_rate": 0.0}, "learner.learning_rate=0.0 is out of range: it must be from 1e-12 to 1"),
    ({"learner.learning_rate": float("inf")}, "learner.learning_rate=inf is out of range"),
    (
        {"evaluator.stop_at_return": float("nan")},
        "evaluator.stop_at_return=nan is out of range: it must be from -1e.12 to 1e.12",
    ),
    ({"schedule.frames_per_update": 0.0}, "schedule.frames_per_update=0.0 is out of range"),
    ({"algorithm.hidden_sizes": [120, 0]}, r"algorithm.hidden_sizes=\[120, 0\] is out of range"),
    ({"algorithm.gamma": 0.0}, "algorithm.gamma=0.0 is out of range: it must be from 0.01 to 1"),
    ({"algorithm.gamma": 1.01}, "algorithm.gamma=1.01"),
    ({"algorithm.target_tau": 0.0}, "algorithm.target_tau=0.0"),
    ({"collector.epsilon_end": -0.1}, "collector.epsilon_end=-0.1 is out of range: it must be from 0 to 1"),
    ({"opponents.active": 1}, "opponents.active=1 is out of range: it must be from 2 to 10000"),  # none could make room
    ({"seed": -1}, "seed=-1 is out of range: it must be from 0 to 9223372036854775808"),
]


def test_rounds_of_games_are_those_of_the_users_document() -> None:
    """46 workers on 48 cores, 4 games each, and so 184 updates a round."""
    game = {"env.backend": "game", "schedule.name": "sync"}
    schedule = resolve(changed(Config(), game), cores=48).schedule
    assert (schedule.frames_per_round, schedule.episodes_per_round, schedule.updates_per_round) == (None, 4, 184)
    assert resolve(resolve(changed(Config(), game), cores=48), cores=8).schedule == schedule  # once and for all
    for values, expected in (
        ({"schedule.episodes_per_round": 2}, (None, 2, 92)),
        ({"schedule.updates_per_round": 7}, (None, 4, 7)),
        ({"schedule.episodes_per_update": 0.5}, (None, 4, None)),  # by what games there were
        ({"schedule.frames_per_round": 736}, (736, None, None)),  # follows frames_per_update
        ({"schedule.name": "async"}, (736, None, None)),
        ({"env.backend": "counting"}, (736, None, None)),
    ):
        schedule = resolve(changed(Config(), {**game, **values}), cores=48).schedule
        assert (schedule.frames_per_round, schedule.episodes_per_round, schedule.updates_per_round) == expected


@pytest.mark.parametrize(("values", "sentence"), REFUSED)
def test_impossible_value_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        validate(changed(Config(), values), cores=64 if "collector.num_workers" in values else 2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"learner.batch_size": 1000},
        {"replay.capacity_frames": 1000},
        {"budget_frames": 1_010, "schedule.frames_per_update": 0.05, "collector.epsilon_decay_frames": 0},
        {"algorithm.n_step": 97, "replay.capacity_frames": 1_600},  # 16 streams x (1 + 97 + 2)
        {"collector.num_workers": 32},
        {"schedule.frames_per_update": None},
        {"schedule.name": "sync", "schedule.frames_per_update": None, "schedule.updates_per_round": 3},
        {"schedule.name": "sync", "schedule.frames_per_round": 100, "schedule.episodes_per_round": 1},
        {"learner.device": "cuda:1"},
        {"algorithm.gamma": 1.0, "algorithm.target_tau": 1.0, "collector.epsilon_end": 0.0},
        {"env.import_modules": ["ale_py", "games.extra"]},
        {"algorithm.hidden_sizes": []},
    ],
)
def test_value_at_the_edge_is_taken(values: dict[str, Any]) -> None:
    assert validate(changed(Config(), values), cores=32 if "collector.num_workers" in values else 2) == []


def test_every_choice_is_checked() -> None:
    choices = {key: item.metadata["choices"] for key, item in config_keys().items() if "choices" in item.metadata}
    assert len(choices) == 25
    whole = Config(algorithm=AnyAlgorithmConfig())
    for key, options in choices.items():
        for option in options:
            assert validate(changed(whole, {key: option}), cores=2) == []
        with pytest.raises(ConfigError, match=f"the nearest is {key}={options[-1]}"):
            validate(changed(whole, {key: options[-1] + "x"}), cores=2)


def test_every_number_has_a_range_that_holds_its_default() -> None:
    for key, item in config_keys().items():
        number = any(kind in str(item.type) for kind in ("int", "float"))
        assert number == ("range" in item.metadata), key
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        if number and default is not None:
            low, high = item.metadata["range"]
            first, last = item.metadata["usual"]
            for value in default if isinstance(default, list) else [default]:
                assert low <= first <= value <= last <= high, key


def test_warnings_name_the_key() -> None:
    assert validate(changed(Config(), {"collector.num_workers": 4}), cores=4) == []
    (warning,) = validate(changed(Config(), {"collector.num_workers": 5}), cores=4)
    assert warning.startswith("collector.num_workers=5 is more than the 4 cores")
    (warning,) = validate(changed(Config(), {"schedule.updates_per_round": 5}), cores=4)
    assert warning.startswith("schedule.updates_per_round does nothing with schedule=async")
