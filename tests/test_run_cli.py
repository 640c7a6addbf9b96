"""The command that people type: exit codes, one sentence on stderr, help, and what is handed to Hydra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.commands.run import HELP, help_text, main, split_flags
from trainer.config.algorithms import C51Config, DQNConfig
from trainer.config.arguments import GROUPS
from trainer.config.fields import ConfigError
from trainer.config.sections import Config, config_keys, group_options
from trainer.envs.spec import EnvError

ROOT = Path(__file__).parent.parent


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder that is not the clone, as an installed package is run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "trainer.run", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


# --- as a process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["schedule.replay_ratio=1"],
            "there is no key schedule.replay_ratio: set its inverse, schedule.frames_per_update",
        ),
        (["learner.lr=1"], "there is no key learner.lr; the nearest is learner.learning_rate"),
        (["preset=lunarlandr"], "the nearest is preset=lunarlander"),
        (["seed=abc"], "seed=abc does not fit: seed takes a whole number"),
        (["learner.batch_size=4000"], "learner.batch_size=4000 is more than learner.warmup_frames=1000"),
        (["-m", "seed=0,b"], "seed=b does not fit"),
        (["--cfg", "job", "sede=1"], "there is no key sede; the nearest is seed"),
    ],
)
def test_wrong_arguments_end_with_one_sentence_and_code_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_prints_the_whole_configuration_and_leaves_nothing(tmp_path: Path) -> None:
    done = command("--cfg", "job", "env.id=LunarLander-v3", "seed=3", "env.kwargs.gravity=-5.0", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    printed = yaml.safe_load(done.stdout)
    assert (printed["preset"], printed["seed"], printed["env"]["kwargs"]) == ("lunarlander", 3, {"gravity": -5.0})
    keys = {f"{name}.{key}" for name, section in printed.items() if isinstance(section, dict) for key in section}
    assert keys == {key for key in config_keys(Config(algorithm=DQNConfig())) if "." in key}
    assert "algorithm.double" in keys and "algorithm.num_atoms" not in keys
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_prints_the_keys_of_the_chosen_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "algorithm=c51"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)["algorithm"]
    assert set(printed) == {item.name for item in fields(C51Config)} and printed["name"] == "c51"
    assert main(["--cfg", "job", "algorithm.num_atoms=7"]) == 2
    assert "num_atoms" in capsys.readouterr().err


def test_help_is_printed(tmp_path: Path) -> None:
    done = command("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == help_text()


def test_arguments_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from trainer.commands.run import main;"
        " print(main(['seed=abc']), main(['learner.batch_size=4000']),"
        " [name for name in ('torch', 'torchrl', 'tensordict', 'gymnasium', 'wandb') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "2 2 []\n"


# --- flags and help --------------------------------------------------------------------------------------------------


def test_flags_are_told_from_keys() -> None:
    assert split_flags(["seed=1", "--cfg", "job", "env.id=A-v0"]) == (["--cfg", "job"], ["seed=1", "env.id=A-v0"])
    assert split_flags(["-m", "seed=0,1"]) == (["-m"], ["seed=0,1"])
    assert split_flags(["--info", "seed=1"]) == (["--info"], ["seed=1"])
    assert split_flags(["--cfg=job"]) == (["--cfg", "job"], [])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seed=3"], "--seed=3 is no flag: did you mean seed=3, without dashes"),
        (["--preset", "pong"], "did you mean preset=VALUE, without dashes"),
        (["--hepl"], "did you mean --help"),
        (["--cfg"], "--cfg takes job or hydra or all, not nothing"),
        (["--cfg", "jbo"], "--cfg takes job or hydra or all, not jbo"),
        (["--cfg", "job", "-m"], "--cfg and -m cannot go together"),
    ],
)
def test_wrong_flag_is_refused(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        split_flags(arguments)


def test_help_names_all_choices_and_only_keys_that_exist() -> None:
    text = help_text()
    for group in GROUPS:
        for option in group_options(group):
            assert re.search(rf"\b{option}\b", text), f"{group}={option}"
    listed = re.findall(r"^  ([a-z_.]+)  ", HELP.partition("most often:")[2], re.MULTILINE)
    assert len(listed) == 21 - 1  # env.kwargs.NAME is no key by itself
    assert set(listed) <= {*config_keys(), "from"}


# --- the run ---------------------------------------------------------------------------------------------------------


class RunFailed(RuntimeError):
    """Stands for trainer.host.errors.RunFailed."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[int, BaseException]], list[Any]]:
    """Put in place of the training, which takes minutes: notes its calls, and raises what a seed is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)

    def install(failures: dict[int, BaseException], stop_signal: int | None = None) -> list[Any]:
        calls: list[tuple[Config, list[str]]] = []

        def train(config: Config, command: list[str]) -> dict[str, Any]:
            calls.append((config, command))
            if config.seed in failures:
                raise failures[config.seed]
            return {"stop_signal": stop_signal}

        for name, content in (
            ("trainer.training.train", {"train": train}),
            ("trainer.host.errors", {"RunFailed": RunFailed}),
        ):
            module = types.ModuleType(name)
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


def test_run_gets_the_config_and_the_command(trained: Any, capsys: Any, tmp_path: Path) -> None:
    calls = trained({})
    assert main(["env.id=Acrobot-v1", "seed=4", "collector.num_workers=500", "schedule.tolerance_frames=8000"]) == 0
    ((config, command_line),) = calls
    assert (config.seed, config.preset, config.collector.num_workers) == (4, "acrobot", 500)
    assert command_line[1:3] == ["env.id=Acrobot-v1", "seed=4"]
    printed = capsys.readouterr()
    assert printed.out == "preset acrobot (made for Acrobot-v1)\n"
    assert printed.err.startswith("warning: collector.num_workers=500 is more than the ")
    assert list(tmp_path.iterdir()) == []  # Hydra leaves nothing behind


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (ConfigError("the replay is too large"), 2, "error: the replay is too large\n"),
        (EnvError("Text spaces cannot be learned from"), 2, "error: Text spaces cannot be learned from\n"),
        (RunFailed("worker 0 died"), 1, "error: worker 0 died\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_code_says_what_went_wrong(
    failure: BaseException, code: int, text: str, trained: Any, capsys: Any
) -> None:
    trained({0: failure})
    assert main([]) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(("stop_signal", "code"), [(None, 0), (2, 130), (15, 143)])
def test_exit_code_says_which_signal_stopped_the_run(stop_signal: int | None, code: int, trained: Any) -> None:
    trained({}, stop_signal)
    assert main([]) == code


def test_sweep_ends_with_the_run_that_is_stopped(trained: Any) -> None:
    calls = trained({}, 2)
    with pytest.raises(SystemExit) as ended:
        main(["-m", "seed=0,1,2"])
    assert (ended.value.code, len(calls)) == (130, 1)


def test_sweep_chooses_a_preset_for_each_run(trained: Any, capsys: Any) -> None:
    calls = trained({})
    assert main(["-m", "env.id=CartPole-v1,Acrobot-v1,Some/Env-v0", "seed=1", "env.kwargs.a=1"]) == 0
    assert [(config.preset, config.env.id) for config, _ in calls] == [
        ("cartpole", "CartPole-v1"),
        ("acrobot", "Acrobot-v1"),
        ("generic", "Some/Env-v0"),
    ]
    assert all(config.env.kwargs == {"a": 1} for config, _ in calls)
    assert calls[1][1][1:] == ["env.id=Acrobot-v1", "seed=1", "++env.kwargs.a=1"]  # what repeats this run alone
    out = capsys.readouterr().out
    assert "run 3 of the sweep: env.id=Some/Env-v0 seed=1" in out
    assert re.search(r"scores of the runs .*:\n +\S+  env.id=CartPole-v1\n +\S+  env.id=Acrobot-v1\n", out)


def test_sweep_ends_with_its_first_failure(trained: Any) -> None:
    calls = trained({1: RunFailed("worker 0 died")})
    with pytest.raises(SystemExit) as ended:
        main(["-m", "seed=0,1,2"])
    assert ended.value.code == 1
    assert [config.seed for config, _ in calls] == [0, 1]


def test_impossible_sweep_is_refused_before_its_first_run(trained: Any, capsys: Any) -> None:
    calls = trained({})
    assert main(["-m", "learner.batch_size=64,4000"]) == 2
    assert main(["-m", "seed=0,1", "run_dir=here"]) == 2
    assert calls == []
    assert re.search(r"run_dir=/.*/here would hold several runs of the sweep", capsys.readouterr().err)
    assert main(["-m", "seed=0,1", "run_dir='run_${seed}'"]) == 0
    assert [Path(config.run_dir).name for config, _ in calls] == ["run_0", "run_1"]
