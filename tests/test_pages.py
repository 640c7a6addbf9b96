"""The README's size, the links of all pages, and the commands that they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

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


def test_every_command_of_the_pages_is_a_valid_configuration() -> None:
    found = commands()
    assert len(found) > 60
    for line in found:
        words = shlex.split(re.sub(r" {3,}.*", "", line))
        first = words.index("run") if "run" in words else words.index("trainer.run")
        load([word for word in words[first + 1 :] if not word.startswith("learner.device=cuda")], cores=8)
