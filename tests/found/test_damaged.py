"""Whatever was done to a file of a run: whoever reads it says so in one sentence, or goes on without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.commands import eval, play, run
from trainer.commands import plot as plot_command
from trainer.commands import timeline as timeline_command
from trainer.config.sections import Config
from trainer.reading import ReadError, read_jsonl
from trainer.run_folder import checkpoint
from trainer.run_folder.checkpoint import numbered
from trainer.training.train import train

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "not UTF-8": lambda whole: whole[:10] + b"\xff\xfe\x80" + whole[10:],
    "random": lambda whole: np.random.default_rng(0).bytes(500),
    "zeros": lambda whole: bytes(len(whole)),
    "a list": lambda whole: b"[1, 2, 3]\n",
    "another object": lambda whole: b'{"frames": "many", "status": [], "upto": "all", "wall_s": {}}\n',
    "a number of 5,000 digits": lambda whole: b'{"frames": ' + b"9" * 5_000 + b"}\n",
    "brackets without end": lambda whole: b"[" * 20_000 + b"\n",
    "lines cut": lambda whole: whole.replace(b":", b"", 3).replace(b",", b"\n", 2),
}
SMALL = {"hidden_sizes": [16]}


@pytest.fixture(scope="module")
def trained(make_config, tmp_path_factory) -> Path:
    config: Config = make_config(
        tmp_path_factory.mktemp("trained") / "run", budget_frames=600, schedule={"name": "sequential"},
        evaluator={"every_frames": 300}, env={"id": "CartPole-v1", "backend": "gymnasium"}, telemetry={"trace": True},
        algorithm=SMALL,
    )  # fmt: skip
    train(config, ["test"])
    return Path(str(config.run_dir))


@pytest.fixture
def again(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "again"))


def outcome(main: Callable[[list[str]], int], arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What a program says of it; it ends with 0, 1 or 2 and without a traceback, and an error is one line."""
    capfd.readouterr()
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse's own refusals
        code = int(end.code or 0)
    said = capfd.readouterr()
    assert code in (0, 1, 2) and "Traceback" not in said.out + said.err, (arguments, said)
    errors = [line for line in said.err.splitlines() if "error: " in line]
    assert len(errors) == (code != 0), (arguments, said)
    return errors[0] if errors else ""


@pytest.mark.parametrize(
    ("name", "main", "words", "damages"),
    [
        ("config.yaml", eval.main, ["--episodes", "1"], DAMAGES),
        ("best/policy.safetensors", eval.main, ["--episodes", "1"], DAMAGES),
        ("best/policy.safetensors", play.main, ["--max-steps", "1"], ("half", "random")),
        ("last/policy.safetensors", eval.main, ["--episodes", "1", "--policy", "last"], ("empty", "a list")),
        ("trace.json", timeline_command.main, [], DAMAGES),
        ("metrics.jsonl", plot_command.main, [], DAMAGES),
        ("config.yaml", plot_command.main, [], ("not UTF-8", "random", "brackets without end")),
    ],
)
def test_who_only_reads_says_it_in_one_sentence(name, main, words, damages, again, capfd):
    path = again / name
    whole = path.read_bytes()
    for damage in damages:
        path.write_bytes(DAMAGES[damage](whole))
        error = outcome(main, [str(again), *words], capfd)
        assert not error or str(path) in error, (damage, error)
        assert error or main is plot_command.main, damage  # a curve is drawn of what is left


@pytest.mark.parametrize("damage", ["half", "not UTF-8"])
def test_a_run_goes_on_without_what_is_damaged(damage, again, capfd):
    """Of everything but its configuration: policies, the newest checkpoint, the workers' states, rows, figures."""
    newest, upto = numbered(again / "checkpoints")[-1], next(again.glob("replay/*/upto.json"))
    names = ["summary.json", "metrics.jsonl", "metrics.csv", "last/policy.safetensors", "best/policy.safetensors",
             "checkpoints/run.pt", "manifest.txt", "versions.json", "checkpoints/collector_0.pt"]  # fmt: skip
    for path in (newest, upto, *(again / name for name in names)):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert not outcome(run.main, [f"resume={again}", "budget_frames=900"], capfd)
    assert checkpoint.load(again / "last/policy.safetensors")["frames"] >= 900
    assert json.loads((again / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("damage", ["empty", "random", "another object"])
def test_damage_to_a_few_files_costs_little(damage, again, capfd):
    for name in ("summary.json", "metrics.jsonl", "metrics.csv"):
        (again / name).write_bytes(DAMAGES[damage]((again / name).read_bytes()))
    upto = next(again.glob("replay/*/upto.json"))
    upto.write_bytes(DAMAGES[damage](upto.read_bytes()))
    assert not outcome(run.main, [f"resume={again}", "budget_frames=900"], capfd)
    said = (again / "log.txt").read_text()
    assert f"{upto} is damaged" in said and "the replay of agent_0 is gone" in said, said


def test_files_of_another_kind_or_network_are_refused(again, make_config, capfd, tmp_path):
    other: Config = make_config(
        tmp_path / "other", budget_frames=600, schedule={"name": "sequential"}, algorithm={"hidden_sizes": [24]},
        env={"id": "CartPole-v1", "backend": "gymnasium"},
    )  # fmt: skip
    train(other, ["test"])
    theirs = Path(str(other.run_dir))
    best, newest = again / "best/policy.safetensors", numbered(again / "checkpoints")[-1]
    shutil.copy(newest, best)
    assert "holds no policy" in outcome(eval.main, [str(again), "--episodes", "1"], capfd)
    shutil.copy(theirs / "best/policy.safetensors", best)
    assert "weights where the agent's network has" in outcome(eval.main, [str(again), "--episodes", "1"], capfd)
    assert "weights where the agent's network has" in outcome(play.main, [str(again), "--max-steps", "1"], capfd)
    shutil.copy(numbered(theirs / "checkpoints")[-1], newest)
    error = outcome(run.main, [f"resume={again}", "budget_frames=900"], capfd)
    assert "is of another network or environment (its network has other layers)" in error
    shutil.copy(theirs / "best/policy.safetensors", newest)  # a policy instead of an agent
    torch.save({"weights": torch.zeros(3)}, best)
    assert not outcome(run.main, [f"resume={again}", "budget_frames=900"], capfd)
    said = (again / "log.txt").read_text()
    assert "is another kind of checkpoint (it has no frames_of_workers)" in said
    assert checkpoint.load(best)["frames"] >= 900


def test_damaged_lines_cost_themselves_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\xff\n[2]\n{"a": 3}\n{"a": 4')
    rows, problem = read_jsonl(path)
    assert rows == [{"a": 1}, {"a": 3}]
    assert problem == f"{path} is damaged: 2 of its 4 lines, line 2 first, cannot be read and are left out"
    with pytest.raises(ReadError, match="cannot be read .*No such file"):
        read_jsonl(tmp_path / "none")
