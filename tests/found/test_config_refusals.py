"""Lines of the issue about what the loader takes: a sentence where something cannot be, a warning where it hardly can.

The loader runs in this process; the few lines that need a run have one.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz import MAY_BE_NULL, NUMBERS
from trainer.commands.run import main
from trainer.config.algorithms import AnyAlgorithmConfig
from trainer.config.compose import load
from trainer.config.fields import ConfigError, nearest
from trainer.config.machine import check_machine
from trainer.config.run_config import from_yaml, to_yaml
from trainer.config.sections import Config, config_keys
from trainer.config.validation import check_values
from trainer.roles.agents import plan_agents

NOT_NUMBERS = ["9" * 26 + "x", "9" * 5_000, "${nope}", "nan", "inf", "[1]", "{a: 1}", "null", "true", "", "[" * 1_000]


def refused(*arguments: str) -> str:
    """The sentence with which the loader refuses."""
    with pytest.raises(ConfigError) as error:
        load(arguments, cores=4)
    sentence = str(error.value)
    assert sentence and "\n" not in sentence and not sentence.endswith(":") and len(sentence) < 1_000
    return sentence


# --- numbers ---------------------------------------------------------------------------------------------------------


HUGE = (10**26, -(10**26), 10**400, -(10**400))


def test_2_every_number_has_bounds_on_both_sides() -> None:
    ranges = {key: item.metadata["range"] for key, item in config_keys().items() if "range" in item.metadata}
    assert len(ranges) > 40
    run = Config(algorithm=AnyAlgorithmConfig())
    for key, (low, high) in ranges.items():
        for value in (low - 1, high * 10 + 1, *HUGE):
            given = [value] if key == "algorithm.hidden_sizes" else value
            section, _, name = key.rpartition(".")
            part = run if not section else getattr(run, section)
            part = replace(part, **{name: given})
            with pytest.raises(ConfigError, match=f"^{key}=.* (is out of range|does not fit)"):
                check_values(part if not section else replace(run, **{section: part}))


@pytest.mark.parametrize("key", ["budget_frames", "learner.learning_rate", "algorithm.hidden_sizes"])
def test_2_the_loader_holds_every_number_against_its_bounds(key: str) -> None:
    low, high = config_keys()[key].metadata["range"]
    for value in (low - 1, high * 10 + 1, *HUGE):
        assert key in refused(f"{key}=[{value}]" if key == "algorithm.hidden_sizes" else f"{key}={value}")


@pytest.mark.parametrize("key", ["seed", "learner.learning_rate", "algorithm.hidden_sizes", "evaluator.episodes"])
def test_2_what_is_no_number_is_one_sentence(key: str) -> None:
    for text in NOT_NUMBERS:
        if (key, text) != ("algorithm.hidden_sizes", "[1]"):
            assert key in refused(f"{key}={text}"), text


@pytest.mark.parametrize("seed", [0, 5_000, 2**31, 2**32, 2**53 + 1, 2**63])
@pytest.mark.parametrize("preset", ["minatar", "cartpole"])
def test_2_big_seeds_are_taken_as_they_are(preset: str, seed: int) -> None:
    assert load([f"preset={preset}", f"seed={seed}"], cores=4).config.seed == seed


def test_2_the_biggest_seed_trains(run: Any) -> None:
    ended = run("env.id=Hurting/Plain-v0", f"seed={2**63}")
    assert ended.code == 0, ended.said
    assert ended.summary["seed"] == 2**63 and ended.summary["updates"] == 125  # (600 - 100) / 4


# --- what cannot train, what cannot end, what trains something else --------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedule.frames_per_update=1e30"], "schedule.frames_per_update=1e[+]30 is out of range"),
        (["schedule.frames_per_update=49500"], "makes no update in budget_frames=50000 with learner.warmup"),
        (["schedule.episodes_per_update=60000"], "schedule.episodes_per_update=60000 makes no update"),
        (["schedule=sync", "schedule.frames_per_round=160000"], "_round=160000 is more than budget_frames=50000"),
        (["schedule=sync", "schedule.episodes_per_round=100000"], "even if each has one frame: set schedule"),
        (["learner.learning_rate=1e-30"], "learner.learning_rate=1e-30 is out of range"),
        (["algorithm.target_tau=1e-30"], "algorithm.target_tau=1e-30 is out of range"),
        (["algorithm.gamma=1e-9"], "algorithm.gamma=1e-09 is out of range"),
        (["schedule.frames_per_update=1e-9"], "schedule.frames_per_update=1e-09 is out of range"),
        (["evaluator.final_episodes=1000000000"], "evaluator.final_episodes=1000000000 is out of range"),
        (["budget_frames=900000000000", "schedule.frames_per_update=0.001"], "have no end"),
        (["replay.priority_alpha=1e30"], "replay.priority_alpha=1e[+]30 is out of range"),
        (["algorithm=c51", "algorithm.v_max=1e-30"], "algorithm.v_max=1e-30 is too small to be told from 0"),
        (["algorithm=c51", "algorithm.v_min=99999.99", "algorithm.v_max=100000"], "too close together to be told"),
        (["algorithm.hidden_sizes=[65536,65536,65536,65536]"], "GiB in all, and this machine has"),
        ([f"algorithm.hidden_sizes=[{','.join(['4'] * 101)}]"], "names 101 layers"),
        (["learner.batch_size=5000000"], "learner.batch_size=5000000 is out of range"),
        (["learner.num_threads=100000"], "learner.num_threads=100000 is out of range"),
        (["learner.device=cuda:99999999999999"], "learner.device=cuda:99999999999999 is none of"),
        (["logger.wandb_project="], "logger.wandb_project is empty"),
        (["run_dir='a\nb'"], "holds a character that cannot be printed"),
        (["run_dir=a\x00b"], "holds a character that cannot be printed"),
        (["env.kwargs.path=\udcff"], "is no text that UTF-8 can hold"),
        ([f"run_dir={'a' * 300}"], "a name in it has more than 255 bytes"),
        ([f"env.id={'a' * 201}"], "is too long: it may have 200 bytes"),
        (["opponents.checkpoint_paths=[[1]]"], "opponents.checkpoint_paths=.* does not fit"),
        (["agents.overrides=${seed}"], "agents.overrides=0 does not fit"),
        (["env.kwargs=${algorithm.hidden_sizes}"], "does not fit|cannot be put together"),
        (["algorithm.hidden_sizes=${seed}"], "does not fit|cannot be put together"),
        (["agents.frozen=[[a]]"], "agents.frozen=.* does not fit"),
        (["agents.start_from={a: [b]}"], "agents.start_from=.* does not fit"),
        (["algorithm.double=7"], "algorithm.double=7 does not fit"),
    ],
)  # fmt: skip
def test_2_the_impossible_is_refused_with_its_numbers(arguments: list[str], words: str) -> None:
    assert re.search(words, refused(*arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learner.learning_rate=1e-10"], "learner.learning_rate=1e-10 is unusual: values from 1e-06 to 0.1"),
        (["schedule.frames_per_update=600"], "schedule.frames_per_update=600 in budget_frames=50000 with"),
        (["algorithm.target_tau=null", "algorithm.target_update_every_updates=100000"], "more than the 24500 updates"),
        (["algorithm.target_tau=0.000001"], "with 24500 updates: the target network stays nearly as it began"),
        (["learner.publish_every_updates=30000"], "act by the first weights all along"),
        (["collector.epsilon_decay_frames=1000000"], "still 0.95 at the end, not collector.epsilon_end=0.04"),
        (["collector.epsilon_end=1.0"], "nearly every action is random to the end"),
        (["collector.epsilon_start=0", "collector.epsilon_end=0"], "nobody explores"),
        (["collector=apex", "collector.apex_epsilon=0"], "nobody explores"),
        (["replay.priority_alpha=5"], "replay.priority_alpha=5.0 is unusual: values from 0 to 1"),
        (["algorithm=c51", "algorithm.v_min=5", "algorithm.v_max=10"], "leaves out 0"),
        (["evaluator.final_episodes=1000000"], "evaluator.final_episodes=1000000 is unusual"),
        (["evaluator.every_frames=0"], "evaluator.stop_at_return=500 does nothing"),
        (["learner.num_threads=64"], "learner.num_threads=64 is more than the 4 cores at hand"),
        (["preset=tictactoe_selfplay", "opponents.snapshot_every_frames=1000000"], "no snapshot is taken"),
        (["learner.learning_rate_end=0.05"], "it will rise"),
        (["learner.learning_rate_schedule=constant", "learner.learning_rate_end=0"], "_end=0 does nothing"),
        (["learner.learning_rate_warmup_updates=900000"], "the learning rate never reaches learner.learning_rate="),
        (["schedule=sync", "schedule.updates_per_round=100000000"], "at a millisecond each that is"),
        (["schedule=shared_gradient", "schedule.num_agents=64"], "schedule.num_agents=64 is more than the 4 cores"),
        (["learner.prefetch_batches=900", "learner.batch_size=1000"], "rows are gathered at once"),
        (["faults.worker_memory_mb=100"], "faults.worker_memory_mb=100 is unusual: values from 256 to 100000000"),
        (["schedule.tolerance_frames=1000000"], "collection never waits for learning"),
        (["checkpoint.save_every_seconds=1e8"], "checkpoint.save_every_seconds=100000000.0 is unusual"),
    ],
)  # fmt: skip
def test_2_the_improbable_is_warned_of_in_one_sentence(arguments: list[str], words: str) -> None:
    found = load(arguments, cores=4).warnings
    assert any(words in sentence for sentence in found), found
    assert all("\n" not in sentence for sentence in found)


def test_2_every_agent_frozen_trains_nothing(tmp_path: Path) -> None:
    config = load(["env.id=Counting", "env.backend=counting", "preset=generic", "agents.frozen=[agent]"], 4).config
    with pytest.raises(ConfigError, match="agents.frozen names every agent of Counting .agent., so nothing"):
        plan_agents(config, [("agent", None)], tmp_path, tmp_path)  # type: ignore[list-item]


# --- advice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["learner.batch_size=60000"], ["budget_frames=500"], ["budget_frames=100"], ["budget_frames=2"],
        ["learner.warmup_frames=70000"], ["replay.capacity_frames=10"], ["algorithm.n_step=9000"],
        ["collector.num_workers=200", "schedule.tolerance_frames=64"], ["schedule.frames_per_update=49500"],
        ["schedule.episodes_per_update=60000"], ["schedule=sync", "schedule.frames_per_round=1000"],
        ["schedule=sync", "schedule.frames_per_round=1000000"],
        ["schedule=sync", "schedule.episodes_per_round=100000"], ["algorithm=rainbo"],
        ["algorithm=c51", "algorithm.v_min=-1", "algorithm.v_max=1e-30"], ["algorithm.v_min=-1"],
        ["schedule=synch"], ["learner.device=gpu"], ["algorithm=munchausen", "algorithm.double=true"], ["pong"],
        ["budget_frames=1e6"], ["run_dir=[a"], ["run_dir=a,b"], ["env=LunarLander-v3"], ["env=generic"],
        ["algorithm=c51", "algorithm.prioritized=true", "replay.initial_priority=collector"],
        ["agents.overrides.a.learner.batch_size=2000"],
    ],
)  # fmt: skip
def test_2_advice_is_taken_by_the_shell_and_leads_to_no_other_error(arguments: list[str]) -> None:
    """What a sentence tells to type behind "set", "write", "as" or "mean" is typed, and the run can be made at once."""
    sentence = refused(*arguments)
    advice = re.split(r"\b(?:set|write|as|mean|so|nearest is) ", sentence)[-1]
    advised = [word.rstrip(",?") for word in shlex.split(advice) if re.match(r"[a-z_.]+=[^ ]", word)]
    assert advised, sentence
    typed = {one.partition("=")[0] for one in advised}
    typed |= {"env"} & {key.partition(".")[0] for key in typed}  # env.id=NAME in place of env=NAME
    kept = [word for word in arguments if "=" in word and word.partition("=")[0] not in typed]
    load([*kept, *advised], cores=4)


def test_2_text_is_taken_as_it_was_typed() -> None:
    for text in ("runs/lr=0.1", "runs/try (2)", "1e5", "007", "true", "läuft", "a;b", "a'b", "😀"):
        assert load([f"run_dir={text}"], cores=4).config.run_dir == str(Path(text).absolute())
    assert load(["run_dir=null"], cores=4).config.run_dir is None
    assert load(["env.kwargs.rule=a=b"], cores=4).config.env.kwargs == {"rule": "a=b"}
    assert load(["seed=3", "run_dir='run_${seed}=x'"], cores=4).config.run_dir == str(Path("run_3=x").absolute())


@pytest.mark.parametrize(
    "words",
    [["--cfg", "job", "--resolve", "seed=${nope}"], ["--cfg", "job", "hydra.x=1"], ["-m", "seed=range(0,1e18)"]],
)
def test_2_what_hydra_is_handed_is_looked_at_before(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1


def test_2_a_name_is_near_only_if_it_is() -> None:
    names = "apex, c51, crossq, ddpg, dqn, droq, iqn, munchausen, qrdqn, rainbow, redq, sac, sac_discrete, td3, tqc"
    assert refused("algorithm=ppo").endswith(f"is none of {names}")
    assert nearest("momentum_of_nothing", config_keys()) is None
    assert "the nearest is algorithm=rainbow" in refused("algorithm=rainbo")


def test_2_a_yaml_with_a_key_of_its_own(tmp_path: Path) -> None:
    for text in ("my_key: 1\n", "learner: {my_key: 1}\n", "learner: 3\n", "1: 2\n"):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ConfigError) as error:
            from_yaml(tmp_path / "config.yaml")
        assert "\n" not in str(error.value) and not str(error.value).endswith(":")
        assert str(tmp_path) in str(error.value)


# --- a run that stopped early ----------------------------------------------------------------------------------------


def test_2_a_run_that_stopped_early_goes_on_to_its_budget(tmp_path: Path) -> None:
    kept = load(["run_dir=x", "budget_frames=50000", "evaluator.stop_at_return=100"], cores=4).config
    (tmp_path / "config.yaml").write_text(to_yaml(kept))
    summary = {"status": "finished", "frames": 20_000, "solved_frames": 20_000}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    told = load([f"resume={tmp_path}"], cores=4).finished
    assert "evaluator.stop_at_return=100.0 was reached after 20000 frames: set evaluator.stop_at_return=null" in told
    assert load([f"resume={tmp_path}", "evaluator.stop_at_return=null"], cores=4).finished == ""
    assert load([f"resume={tmp_path}", "evaluator.stop_at_return=200"], cores=4).finished == ""
    assert "is finished" in load([f"resume={tmp_path}", "evaluator.stop_at_return=50"], cores=4).finished
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "solved_frames": None, "frames": 50_000}))
    assert "raise budget_frames above 50000" in load(
        [f"resume={tmp_path}", "evaluator.stop_at_return=null"], cores=4
    ).finished  # fmt: skip


def test_2_resume_without_a_return_to_stop_at_trains_on(run: Any) -> None:
    first = run(
        "env.id=Hurting/Plain-v0", "evaluator.every_frames=100", "evaluator.stop_at_return=0", "budget_frames=1500",
        "schedule=sync", "schedule.frames_per_round=200",
    )  # fmt: skip
    assert first.code == 0 and first.summary["frames"] < 1_500, first.said
    again = run(f"resume={first.run_dir}", "evaluator.stop_at_return=null", quick=False)
    assert again.code == 0, again.said
    assert again.summary["frames"] == 1_500 and again.summary["reason"] == "the budget is used up"


# --- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "1e3", "٣", "9" * 400, "2.5"])
@pytest.mark.parametrize("name", ["SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"])
def test_2_variables_of_the_job_that_are_no_numbers(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}=.* is no positive whole number: set it right, or unset it"):
        check_machine()


def test_2_a_temporary_folder_whose_name_is_too_long_for_sockets(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / ("t" * 76)
    folder.mkdir()
    ended = run("env.id=Hurting/Plain-v0", TMPDIR=str(folder))
    assert ended.code == 2 and not ended.run_dir.exists()
    assert re.fullmatch(r"error: TMPDIR=\S+ \(?.*is too long: sockets lie in it, .* as TMPDIR=/tmp\n", ended.err)


@pytest.mark.slow
def test_fuzz_finds_nothing_on_the_loader() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", "--loader", "60", "--main", "0", "--seed", "5"], cwd=root,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and " no " not in done.stdout, done.stdout + done.stderr


def test_fuzz_has_an_opinion_of_every_number() -> None:
    keys = config_keys()
    assert set(NUMBERS) == {key for key, item in keys.items() if "range" in item.metadata}
    assert MAY_BE_NULL == {key for key, item in keys.items() if "None" in item.type}


def test_defaults_need_no_warning() -> None:
    assert load([], cores=4).warnings == []
    assert isinstance(load([], cores=4).config, Config)
