"""The wheel, installed where nothing of the clone is seen, in a folder that has an `envs/` and a `configs/` itself."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TINY = [
    "preset=cartpole", "schedule=sequential", "budget_frames=400", "learner.warmup_frames=100", "learner.batch_size=32",
    "learner.device=cpu", "evaluator.every_frames=0", "evaluator.final_episodes=2", "replay.capacity_frames=1000",
    "logger.terminal=none", "run_dir=run",
]  # fmt: skip


def done(*command: str | Path, cwd: Path) -> str:
    """What a command that succeeds says; it sees no PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the clone, in which a build leaves nothing then."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("trainer", "envs", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    done(*pip, "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("torchrl_trainer-*.whl")
    return built


def test_the_wheel_holds_every_environment_and_configuration_as_a_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        kinds = {info.filename: stat.S_IFMT(info.external_attr >> 16) for info in archive.infolist()}
        for path in [*(ROOT / "envs").rglob("*.py"), *(ROOT / "configs").rglob("*.yaml")]:
            name = f"trainer/{path.relative_to(ROOT)}"
            assert kinds.pop(name) in (0, stat.S_IFREG), name
            assert archive.read(name) == path.read_bytes(), name
    others = {name.partition("/")[0] for name in kinds}
    assert {name.partition("-")[0] for name in others} == {
        "trainer",
        "torchrl_trainer",
    }  # the package and its dist-info
    assert not any(name.endswith(".yaml") for name in kinds)


@pytest.mark.slow
def test_an_installed_trainer_runs_beside_folders_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    done(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=tmp_path)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # The libraries of this environment: no .pth file in them is read, so an editable installation is not seen.
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    project = tmp_path / "project"
    for name in ("envs", "configs"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise RuntimeError('{name} is the user\\'s own')\n")
    said = done(python, "-c", "import trainer, trainer.reading; print(trainer.reading.__file__)", cwd=project)
    assert Path(said.strip()) == site / "trainer" / "reading.py"
    done(python, "-m", "trainer.run", *TINY, cwd=project)
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["frames"] >= 400
