"""1.13: each agent's own configuration goes through the same validation as the run's, before any process starts."""

from __future__ import annotations

import pytest

from trainer.config.algorithms import C51Config
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.overrides import SHARED_KEYS, agent_config


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("algorithm.gamma=2", "agents.overrides.a.algorithm.gamma=2.0 is out of range"),
        ("learner.batch_size=0", "agents.overrides.a.learner.batch_size=0 is out of range"),
        ("learner.learning_rate=-1", "agents.overrides.a.learner.learning_rate=-1.0 is out of range"),
        ("learner.learning_rate=nan", "agents.overrides.a.learner.learning_rate=nan is out of range"),
        ("learner.batch_size=2000", "agents.overrides.a.learner.batch_size=2000 is more than learner.warmup_frames"),
        ("learner.warmup_frames=60000", "is less than agents.overrides.a.learner.warmup_frames=60000"),
        ("algorithm.v_min=120", "agents.overrides.a.algorithm.v_min=120 is not below algorithm.v_max=100"),
        ("algorithm.name=ppo", "agents.overrides.a.algorithm.name=ppo is none of apex"),
        ("algorithm.hidden_sizes=[0]", "agents.overrides.a.algorithm.hidden_sizes="),
        ("schedule.frames_per_update=1e30", "agents.overrides.a.schedule.frames_per_update=1e[+]30 is out of range"),
        ("collector.exploration=none", "agents.overrides.a.collector.exploration=none is none of linear, apex"),
        ("learner.lr=1", "agents.overrides.a.learner.lr is no key of an agent; the nearest is agents"),
        ("learner.batch_size=many", "agents.overrides.a.learner.batch_size=many does not fit"),
        ("learner.batch_size={b: 1}", "agents.overrides.a.learner.batch_size.b is no key of an agent"),
        ("seed=3", "agents.overrides.a.seed is no key of an agent"),
    ],
)  # fmt: skip
def test_1_13_wrong_values_of_an_agent_are_refused_by_the_loader(own: str, words: str) -> None:
    key, _, text = own.partition("=")
    run = ["algorithm=c51"] if key == "algorithm.v_min" else []
    with pytest.raises(ConfigError, match=words) as error:
        load([*run, f"agents.overrides.a.{key}={text}"], cores=4)
    assert "\n" not in str(error.value)


def test_an_agent_with_another_algorithm_has_its_keys_and_shares_the_runs() -> None:
    given = ["agents.overrides.a.algorithm.name=c51", "agents.overrides.a.algorithm.v_min=-5", "algorithm.gamma=0.5"]
    config = load(given, cores=4).config
    run = config.algorithm
    assert agent_config(config, "a").algorithm == C51Config(
        v_min=-5, gamma=0.5, n_step=run.n_step, target_tau=run.target_tau
    )
    assert agent_config(config, "b").algorithm == config.algorithm
    with pytest.raises(ConfigError) as error:
        load(["agents.overrides.a.algorithm.v_min=-5"], cores=4)
    assert str(error.value) == (
        "agents.overrides.a.algorithm.v_min is a key of c51 and rainbow, and algorithm=dqn has no such key: leave it "
        "out, or set agents.overrides.a.algorithm.name=c51"
    )


@pytest.mark.parametrize("key", SHARED_KEYS)
def test_1_13_what_all_agents_share_cannot_be_one_agents_own(key: str) -> None:
    with pytest.raises(ConfigError, match=f"agents.overrides.a.{key} is not possible: all agents of a run share it"):
        load([f"agents.overrides.a.{key}=1"], cores=4)


def test_1_13_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="agents.overrides.a=3 does not fit: name a key of the agent's"):
        load(["agents.overrides.a=3"], cores=4)


def test_1_13_right_values_are_taken_and_odd_ones_warned_of() -> None:
    loaded = load(["agents.overrides.a.learner.batch_size=64", "agents.overrides.a.algorithm.gamma=0.9"], cores=4)
    assert loaded.warnings == []
    (warning,) = load(["agents.overrides.a.learner.learning_rate=1e-9"], cores=4).warnings
    assert warning.startswith("agents.overrides.a.learner.learning_rate=1e-09 is unusual")
