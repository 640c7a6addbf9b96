"""docs/configuration.md says what the dataclasses say, and every key has a meaning there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from trainer.config import reference
from trainer.config.sections import config_keys

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"


def test_the_page_is_what_the_dataclasses_give() -> None:
    assert PAGE.read_text() == reference.markdown(), "python -m trainer.config.reference > docs/configuration.md"


def test_every_key_has_a_line_with_a_meaning() -> None:
    lines = [line.split(" | ") for line in reference.markdown().splitlines() if line.startswith("| `")]
    meanings = {cells[0].strip("| `"): cells[4].strip(" |") for cells in lines}
    assert set(meanings) == set(config_keys())
    assert [key for key, meaning in meanings.items() if not re.match(r"[A-Z0-9(`].{8,}", meaning)] == []


def test_a_meaning_is_the_comment_behind_a_field_or_above_it_and_is_inherited() -> None:
    @dataclasses.dataclass
    class Base:
        left: int = 0  # the left one, of "# no comment"
        # above,
        # on two lines
        right: int = 1
        bare: str = "# no comment"

    @dataclasses.dataclass
    class Section(Base):
        left: int = 2

    assert reference.meanings(Section) == {
        "left": 'the left one, of "# no comment"',
        "right": "above, on two lines",
        "bare": "",
    }
