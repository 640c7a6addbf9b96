"""Parts of the user's by import path: what is refused, in one sentence and before any process starts; and what runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from trainer.algorithms import c51
from trainer.api.policy import load_policy
from trainer.commands import eval as evaluating
from trainer.commands import play as playing
from trainer.commands.run import main
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.parts import check_parts
from trainer.config.run_config import from_yaml
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.networks.encoders import encoders_of
from trainer.networks.values import value_network

CAMERA = Leaf("observation.camera", (12, 12), "uint8", "image", "hw")
SPEED = Leaf("observation.speed", (3,), "float32", "vector")
SPEC = EnvSpec("sight", (CAMERA, SPEED), DiscreteAction(4))

MODULE = '''
import torch
from torch import nn

NUMBER = 5

class Broken:
    def __init__(self):
        raise OSError("it is broken")

def takes_nothing():
    return nn.Identity()

def no_module(spec, section):
    return 3

def wrong_shape(spec, section):
    class Wrong(nn.Module):
        def forward(self, camera, speed):
            return camera.float().flatten(1)
    return Wrong()

def fails(spec, section):
    return nn.Linear(7, 4)

class Numbers(nn.Module):
    """Several numbers for each action."""
    def __init__(self, inputs, actions, outputs):
        super().__init__()
        self.shape, self.layer = (actions, outputs), nn.Linear(inputs, actions * outputs)
    def forward(self, observation):
        return self.layer(observation.flatten(1)).unflatten(1, self.shape)

def numbers(spec, section, outputs):
    return Numbers(spec.leaves[0].shape[0], spec.num_actions, outputs)

def normed(spec, section):
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))

def mean_encoder(leaf, section):
    class Mean(nn.Module):
        def forward(self, x):
            return x.float().flatten(1).mean(1, keepdim=True)
    return Mean()

def flat_encoder(leaf, section):
    class Flat(nn.Module):
        def forward(self, x):
            return x.float().flatten()
    return Flat()

def tiny_cnn(channels):
    return nn.Conv2d(channels, 2, 3)

class Lines:
    """A logger that keeps what it is given, and fails once."""
    def __init__(self, folder):
        self.file, self.failed = open(folder / "lines.txt", "w"), False
    def write(self, row):
        if not self.failed:
            self.failed = True
            raise KeyError("the first row")
        print("row", row["frames"], file=self.file, flush=True)
    def event(self, event):
        print("event", event.text, file=self.file, flush=True)
    def close(self, summary):
        print("close", summary["status"], file=self.file)
        self.file.close()

def lines(section, run, notify):
    return Lines(run.run_dir)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module of the user's."""
    (tmp_path / "my_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_parts", None)
    return "my_parts"


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        check_parts(load(arguments, cores=2).config)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("algorithm.network=nowhere.at:all", "algorithm.network=nowhere.at:all: there is no module nowhere; start in"),
        ("algorithm.network=my_parts:none", r"my_parts \(.*my_parts.py\) has .*NUMBER.*, not none"),
        ("algorithm.network=my_parts:NUMBER", "algorithm.network=my_parts:NUMBER is int, and must be a function"),
        ("algorithm.network=my_parts:takes_nothing", r"is called with \(spec, section\), and takes \(\): too many"),
        ("algorithm.network=my_parts", "network=my_parts is none of auto, nor an import path, package.module"),
        ("algorithm.cnn=my_parts:takes_nothing", r"algorithm.cnn=my_parts:takes_nothing is called with \(channels\)"),
        ("algorithm.encoders={camera: nowhere:x}", "algorithm.encoders.camera=nowhere:x: there is no module nowhere"),
        ("algorithm.encoders={camera: nowhere}", "algorithm.encoders.camera=nowhere is no import path"),
        ("collector.exploration=my_parts:takes_nothing", r"called with \(section, num_streams, streams\)"),
        ("logger=nowhere:x", "logger.name=nowhere:x: there is no module nowhere"),
        ("env.wrappers=[flat]", "env.wrappers=flat is no import path: write package.module:object"),
        ("env.wrappers=[{scale: 2}]", "is no import path"),
        ("env.backend=nowhere", "env.backend=nowhere is none of gymnasium.*, nor an import path"),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_one_sentence(mine: str, argument: str, sentence: str) -> None:
    assert re.search(sentence, refused(argument)), refused(argument)


