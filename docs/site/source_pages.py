"""A hook of MkDocs: the site has a page for each file of the code that a page links to, and one for each notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\]\(((?:\.\./)+[^)#]+\.(py|yaml|sh))\)")
LANGUAGES = {"py": "python", "yaml": "yaml", "sh": "bash"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file that a page links to."""
    root = Path(config.config_file_path).parent
    linked = {
        normpath(f"docs/{PurePosixPath(page.src_uri).parent}/{link}"): LANGUAGES[kind]
        for page in files.documentation_pages()
        for link, kind in LINK.findall(Path(page.abs_src_path).read_text())
    }
    for name, language in sorted(linked.items()):
        text = f"# `{name}`\n\n````{language}\n{(root / name).read_text()}````\n"
        files.append(File.generated(config, f"source/{name}.md", content=text))
    for notebook in sorted((root / "docs" / "notebooks").glob("*.ipynb")):
        text = as_markdown(json.loads(notebook.read_text()))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
    return files


def as_markdown(notebook: dict[str, Any]) -> str:
    """The cells of a notebook, with what they printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain")
            if text and "image/png" not in output.get("data", {}):
                parts.append(f"```text\n{''.join(text).rstrip()}\n```")
            elif text:
                parts.append(f'<img alt="a plot" src="data:image/png;base64,{output["data"]["image/png"].strip()}">')
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links lead to these pages."""
    folder = PurePosixPath(page.file.src_uri).parent

    def to_page(link: re.Match[str]) -> str:
        name = normpath(f"docs/{folder}/{link[1]}")
        return f"]({relpath(f'source/{name}.md', str(folder))})"

    return LINK.sub(to_page, markdown)
