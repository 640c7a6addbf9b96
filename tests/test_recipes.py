"""The recipes of CONTRIBUTING.md, followed word by word in a copy of the source, all in one run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent

BACKEND = '''
"""Backend `halls`: corridors, as examples/corridor has them."""

from corridor.backend import Corridors


def make(env, num_envs, autoreset=True, render_mode=None):
    return Corridors(num_envs, autoreset, **env.kwargs)
'''
LOGGER = '''
"""Writes the frames of each row into a text file."""


class Frames:
    def __init__(self, folder):
        self.file = open(folder / "frames.txt", "w")

    def write(self, row):
        print(row["frames"], file=self.file)

    def event(self, event):
        pass

    def close(self, summary):
        print(summary["status"], file=self.file)
        self.file.close()


def open_frames(section, run, notify):
    return Frames(run.run_dir)
'''
SCHEDULE = '''
"""As `sequential`, under another name."""

from trainer.config.schedules import sequential

SCHEDULE = sequential.SCHEDULE
'''
EXPLORATION = '''

def never(config, num_streams, streams):
    """No exploration."""
    return lambda frames: (0.0, 0.0)
'''
PRESET = """\
# @package _global_
defaults:
  - override /env: generic

preset: hall
budget_frames: 600
algorithm:
  hidden_sizes: [16]
replay:
  capacity_frames: 1_000
learner:
  batch_size: 32
  warmup_frames: 100
evaluator:
  every_frames: 0
"""


def insert(path: Path, before: str, line: str) -> None:
    """Put a line in front of the first one that begins with `before`."""
    text = path.read_text()
    assert text.count(f"\n{before}") >= 1, f"{path} has no line {before}"
    path.write_text(text.replace(f"\n{before}", f"\n{line}\n{before}", 1))


def change(path: Path, old: str, new: str) -> None:
    """Put a text into the place of another one, which stands there once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {old} {text.count(old)} times"
    path.write_text(text.replace(old, new))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the source, with links as in the clone."""
    for name in ("trainer", "envs", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_parts_that_are_added_as_contributing_says_run_together(copy: Path) -> None:
    registries = copy / "trainer/config/registries.py"
    (copy / "envs/halls.py").write_text(BACKEND)
    insert(copy / "envs/backends.py", '    "envpool": Backend(', '    "halls": Backend("trainer.envs.halls:make"),')
    (copy / "trainer/telemetry/loggers/frames.py").write_text(LOGGER)
    insert(registries, '    "wandb": ', '    "frames": "trainer.telemetry.loggers.frames:open_frames",')
    (copy / "configs/logger/frames.yaml").write_text("name: frames\n")
    change(registries, "ACTIVATIONS = {", 'ACTIVATIONS = {"gelu": "torch.nn:GELU", ')
    change(registries, "EXPLORATIONS = {", 'EXPLORATIONS = {"never": "trainer.acting.exploration:never", ')
    with open(copy / "trainer/acting/exploration.py", "a") as file:
        file.write(EXPLORATION)
    (copy / "trainer/config/schedules/again.py").write_text(SCHEDULE)
    schedules = copy / "trainer/config/schedules/__init__.py"
    change(schedules, "from trainer.config.schedules import ", "from trainer.config.schedules import again, ")
    insert(schedules, '    "sync"', '    "again": again.SCHEDULE,')
    (copy / "configs/schedule/again.yaml").write_text("name: again\n")
    (copy / "configs/preset/hall.yaml").write_text(PRESET)
    words = [
        "preset=hall", "env.id=Hall", "env.backend=halls", "env.kwargs.length=6", "logger=frames", "schedule=again",
        "run_dir=run", "learner.device=cpu", "collector.num_workers=1", "evaluator.final_episodes=2",
        "algorithm.activation=gelu", "collector.exploration=never",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT / "examples")])}
    ended = subprocess.run(
        [sys.executable, "-m", "trainer.run", *words], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((copy / "run/summary.json").read_text())["frames"] >= 600
    assert (copy / "run/frames.txt").read_text().splitlines()[-1] == "finished"
    config = yaml.safe_load((copy / "run/config.yaml").read_text())
    assert (config["preset"], config["env"]["backend"], config["logger"]["name"]) == ("hall", "halls", "frames")
