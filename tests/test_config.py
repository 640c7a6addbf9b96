"""Every shipped YAML makes a run that can be made; every impossible value is refused in one sentence."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.config.algorithms import ALGORITHMS, QRDQNConfig
from trainer.config.arguments import GROUPS
from trainer.config.compose import check, choose_preset, jobs, load
from trainer.config.fields import ConfigError, nearest
from trainer.config.machine import available_cores
from trainer.config.presets import preset_env_id
from trainer.config.resolving import resolve
from trainer.config.run_config import from_yaml, to_dict, to_yaml
from trainer.config.sections import CONFIG_DIR, Config, config_keys, group_options
from trainer.config.validation import validate
from trainer.run_folder.folder import versions

FILES = [(group, option) for group in GROUPS for option in group_options(group)]
PRESETS = group_options("preset")


def read(group: str, option: str) -> dict[str, Any]:
    return yaml.safe_load((CONFIG_DIR / group / f"{option}.yaml").read_text()) or {}


def changed(config: Config, values: dict[str, Any]) -> Config:
    """The configuration with some dotted keys set to other values."""
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section:
            value = dataclasses.replace(getattr(config, section), **{name: value})
        config = dataclasses.replace(config, **{section or name: value})
    return config


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(item) for item in value.values())
    if isinstance(value, list):
        return type(value) is list and all(is_plain(item) for item in value)
    return type(value) in (str, int, float, bool, type(None))


# --- shipped files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "option"), FILES)
def test_shipped_file_makes_a_valid_run(group: str, option: str) -> None:
    open_ids = {(group, name) for group in ("preset", "env") for name in ("generic", "atari", "continuous")}
    named = ["env.id=Some/Env-v0"] if (group, option) in open_ids else []
    loaded = load([f"{group}={option}", *named], cores=6)
    assert loaded.warnings == []
    assert isinstance(loaded.config, Config)
    assert is_plain(to_dict(loaded.config))
    if group == "preset":
        assert loaded.config.preset == option
        assert loaded.config.collector.num_workers == 4
        by_machine = ("collector.num_workers", "schedule.tolerance_frames", "schedule.frames_per_round")
        unresolved = changed(loaded.config, dict.fromkeys(by_machine))
        for cores in (1, 2, 3, 4, 18, 34):
            assert validate(unresolved, cores) == []
        for schedule in ("sync", "sequential"):
            assert validate(changed(unresolved, {"schedule.name": schedule}), 2) == []
    elif "name" in read(group, option):
        assert getattr(loaded.config, group).name == option  # algorithm=dqn and algorithm.name say the same


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_leaves_keys_of_other_groups_alone(preset: str) -> None:
    """A key that a group's file sets as well would win over `schedule=sync` and the like, for presets come later.

    Only the algorithm comes later still: `algorithm=rainbow` holds whatever the preset says.
    """
    values = read("preset", preset)
    for group, option in FILES:
        if group not in ("preset", "algorithm"):
            assert not set(read(group, option)) & set(values.get(group, {})), f"{group}/{option}.yaml"


def test_an_algorithm_chosen_by_name_holds_whatever_the_preset_says() -> None:
    config = load(["preset=mountaincar", "algorithm=rainbow"], cores=2).config
    algorithm = config.algorithm
    assert (algorithm.name, algorithm.n_step, algorithm.scale_observations) == ("rainbow", 3, True)
    assert algorithm.double and algorithm.dueling and algorithm.noisy and algorithm.prioritized
    apex = load(["preset=cartpole", "algorithm=apex"], cores=2).config
    assert (apex.collector.exploration, apex.replay.initial_priority, apex.algorithm.name) == (
        "apex",
        "collector",
        "apex",
    )
    linear = load(["preset=cartpole", "algorithm=apex", "collector=linear"], cores=2).config
    assert linear.collector.exploration == "linear"


@pytest.mark.parametrize(
    ("arguments", "hidden_sizes", "target_tau"),
    [
        ([], [400, 300], 0.02),
        (["algorithm=tqc"], [400, 300], 0.02),
        (["algorithm=td3"], [256, 256], 0.005),  # of the algorithm's file
        (["algorithm=tqc", "algorithm.hidden_sizes=[8]"], [8], 0.02),
    ],
)
def test_a_presets_values_for_its_algorithm_hold(
    arguments: list[str], hidden_sizes: list[int], target_tau: float
) -> None:
    """The preset is made for TQC, whose file has 256-256 and 0.005."""
    algorithm = load(["preset=bipedalwalker", *arguments], cores=2).config.algorithm
    assert (algorithm.hidden_sizes, algorithm.target_tau) == (hidden_sizes, target_tau)


def test_every_algorithm_has_a_file_and_a_section_of_its_name() -> None:
    assert set(ALGORITHMS) == set(group_options("algorithm"))
    for name in ALGORITHMS:
        assert type(load([f"algorithm={name}"], cores=2).config.algorithm) is ALGORITHMS[name].section


def test_a_key_of_another_algorithm_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as refused:
        load(["algorithm.v_min=-5"], cores=2)
    assert str(refused.value) == (
        "algorithm.v_min is a key of c51 and rainbow, and algorithm=dqn has no such key: leave it out, or set "
        "algorithm=c51"
    )
    with pytest.raises(ConfigError, match="double is a key of dqn, c51, qrdqn, iqn, rainbow and apex, and algorithm=m"):
        load(["algorithm=munchausen", "algorithm.double=false"], cores=2)
    assert load(["algorithm=c51", "algorithm.v_min=-5"], cores=2).config.algorithm.v_min == -5  # type: ignore[attr-defined]


def test_a_presets_value_for_another_algorithm_is_left_out() -> None:
    """Cartpole sets v_min=0, for whoever chooses c51."""
    assert read("preset", "cartpole")["algorithm"]["v_min"] == 0
    plain, c51 = (load(["preset=cartpole", f"algorithm={name}"], cores=2).config for name in ("dqn", "c51"))
    assert c51.algorithm.v_min == 0 and not hasattr(plain.algorithm, "v_min")  # type: ignore[attr-defined]
    assert "v_min" not in to_dict(plain)["algorithm"]


def test_algorithms_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="algorithm.v_min=10 is not below algorithm.v_max=-10"):
        load(["algorithm=c51", "algorithm.v_min=10", "algorithm.v_max=-10"], cores=2)


def test_top_file_begins_with_the_default_preset_and_its_environment() -> None:
    defaults = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text())["defaults"]
    chosen = {key: value for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}
    assert chosen["preset"] == Config.preset == "cartpole"
    assert preset_env_id(chosen["preset"]) == read("env", chosen["env"])["id"] == "CartPole-v1"
    assert {key for key in chosen if not key.startswith("override")} == set(GROUPS)


# --- from arguments to values ----------------------------------------------------------------------------------------


def test_later_layers_win_over_earlier_ones() -> None:
    arguments = ["preset=pong", "seed=3", "learner.batch_size=64", "schedule=sync", "env.kwargs.mode=1"]
    config = load([*arguments, "+env.kwargs.difficulty=[2,3]", "collector.num_workers=2"], cores=4).config
    assert (config.preset, config.seed, config.env.id) == ("pong", 3, "ALE/Pong-v5")
    assert config.learner.batch_size == 64  # the command line, over 32 of the preset, over 128 of the dataclass
    assert config.replay.capacity_frames == 100_000  # the preset, over 50,000 of the dataclass
    assert config.algorithm.gamma == 0.99  # the dataclass
    assert config.schedule.name == "sync"
    assert config.env.kwargs == {"mode": 1, "difficulty": [2, 3]}
    assert config.collector.num_workers == 2


def test_environment_chosen_by_name_holds_against_the_preset() -> None:
    assert load(["preset=lunarlander", "env=acrobot"], cores=2).config.env.id == "Acrobot-v1"


@pytest.mark.parametrize(
    ("arguments", "preset", "reason"),
    [
        ([], "cartpole", "the default"),
        (["seed=1"], "cartpole", "the default"),
        (["preset=acrobot"], "acrobot", "asked for"),
        (["preset=acrobot", "env.id=CartPole-v1"], "acrobot", "asked for"),
        (["env.id=LunarLander-v3"], "lunarlander", "made for LunarLander-v3"),
        (["env.id=ALE/Pong-v5"], "pong", "made for ALE/Pong-v5"),
        (["env=mountaincar"], "mountaincar", "made for MountainCar-v0"),
        (["env=atari", "env.id=ALE/Breakout-v5"], "atari", "made for environments like ALE/Breakout-v5"),
        (["env.id=MinAtar/Asterix-v1"], "minatar", "made for environments like MinAtar/Asterix-v1"),
        (["env.id=CartPole-v0"], "cartpole", "made for environments like CartPole-v0"),
        (["env.id=BreakoutNoFrameskip-v4"], "atari", "made for environments like BreakoutNoFrameskip-v4"),
        (["env.id=ALE/Breakout-ram-v5"], "generic", "there is none for ALE/Breakout-ram-v5"),
        (["env.id=Some/Env-v0"], "generic", "there is none for Some/Env-v0"),
        (["env.id=Hopper-v5"], "hopper", "made for Hopper-v5"),
        (
            ["env.id=LunarLanderContinuous-v3"],
            "lunarlander_continuous",
            "made for environments like LunarLanderContinuous-v3",
        ),
    ],
)
def test_preset_follows_the_environment(arguments: list[str], preset: str, reason: str) -> None:
    assert choose_preset(check(arguments)) == (preset, reason)


def test_preset_that_was_chosen_for_the_user_is_named_and_explained() -> None:
    loaded = load(["env.id=Some/Env-v0"], cores=2)
    assert loaded.config.preset == "generic"
    assert loaded.preset_reason == (
        "there is none for Some/Env-v0; assumed: budget_frames=500000, learner.learning_rate=0.0003, "
        "learner.batch_size=128, algorithm.gamma=0.99, algorithm.hidden_sizes=[256, 256], "
        "schedule.frames_per_update=4, env.preprocessing=none, env.frame_stack=1"
    )


def test_a_preset_gives_its_family_its_preprocessing_and_sizes() -> None:
    breakout = load(["env.id=ALE/Breakout-v5"], cores=2).config
    pong = load(["env.id=ALE/Pong-v5"], cores=2).config
    assert (breakout.env.preprocessing, breakout.env.frame_stack, breakout.env.import_modules) == (
        "atari",
        4,
        ["ale_py"],
    )
    assert dataclasses.replace(breakout, preset="pong", env=pong.env) == pong
    asterix = load(["env.id=MinAtar/Asterix-v1"], cores=2).config
    assert (asterix.env.id, asterix.learner.learning_rate, asterix.algorithm.hidden_sizes) == (
        "MinAtar/Asterix-v1", 1e-4, [128],
    )  # fmt: skip


def test_sweep_is_every_combination_in_order() -> None:
    assert jobs(["seed=0,1", "preset=pong", "learner.num_threads=range(1,3)"]) == [
        ["seed=0", "preset=pong", "learner.num_threads=1"],
        ["seed=0", "preset=pong", "learner.num_threads=2"],
        ["seed=1", "preset=pong", "learner.num_threads=1"],
        ["seed=1", "preset=pong", "learner.num_threads=2"],
    ]


# --- refused arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "named", "suggested"),
    [
        ("learner.lr=1", "learner.lr", "learner.learning_rate"),
        ("envs_per_worker=3", "envs_per_worker", "collector.envs_per_worker"),
        ("lerner.batch_size=3", "lerner.batch_size", "learner.batch_size"),
        ("algorithm.gama=0.9", "algorithm.gama", "algorithm.gamma"),
        ("+learner.momentum=1", "learner.momentum", "learner."),
        ("presett=pong", "presett", "preset"),
        ("evaluator=fast", "evaluator", "evaluator.every_frames"),
        ("preset=lunarlandr", "preset=lunarlandr", "preset=lunarlander"),
        ("schedule=synch", "schedule=synch", "schedule=sync"),
        ("preset=[pong]", "preset=[pong]", "preset=pong"),
        ("env=LunarLander-v3", "env=LunarLander-v3", "env.id=LunarLander-v3"),
        ("seed=abc", "seed=abc", "a whole number"),
        ("seed=null", "seed=null", "a whole number"),
        ("budget_frames=1e6", "budget_frames=1e6", "budget_frames=1000000"),
        ("learner.learning_rate=fast", "learner.learning_rate=fast", "a number"),
        ("algorithm.double=maybe", "algorithm.double=maybe", "true or false"),
        ("algorithm.hidden_sizes=120", "algorithm.hidden_sizes=120", "[120,84]"),
        ("algorithm.target_tau=soft", "algorithm.target_tau=soft", "a number or null"),
        ("env.kwargs=3", "env.kwargs=3", "{key: value}"),
        ("seed=0,1", "seed=0,1", "-m"),
        ("pong", "pong", "preset=pong"),
        ("sede", "sede", "seed=VALUE"),
        ("run_dir=[a", "run_dir=[a", "quotes"),
        ("~schedule=async", "schedule", "another value"),
        ("env@outer=pong", "env", "env=VALUE"),
        ("run_dir=${nothing}", "run_dir", "nothing"),
        ("env=generic", "env.id", "env.id=CartPole-v1"),
    ],
)
def test_argument_is_refused_in_one_sentence(argument: str, named: str, suggested: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load([argument], cores=2)
    sentence = str(refused.value)
    assert named in sentence
    assert suggested in sentence
    assert "\n" not in sentence


def test_sweep_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="learner.learning_rate=interval.0,1. has no end"):
        jobs(["learner.learning_rate=interval(0,1)"])


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lr", "learner.learning_rate"),
        ("workers", "collector.num_workers"),
        ("replay.capacty", "replay.capacity_frames"),
    ],
)
def test_nearest_key(name: str, known: str) -> None:
    assert nearest(name, config_keys()) == known


# --- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (3, 1), (4, 2), (48, 46)])
def test_workers_are_cores_less_two(cores: int, workers: int) -> None:
    assert resolve(Config(), cores).collector.num_workers == workers
    asked = changed(Config(), {"collector.num_workers": 7})
    assert resolve(asked, cores).collector.num_workers == 7


@pytest.mark.parametrize(("workers", "tolerance", "round_frames"), [(1, 512, 1024), (6, 512, 1056), (46, 1472, 736)])
def test_defaults_that_follow_the_workers_are_valid_on_any_machine(
    workers: int, tolerance: int, round_frames: int
) -> None:
    for schedule in ("async", "sync"):
        config = resolve(changed(Config(), {"collector.num_workers": workers, "schedule.name": schedule}), cores=48)
        validate(config, cores=48)
        assert config.schedule.tolerance_frames == tolerance  # two steps of all workers, at least 512
        assert config.schedule.frames_per_round == round_frames  # a multiple of workers x 16 next to 1,024


def test_cores_are_those_of_slurm_or_of_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, mask)
    assert available_cores() == len(mask)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "12")
    assert available_cores() == 12
    assert resolve(Config()).collector.num_workers == 10
    assert versions(seed=0)["cores"] == 12
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "many")
    with pytest.raises(ConfigError, match="SLURM_CPUS_PER_TASK=many"):
        available_cores()


# --- RUN/config.yaml -------------------------------------------------------------------------------------------------


def test_yaml_round_trip_is_exact(tmp_path: Path) -> None:
    config = load(
        ["preset=pong", "env.kwargs.a={b: [1, x], c: null}", "learner.adam_eps=1.5e-4", "run_dir=a b"], 4
    ).config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    read_back = from_yaml(tmp_path / "config.yaml")
    assert read_back == config
    assert type(read_back.algorithm.hidden_sizes) is list
    assert is_plain(to_dict(read_back))
    with pytest.raises(dataclasses.FrozenInstanceError):
        read_back.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learner: {lr: 1}", "learner.lr.*nearest is learner.learning_rate"),
        ("seed: abc", "seed"),
        ("- 1", "no mapping"),
        ("a: [b", "no YAML file"),
    ],
)
def test_unreadable_yaml_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence) as refused:
        from_yaml(tmp_path / "config.yaml")
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        from_yaml(tmp_path / "none.yaml")


def test_yaml_of_an_older_run_takes_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 5\n")
    assert from_yaml(tmp_path / "config.yaml") == dataclasses.replace(Config(), seed=5)


def test_yaml_of_an_older_run_with_the_keys_of_all_algorithms_is_read(tmp_path: Path) -> None:
    """Until sections were the algorithms' own, every run's file had every key."""
    keys = {"name": "qrdqn", "gamma": 0.5, "num_quantiles": 7, "double": False, "v_min": -3.0, "num_fractions": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"algorithm": {**keys, "munchausen_alpha": 0.5}}))
    section = from_yaml(tmp_path / "config.yaml").algorithm
    assert section == QRDQNConfig(gamma=0.5, num_quantiles=7, double=False)
