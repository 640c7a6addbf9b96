"""The five lines of docs/python.md in a notebook, twice in one kernel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def five_lines() -> str:
    """The first block of Python in the page."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_there_are_five() -> None:
    assert len(list(filter(None, five_lines().splitlines()))) == 5


@pytest.mark.slow
def test_five_lines_run_in_a_notebook_and_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    ipykernel = pytest.importorskip("ipykernel.kernelspec")
    ipykernel.write_kernel_spec(tmp_path / "share" / "jupyter" / "kernels" / "python3")  # of this Python
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    again = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    cells = [five_lines(), five_lines().replace("runs/five", "runs/again"), again]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    first, second, last = ("".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells)
    for said in (first, second):
        mean, action = said.strip().splitlines()[-2:]
        assert 0 < float(mean) <= 500 and action in ("0", "1")
    assert last.strip() == "True"
    assert sys.version_info >= (3, 10)
