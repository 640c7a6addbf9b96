"""The notebooks of docs/notebooks, and the README's lines of Python, run in a notebook and end without an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def executed(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a notebook by a kernel of this Python, which sees this clone; an error of a cell is raised."""
    nbclient, kernel = pytest.importorskip("nbclient"), pytest.importorskip("ipykernel.kernelspec")
    kernel.write_kernel_spec(folder / "share" / "jupyter" / "kernels" / "python3")
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "share" / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.mark.slow
def test_the_lines_of_the_readme_run_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, _ = pytest.importorskip("nbformat"), pytest.importorskip("onnxscript")
    block = (ROOT / "README.md").read_text().partition("    import trainer\n")[2].partition("\n\n")[0]
    lines = ["import trainer", *(line.removeprefix("    ") for line in block.splitlines())]
    assert len(lines) == 5
    executed(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("\n".join(lines))]), tmp_path, monkeypatch)
    assert (tmp_path / "policy.onnx").stat().st_size > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    for package in ("pandas", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    executed(nbformat.read(path, as_version=4), tmp_path, monkeypatch)