def test_arguments_of_a_part_are_held_against_its_signature(mine: str) -> None:
    said = refused("algorithm.network=my_parts:fails", "algorithm.network_kwargs.width=8")
    assert "is called with (spec, section, width=...), and takes (spec, section)" in said


def test_a_network_of_its_own_has_no_noisy_layers(mine: str) -> None:
    words = ("algorithm.network=my_parts:fails", "algorithm.noisy=true")
    assert "set algorithm.noisy=false, and epsilon explores" in refused(*words)
    (warning,) = load(["algorithm.network=my_parts:fails", "algorithm.dueling=true"], cores=2).warnings
    assert warning.startswith("algorithm.dueling=true does nothing")
    assert "set algorithm.noisy=false" in refused("algorithm=rainbow", "algorithm.network=my_parts:fails")


@pytest.mark.parametrize("algorithm", ["iqn", "sac", "redq", "droq", "tqc", "crossq", "td3", "ddpg", "sac_discrete"])
def test_an_algorithm_with_several_networks_says_which_parts_can_be_the_users(algorithm: str) -> None:
    assert refused(f"algorithm={algorithm}", "algorithm.network=my_parts:fails") == (
        f"algorithm.network is a key of dqn, c51, qrdqn, munchausen, rainbow and apex, and algorithm={algorithm} has "
        "no such key: leave it out, or set algorithm=dqn; the parts of its networks that can be yours are "
        "algorithm.encoders, algorithm.cnn and algorithm.activation"
    )


def test_an_instance_number_does_not_go_with_the_same_argument_for_all() -> None:
    said = refused("env.instance_key=port", "env.kwargs.port=5005")
    assert said.startswith("env.kwargs.port=5005 would be the same for every environment")


# --- networks and encoders -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_module", "made int: it must make a torch.nn.Module"),
        ("wrong_shape", r"gave torch.float32 \[2, 144\] for observation.camera torch.uint8 .*\[batch, 4\]"),
        ("fails", "failed for observation.camera .*: TypeError"),
        ("normed", "BatchNorm1d, whose running statistics are no weights"),
    ],
)  # fmt: skip
def test_a_network_is_tried_before_it_learns(mine: str, name: str, sentence: str) -> None:
    section = load([f"algorithm.network=my_parts:{name}"], cores=2).config.algorithm
    with pytest.raises(ConfigError, match=f"algorithm.network=my_parts:{name} .*{sentence}|{sentence}"):
        value_network(SPEC, section, True)  # type: ignore[arg-type]


def test_an_encoder_of_its_own_takes_the_place_of_one_leafs(mine: str) -> None:
    section = load(["algorithm.encoders={camera: my_parts:mean_encoder}"], cores=2).config.algorithm
    encoders, width = encoders_of(SPEC, section, True)
    assert width == 1 + 3
    camera = torch.full((5, 12, 12), 7, dtype=torch.uint8)
    assert encoders[0](camera).tolist() == [[7.0]] * 5
    with pytest.raises(ConfigError, match=r"encoders.camera=my_parts:flat_encoder gave torch.float32 \[288\] for"):
        encoders_of(SPEC, load(["algorithm.encoders={camera: my_parts:flat_encoder}"], cores=2).config.algorithm, True)
    with pytest.raises(ConfigError, match="encoders.sound names no part of sight's observation: it has camera, speed"):
        encoders_of(SPEC, load(["algorithm.encoders={sound: my_parts:mean_encoder}"], cores=2).config.algorithm, True)
    cnn = load(["algorithm.cnn=my_parts:tiny_cnn"], cores=2).config.algorithm
    assert encoders_of(SPEC, cnn, True)[1] == 2 * 10 * 10 + 3


def test_an_activation_of_torch_is_a_path_too() -> None:
    section = load(["algorithm.activation=torch.nn:GELU"], cores=2).config.algorithm
    network = value_network(EnvSpec("v", (SPEED,), DiscreteAction(2)), section, True)  # type: ignore[arg-type]
    assert sum(isinstance(module, torch.nn.GELU) for module in network.modules()) == 2


# --- runs ------------------------------------------------------------------------------------------------------------


RUN = [
    "schedule=sequential", "budget_frames=600", "learner.warmup_frames=100", "learner.batch_size=32",
    "learner.device=cpu", "collector.num_workers=1", "collector.envs_per_worker=4", "replay.capacity_frames=1000",
    "evaluator.every_frames=0", "evaluator.final_episodes=2", "evaluator.num_envs=2", "logger.terminal=none",
]  # fmt: skip


