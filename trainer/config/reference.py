"""Every key of the configuration as a page: `python -m trainer.config.reference > docs/configuration.md`.

The meaning of a key is the comment at its field: behind the field, or in the lines directly above it.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from trainer.config.algorithms import ALGORITHMS, keys_of
from trainer.config.fields import bounds_text, plain
from trainer.config.sections import Config

HEAD = """\
# Every configuration key

`python -m trainer.config.reference > docs/configuration.md` writes this page from the dataclasses in
`trainer/config/sections.py` and `trainer/config/algorithms.py`.

    python -m trainer.run learner.batch_size=64            # a key
    python -m trainer.run preset=lunarlander               # a file of configs/preset/, which sets several keys
    python -m trainer.run preset=lunarlander --cfg job     # every key with the value that this run would have

- Groups (`preset=`, `env=`, `algorithm=`, `collector=`, `replay=`, `learner=`, `schedule=`, `logger=`) choose a file of
  `configs/`. What you type wins over the files. The defaults below are those without any file.
- `null` leaves a value out. Where null means that the value is computed, the meaning says how.
- A value outside its range is refused before the run starts. An unknown key is refused with the nearest known one.
- A run writes its complete configuration to `config.yaml` in its folder.
"""
SETTINGS = "These keys stand at the top level."


def markdown() -> str:
    """The text of docs/configuration.md."""
    parts = [HEAD, _table("Run", SETTINGS, "", Config, [item for item in fields(Config) if not _section(item)])]
    for item in fields(Config):
        section = _section(item)
        if section is None:
            continue
        name = item.name
        text = _sentence(inspect.getdoc(item.default_factory) or "")  # type: ignore[arg-type]
        if "keys" in item.metadata:  # the keys of all algorithms in one class
            text = "Keys of the algorithm. **Of** names the algorithms that have the key; another one refuses it."
            parts.append(_table(f"`{name}`", text, f"{name}.", section, list(fields(section)), owners()))
        else:
            parts.append(_table(f"`{name}`", text, f"{name}.", section, list(fields(section))))
    return "".join(parts)


def owners() -> dict[str, str]:
    """The algorithms that have a key, by the key's name."""
    names = dict.fromkeys(key for entry in ALGORITHMS.values() for key in keys_of(entry.section))
    having = {key: [name for name, entry in ALGORITHMS.items() if key in keys_of(entry.section)] for key in names}
    return {key: "all" if len(found) == len(ALGORITHMS) else ", ".join(found) for key, found in having.items()}


def meanings(section: type) -> dict[str, str]:
    """The comments at the fields of a dataclass and of its bases, by the field's name; "" where there is none."""
    found: dict[str, str] = {}
    for kind in section.__mro__:
        if not is_dataclass(kind):
            continue
        try:
            source = inspect.getsource(kind)
        except OSError:  # it was made by `make_dataclass`, and all of its fields are of its bases
            continue
        for name, text in _comments(source):
            found[name] = found.get(name) or text
    return found


def _section(item: Field[Any]) -> Any:
    """The dataclass of a section of `Config`; None for a key."""
    kind = item.metadata["keys"]() if "keys" in item.metadata else item.default_factory
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _comments(source: str) -> Iterator[tuple[str, str]]:
    """Name and comment of each field in the source of a class."""
    source = textwrap.dedent(source)
    comments, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
            if not token.line[: token.start[1]].strip():
                alone.add(token.start[0])
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = [comments[node.end_lineno]] if node.end_lineno in comments else []
            above = node.lineno - 1
            while above in alone:
                lines.insert(0, comments[above])
                above -= 1
            yield node.target.id, " ".join(lines)


def _table(
    title: str, text: str, prefix: str, section: type, items: list[Field[Any]], of: Mapping[str, str] | None = None
) -> str:
    """A heading, a sentence and a table with a line for each field."""
    known = meanings(section)
    head, rule = "| key | type | default | values | meaning |", "|---|---|---|---|---|"
    if of is not None:
        head, rule = f"{head} of |", f"{rule}---|"
    lines = [f"\n## {title}\n", text, "", head, rule]
    for item in items:
        cells = [f"`{prefix}{item.name}`", _type(item), f"`{_default(item)}`", _values(item)]
        cells.append(_sentence(known.get(item.name, "")))
        if of is not None:
            cells.append(of[item.name])
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _type(item: Field[Any]) -> str:
    return str(item.type).replace(" | None", " or null").replace("dict[str, Any]", "dict")


def _default(item: Field[Any]) -> str:
    value = item.default
    if value is MISSING:
        assert item.default_factory is not MISSING
        value = item.default_factory()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return plain(value)
    return str(value).replace("'", "")


def _values(item: Field[Any]) -> str:
    if "choices" in item.metadata:
        choices = ", ".join(f"`{choice}`" for choice in item.metadata["choices"])
        return f"{choices}, or an import path" if "part" in item.metadata else choices
    return bounds_text(*item.metadata["range"]) if "range" in item.metadata else ""


def _sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    text = text.strip().partition("\n\n")[0].replace("\n", " ")
    return text and text[0].upper() + text[1:] + ("" if text.endswith((".", ")", "?")) else ".")


if __name__ == "__main__":
    sys.stdout.write(markdown())
