"""The README's size, the links of all pages, and the commands that they show."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml

from trainer.commands.console import COMMANDS
from trainer.commands.run import main
from trainer.config.compose import load

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = PAGES[0].read_text()
LINK = re.compile(r"\]\(([^)\s]+)\)")
PLACEHOLDERS = ("RUN", "NAME", "VALUE", "PATH", "SomeInstalled", "...", "resume=", "from=", "<", "[schedule.")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```[^`]*```|^ {4}.*$", "", text, flags=re.M)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)$", prose(text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    assert len(re.findall(r"!\[", README)) <= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(prose(page.read_text())):
        name, _, anchor = link.partition("#")
        if "://" in link or name.startswith("mailto:"):
            continue
        target = (page.parent / name).resolve() if name else page
        if page.name == "notes.md" and not target.exists():  # it is a part of docs/learning.md, one folder up
            target = (page.parent.parent / name).resolve()
        assert target.exists(), f"{page.relative_to(ROOT)}: {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page.relative_to(ROOT)}: {link}"


def commands() -> list[str]:
    """The command lines of training that the pages show, without those that need something of the reader's."""
    lines = [line for page in PAGES for line in page.read_text().splitlines() if line.startswith("    ")]
    shown = [line.partition(" #")[0].strip() for line in lines]
    trains = [line for line in shown if re.match(r"(python -m )?trainer[ .]run( |$)", line)]
    return sorted(
        {
            line
            for line in trains
            if " -" not in line.replace("python -m", "") and not any(word in line for word in PLACEHOLDERS)
        }
    )


def test_every_other_command_of_the_pages_exists_and_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of console commands; the options of `run` are Hydra's and are tried above."""
    lines = [line.partition(" #")[0] for page in PAGES for line in page.read_text().splitlines()]
    found = [match for line in lines if (match := re.search(r"(?:python -m trainer\.|^ +trainer )(\w+)(.*)", line))]
    helped: dict[str, str] = {}
    for name, words in (match.groups() for match in found):
        assert name in COMMANDS or name in ("completion", "config", "telemetry"), name
        if name in COMMANDS and name != "run":
            if name not in helped:
                with pytest.raises(SystemExit):
                    resolve_name(COMMANDS[name].main)(["--help"])
                helped[name] = capsys.readouterr().out
            unknown = [word for word in re.findall(r"(?<!\S)--[a-z-]+", words) if word not in helped[name]]
            assert not unknown, f"trainer.{name} has no {unknown}"
    assert {"eval", "play", "plot", "report", "tune", "push", "league", "export_dataset", "timeline"} <= set(helped)


def test_environment_and_network_of_the_pages_learn_to_catch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page, file in (("your_environment.md", "catch.py"), ("your_network.md", "nets.py")):
        text = (ROOT / "docs" / page).read_text()
        (tmp_path / file).write_text(text.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    words = ["env.id=catch:Catch", "env.kwargs.size=5", "algorithm.network=nets:network", "schedule=sequential"]
    few = ["budget_frames=6_000", "collector.epsilon_decay_frames=3_000", "learner.warmup_frames=500"]
    short = ["learner.learning_rate=1e-3", "evaluator.every_frames=0", "logger.terminal=none", "learner.device=cpu"]
    assert main([*words, *few, *short, f"run_dir={tmp_path / 'run'}"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["eval_return_mean"] > 0.9


def test_every_command_of_the_pages_is_a_valid_configuration() -> None:
    found = commands()
    assert len(found) > 60
    for line in found:
        words = shlex.split(re.sub(r" {3,}.*", "", line))
        first = words.index("run") if "run" in words else words.index("trainer.run")
        load([word for word in words[first + 1 :] if not word.startswith("learner.device=cuda")], cores=8)


def test_citation_and_changelog_name_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert version is not None
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version[1]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1] == version[1]  # type: ignore[index]