def test_a_logger_of_its_own_gets_rows_and_events_and_may_fail(mine: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*RUN, "logger=my_parts:lines", "logger.every_seconds=0.05", f"run_dir={run}"]) == 0
    lines = (run / "lines.txt").read_text().splitlines()
    assert any(line.startswith("row ") for line in lines) and lines[-1] == "close finished"
    assert (
        "my_parts:lines logger cannot write (KeyError: 'the first row'); training goes on"
        in (run / "log.txt").read_text()
    )
    assert from_yaml(run / "config.yaml").logger.name == "my_parts:lines"


@pytest.mark.parametrize(("algorithm", "outputs"), [("c51", 51), ("qrdqn", 32)])
def test_a_network_of_its_own_learns_a_distribution(mine: str, tmp_path: Path, algorithm: str, outputs: int) -> None:
    run, path = tmp_path / "run", "algorithm.network=my_parts:numbers"
    words = [*RUN, f"algorithm={algorithm}", path, f"run_dir={run}"]
    assert main([*words, f"algorithm.network_kwargs.outputs={outputs}"]) == 0
    policy = load_policy(run, trust=True)
    values = policy.module(torch.zeros(3, 4))
    assert values.shape == (3, 2) and torch.isfinite(values).all()
    assert sum(weights.numel() for weights in policy.module.parameters()) == (4 + 1) * 2 * outputs


def test_the_values_of_a_network_of_its_own_begin_at_0_whatever_the_support_is(mine: str) -> None:
    """The network gives zeros, so the values are of the first distribution: 1 % even, 99 % at 0 (as ours begins)."""
    words = ["algorithm=c51", "algorithm.network=my_parts:numbers", "algorithm.network_kwargs.outputs=51"]
    section = load([*words, "algorithm.v_min=0", "algorithm.v_max=500"], cores=2).config.algorithm
    spec = EnvSpec("v", (SPEED,), DiscreteAction(2))
    network = c51.build(section, LearnerConfig(), spec).network  # type: ignore[arg-type]
    for weights in network.parameters():
        weights.data.zero_()
    assert network(torch.zeros(1, 3)).tolist() == [[pytest.approx(2.5, abs=0.1)] * 2]


def test_what_cannot_be_imported_leaves_no_folder(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*RUN, "algorithm.network=my_parts:takes_nothing", f"run_dir={run}"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: algorithm.network=my_parts:takes_nothing is called with")
    assert not run.exists()


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("nowhere:x", "callbacks=nowhere:x: there is no module nowhere"),
        ("my_parts:NUMBER", "callbacks=my_parts:NUMBER is int, and must be a function or a class"),
        ("my_parts:Broken", "callbacks=my_parts:Broken failed as it was made (OSError: it is broken)"),
        ("{callback: my_parts:Broken, at: 3}", "callbacks=my_parts:Broken is called with (at=...), and takes ()"),
        ("my_parts:takes_nothing", "the callback Identity has none of the methods on_row"),
        ("plain", "callbacks=plain is no import path"),
    ],
)
def test_a_callback_that_cannot_be_is_refused_before_anything_is_started(
    mine: str, word: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*RUN, f"callbacks=[{word}]", f"run_dir={run}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {sentence}")
    assert not run.exists()


def test_a_network_that_does_not_fit_the_environment_leaves_no_folder(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*RUN, "algorithm.network=my_parts:fails", f"run_dir={run}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: algorithm.network=my_parts:fails failed for observation torch.float32 [2, 4]: Runt")
    assert not run.exists()


def test_a_policy_whose_network_cannot_be_imported_is_one_sentence(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    words = ["algorithm=qrdqn", "algorithm.network=my_parts:numbers", "algorithm.network_kwargs.outputs=32"]
    assert main([*RUN, *words, f"run_dir={run}"]) == 0
    capsys.readouterr()
    monkeypatch.undo()  # the folder of the module is no longer on the path
    sys.modules.pop("my_parts")
    sentence = (
        "algorithm=qrdqn has a part that is not here, my_parts:numbers: there is no module my_parts; start in the"
    )
    for command in (evaluating.main, playing.main):
        assert command([str(run)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {sentence}") and said.count("\n") == 1
    with pytest.raises(ConfigError, match=sentence):
        load_policy(run / "best" / "policy.safetensors", trust=True)
