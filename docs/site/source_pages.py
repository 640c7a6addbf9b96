"""A hook of MkDocs: a link from a page to a file of the code leads to a page of the site that shows this file."""

from __future__ import annotations

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
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links lead to these pages."""
    folder = PurePosixPath(page.file.src_uri).parent

    def to_page(link: re.Match[str]) -> str:
        name = normpath(f"docs/{folder}/{link[1]}")
        return f"]({relpath(f'source/{name}.md', str(folder))})"

    return LINK.sub(to_page, markdown)
