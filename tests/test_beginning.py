"""Presets and configurations of one's own: `--config-dir`, a YAML file, and `from=RUN`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from trainer.commands.run import split_flags
from trainer.config.compose import jobs, load
from trainer.config.fields import ConfigError
from trainer.config.run_config import to_yaml
from trainer.config.sections import Config

PRESET = """\
# @package _global_
defaults:
  - override /env: lunarlander

preset: mine
budget_frames: 77_000
learner:
  batch_size: 48
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of configurations: the preset `mine`, for an environment that has one, and the environment `theirs`."""
    (tmp_path / "conf" / "preset").mkdir(parents=True)
    (tmp_path / "conf" / "preset" / "mine.yaml").write_text(PRESET)
    (tmp_path / "conf" / "env").mkdir()
    (tmp_path / "conf" / "env" / "theirs.yaml").write_text("id: Theirs-v0\nimport_modules: [theirs]\n")
    return tmp_path / "conf"


def kept(tmp_path: Path, *arguments: str) -> tuple[Path, Config]:
    """The folder of a run that was made with these arguments, and its configuration."""
    run = tmp_path / "kept"
    config = replace(load(arguments, cores=4).config, run_dir=str(run))
    run.mkdir()
    (run / "config.yaml").write_text(to_yaml(config))
    return run, config


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(arguments, cores=4)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- a folder --------------------------------------------------------------------------------------------------------


def test_a_preset_of_a_folder_is_taken_like_one_of_ours(folder: Path) -> None:
    flags, words = split_flags(["--config-dir", str(folder), "preset=mine", "seed=3"])
    assert flags == []
    config = load(words, cores=4).config
    assert (config.preset, config.env.id, config.budget_frames, config.learner.batch_size) == (
        "mine", "LunarLander-v3", 77_000, 48,
    )  # fmt: skip
    assert config.seed == 3
    _, words = split_flags([f"--config-dir={folder}", "env=theirs", "preset=cartpole"])
    assert load(words, cores=4).config.env.import_modules == ["theirs"]


def test_a_sweep_finds_the_folder_too(folder: Path) -> None:
    _, words = split_flags(["--config-dir", str(folder), "preset=mine,cartpole"])
    assert [load(arguments, cores=4).config.budget_frames for arguments in jobs(words)] == [77_000, 50_000]


def test_folders_that_do_not_fit_are_refused_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config-dir takes a folder"):
        split_flags(["--config-dir"])
    words = split_flags([f"--config-dir={tmp_path / 'none'}", "preset=mine"])[1]
    assert refused(*words).startswith(f"--config-dir={tmp_path / 'none'} is no folder")
    words = split_flags([f"--config-dir={folder}", "preset=mien"])[1]
    assert refused(*words).endswith("the nearest is preset=mine")
    (folder / "preset" / "cartpole.yaml").write_text(PRESET)
    words = split_flags([f"--config-dir={folder}", "preset=cartpole"])[1]
    assert "give" in refused(*words) and "another name" in refused(*words)
    (folder / "preset" / "torn.yaml").write_text("a: [b")
    words = split_flags([f"--config-dir={folder}", "env.id=Some-v0"])[1]
    assert "torn.yaml is no YAML file" in refused(*words)


# --- from=RUN --------------------------------------------------------------------------------------------------------


def test_a_run_like_another_one_but_for_what_is_typed(tmp_path: Path) -> None:
    run, old = kept(tmp_path, "preset=lunarlander", "learner.batch_size=96", "env.kwargs.gravity=-5.0")
    loaded = load([f"from={run}", "seed=5", "env.kwargs.wind_power=3.0"], cores=4)
    assert loaded.preset_reason == f"as {run} has it"
    env = replace(old.env, kwargs={"gravity": -5.0, "wind_power": 3.0})
    assert loaded.config == replace(old, seed=5, env=env, run_dir=None)


def test_another_algorithm_keeps_what_both_have(tmp_path: Path) -> None:
    run, old = kept(tmp_path, "preset=lunarlander", "algorithm.gamma=0.9", "algorithm.hidden_sizes=[7]")
    algorithm = load([f"from={run}", "algorithm=rainbow"], cores=4).config.algorithm
    assert (algorithm.name, algorithm.gamma, algorithm.hidden_sizes) == ("rainbow", 0.9, [7])
    assert algorithm.noisy and algorithm.prioritized and algorithm.v_max == 200  # the option's, and the preset's
    assert load([f"from={run}", "algorithm.double=false"], cores=4).config.algorithm == replace(
        old.algorithm, double=False
    )
    assert refused(f"from={run}", "algorithm.v_min=-1").startswith("algorithm.v_min is a key of c51 and rainbow")


def test_rounds_follow_other_workers(tmp_path: Path) -> None:
    run, old = kept(tmp_path, "preset=cartpole", "schedule=sync", "collector.num_workers=2")
    assert old.schedule.frames_per_round == 1_024
    more = load([f"from={run}", "collector.num_workers=6"], cores=8).config
    assert more.schedule.frames_per_round == 1_056  # 11 steps of 6 x 16


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("from=nowhere",), "from=nowhere is neither a run's folder nor a YAML file"),
        (("from=.",), "from=. is no run's folder: it holds no config.yaml"),
        (("from=a", "from=b"), "from= names one run's folder or one YAML file"),
        (("from=a", "resume=b"), "leave out one of them"),
    ],
)
def test_what_is_no_run_is_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(*words)


# --- from=FILE -------------------------------------------------------------------------------------------------------


def test_a_file_sets_keys_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    content = {
        "env": {"id": "Acrobot-v1"},
        "algorithm": "c51",
        "learner": {"batch_size": 48, "adam_eps": 1e-5},
        "seed": 4,
    }
    file.write_text(yaml.safe_dump(content))
    config = load([f"from={file}", "learner.batch_size=64"], cores=4).config
    assert (config.preset, config.env.id, config.algorithm.name, config.seed) == ("acrobot", "Acrobot-v1", "c51", 4)
    assert (config.learner.batch_size, config.learner.adam_eps) == (64, 1e-5)
    file.write_text("preset: lunarlander\nbudget_frames: 90_000\n")
    config = load([f"from={file}"], cores=4).config
    assert (config.preset, config.env.id, config.budget_frames) == ("lunarlander", "LunarLander-v3", 90_000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learner: {batchsize: 3}", "learner.batchsize: .*; the nearest is learner.batch_size"),
        ("learner: {batch_size: many}", "learner.batch_size"),
        ("learner: {batch_size: 0}", "learner.batch_size=0 is out of range"),
        ("algorithm: c15", "algorithm=c15 is none of"),
        ("a: [b", "is no YAML file"),
        ("- 1", "holds no mapping"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence) as error:
        load([f"from={tmp_path / 'mine.yaml'}"], cores=4)
    assert "\n" not in str(error.value)
