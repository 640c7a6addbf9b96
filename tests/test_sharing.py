"""A policy that is shared: what is pushed, into a folder in the hub's place, and what whoever loads it gets."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
import yaml

import trainer
from trainer.commands import eval as eval_command
from trainer.commands import push
from trainer.sharing import hub


@pytest.fixture(scope="module")
def run(make_config, tmp_path_factory):
    """A short run of CartPole whose command line names folders and an account."""
    from trainer.training.train import train

    config = make_config(
        tmp_path_factory.mktemp("shared") / "run", seed=4, env={"id": "CartPole-v1", "backend": "gymnasium"},
        schedule={"name": "sequential"}, evaluator={"every_frames": 400},
    )  # fmt: skip
    command = [
        "/here/trainer/run.py",
        "preset=cartpole",
        "seed=4",
        f"run_dir={config.run_dir}",
        "logger.wandb_entity=me",
    ]
    train(config, command)
    return Path(config.run_dir)


@pytest.fixture(scope="module")
def place(run, tmp_path_factory):
    """The folder in the hub's place, into which the run was pushed as me/cartpole."""
    place = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINER_HUB", str(place))
        assert push.main([str(run), "me/cartpole"]) == 0
        yield place


def test_the_repository_has_policy_card_curve_and_video(run, place):
    pushed = place / "me" / "cartpole"
    names = {"README.md", "policy.safetensors", "curve.png", "replay.mp4"}
    assert {path.name for path in pushed.iterdir()} == names
    assert (pushed / "policy.safetensors").read_bytes() == (run / "best" / "policy.safetensors").read_bytes()
    assert imageio.imread(pushed / "replay.mp4", index=0).shape[2] == 3


def test_the_card_says_how_it_was_trained_and_how_well_it_plays(run, place):
    _, head, text = (place / "me" / "cartpole" / "README.md").read_text().split("---\n", 2)
    summary = json.loads((run / "summary.json").read_text())
    metadata = yaml.safe_load(head)
    assert metadata["pipeline_tag"] == "reinforcement-learning" and "CartPole-v1" in metadata["tags"]
    (result,) = metadata["model-index"][0]["results"]
    mean, std = summary["eval_return_mean"], summary["eval_return_std"]
    assert result["metrics"][0]["value"] == f"{mean:.2f} +/- {std:.2f}"
    assert f"| best policy | {mean:.2f} | {std:.2f} | 2 |" in text
    assert "    python -m trainer.run preset=cartpole seed=4\n" in text  # without folders and accounts
    assert str(run) not in text and "wandb_entity" not in text and "hidden_sizes" in text


def test_whoever_loads_it_gets_the_same_policy(run, place):
    ours, theirs = trainer.load_policy(run), trainer.load_policy("hub:me/cartpole")
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(ours(observations), theirs(observations))


def test_eval_plays_it_as_the_run(run, place, capsys):
    returns = []
    for name in (str(run), "hub:me/cartpole"):
        assert eval_command.main([name, "--episodes", "3"]) == 0
        returns.append(json.loads(capsys.readouterr().out)["eval_return_mean"])
    assert returns[0] == returns[1]


@pytest.mark.parametrize("name", ["cartpole", "../me/cartpole", "me/..", "a/b/c"])
def test_a_name_that_is_none_is_refused(run, place, name, capsys):
    assert push.main([str(run), name, "--no-video"]) == 2
    assert capsys.readouterr().err == f"error: {name} is no name in the hub: write owner/name\n"


def test_what_is_not_there_is_named(place, tmp_path, capsys):
    assert eval_command.main(["hub:me/other"]) == 2
    assert "hub:me/other could not be fetched: there is no " in capsys.readouterr().err
    assert push.main([str(tmp_path), "me/cartpole"]) == 2
    assert "is no run's folder" in capsys.readouterr().err


def test_files_of_the_repository_that_are_not_pushed_stay(place, tmp_path):
    (place / "me" / "kept").mkdir(parents=True)
    (place / "me" / "kept" / "notes.txt").write_text("mine")
    (tmp_path / "new.txt").write_text("new")
    assert hub.push(tmp_path, "me/kept", "Add a file") == str(place / "me" / "kept")
    assert {path.name for path in (place / "me" / "kept").iterdir()} == {"notes.txt", "new.txt"}
