"""The console script: its commands, and the words that a shell completes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.commands import completion, console, names
from trainer.config.sections import config_keys


def test_it_lists_its_commands_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in console.COMMANDS)
    assert console.main([]) == 2
    assert capsys.readouterr().err == said
    assert console.main(["evl"]) == 2
    assert capsys.readouterr().err == "error: evl is no command; the nearest is eval; trainer --help lists all\n"
    assert console.main(["--version"]) == 0
    assert "torch 2." in capsys.readouterr().out


def test_a_command_is_given_its_arguments(cards_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["eval", str(cards_run), "--episodes", "2"]) == 0
    assert '"episodes": 2' in capsys.readouterr().out
    assert console.main(["eval", str(cards_run / "best" / "policy.safetensors"), "--episodes", "2"]) == 0
    assert '"episodes": 2' in capsys.readouterr().out


def test_programs_are_named_as_they_were_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for called, name in (("/usr/bin/trainer", "trainer eval"), ("/x/trainer/eval.py", "python -m trainer.eval")):
        monkeypatch.setattr(sys, "argv", [called])
        assert names.program("eval") == name


def test_every_entry_of_python_m_is_a_command() -> None:
    root = Path(console.__file__).parent.parent
    entries = {path.stem for path in root.glob("*.py")} - {"__init__", "reading", "node"}  # a run starts its nodes
    assert entries <= console.COMMANDS.keys()


@pytest.fixture(scope="module")
def words() -> completion.Words:
    return completion.words()


def test_all_words_are_known(words: completion.Words) -> None:
    assert {key.partition("=")[0] for key in words["run"]} >= set(config_keys())
    assert {"preset=lunarlander", "learner.batch_size=", "learner.prefetch=true", "--help"} <= set(words["run"])
    assert {"--episodes", "--policy", "--help"} <= set(words["eval"])
    assert words["completion"] == ["bash", "zsh", "fish"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trainer ev", ["eval "]),
        ("trainer eval RUN --epis", ["--episodes "]),
        ("trainer run schedule=sequen", ["sequential "]),
        ("trainer run seed=1 learner.learning_rate_e", ["learner.learning_rate_end="]),
        ("trainer run learner.prefetch=t", ["true "]),
        ("trainer completion z", ["zsh "]),
    ],
)
def test_bash_completes(line: str, expected: list[str], words: completion.Words, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(completion.bash(words))
    split = line.replace("=", " = ").split()
    program = (
        f"source ./script; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({' '.join(split)}); "
        f"COMP_CWORD={len(split) - 1}; _trainer; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n").split("\n") == expected, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(shell: str, words: completion.Words, tmp_path: Path) -> None:
    text = completion.SHELLS[shell](words)
    assert "preset=lunarlander" in text and "--episodes" in text
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True)
