"""The recipes of CONTRIBUTING.md, followed word by word in a copy of the source: all in one run, but for a role."""

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
KEYS = '''
@dataclass(frozen=True)
class PatientConfig(OneValueConfig):
    """patient."""

    name: str = "patient"
    patience: float = number(0.3, 0.0, 1.0, (0.05, 1.0))  # weight of errors that lower a value


'''
METRIC = 'Metric("patience", float, "", "Weight of errors that lower a value.", True),'
WATCHER = '''
"""Role `watcher`: writes its process id, and dies once.

Runs in: a process of its own. Sends: signs of life, errors. Stops when: the main process says so.
"""

import os
import signal
import time

from trainer.memory.pulse import signs_of
from trainer.roles import child


def run(config, path, pulse, pipe):
    """Body of the process."""
    child.begin(config, "watcher")
    beat, ending = signs_of(pulse)
    with child.reporting(pipe):
        first = not path.exists()
        path.write_text(str(os.getpid()))
        if first:
            os.kill(os.getpid(), signal.SIGKILL)
        while not ending():
            beat()
            time.sleep(0.02)
'''
WATCHERS = '''
"""The watcher as the main process sees it."""

from trainer.memory.pulse import new_pulse
from trainer.roles import watcher
from trainer.training.processes import Piped, spawn
from trainer.training.supervisor import Role


class Watcher:
    """One process."""

    def __init__(self, config, run_dir, supervisor):
        self._config, self._path, self._pulse = config, run_dir / "watcher.txt", new_pulse()
        self.supervised = supervisor.add(
            Role("watcher", lambda pid: f"the watcher (pid {pid})", self._begin, lambda: float(self._pulse[0]), 20.0)
        )

    def _begin(self):
        self._pulse = new_pulse()
        arguments = (self._config, self._path, self._pulse)
        return Piped(lambda pipe: spawn(watcher.run, (*arguments, pipe), "watcher"), str)

    def stop(self):
        self._pulse[1] = 1.0
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


def run(copy: Path, module: str, *words: str) -> str:
    """What a command of the copy says that succeeds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT / "examples")])}
    ended = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def add_algorithm(copy: Path) -> None:
    """Hysteretic Q-learning of examples/corridor, as an algorithm `patient` with a metric and a key."""
    keys = copy / "trainer/config/algorithms.py"
    insert(keys, "def _nothing(", KEYS)
    insert(
        keys, '    "apex": _DQN', '    "patient": AlgorithmEntry(PatientConfig, "trainer.algorithms.patient:build"),'
    )
    loss = (ROOT / "examples/corridor/loss.py").read_text()
    loss = loss.replace("from corridor.algorithm import Hysteretic", "from trainer.config.algorithms import Patient")
    loss = loss.replace("HystereticConfig", "PatientConfig").replace(
        "return value_algorithm(", "made = value_algorithm("
    )
    loss = loss.replace(
        "\n\n\ndef objective(",
        """
    return replace(made, diagnose=lambda batch: {**made.diagnose(batch), "patience": section.patience})\n\n
def objective(""",
    )
    loss = loss.replace(
        "from functools import partial", "from dataclasses import replace\nfrom functools import partial"
    )
    (copy / "trainer/algorithms/patient.py").write_text(loss)
    (copy / "configs/algorithm/patient.yaml").write_text("name: patient\n")
    insert(copy / "trainer/telemetry/rows.py", '    Metric("priority_beta"', f"    {METRIC}")


@pytest.mark.slow
def test_parts_that_are_added_as_contributing_says_run_together(copy: Path) -> None:
    registries = copy / "trainer/config/registries.py"
    add_algorithm(copy)
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
        "algorithm.activation=gelu", "collector.exploration=never", "algorithm=patient", "algorithm.patience=0.5",
    ]  # fmt: skip
    run(copy, "trainer.run", *words)
    assert json.loads((copy / "run/summary.json").read_text())["frames"] >= 600
    assert (copy / "run/frames.txt").read_text().splitlines()[-1] == "finished"
    config = yaml.safe_load((copy / "run/config.yaml").read_text())
    assert (config["preset"], config["env"]["backend"], config["logger"]["name"]) == ("hall", "halls", "frames")
    rows = [json.loads(line) for line in (copy / "run/metrics.jsonl").read_text().splitlines()]
    assert {row["patience"] for row in rows if row.get("patience") is not None} == {0.5}
    assert "`patience`" in run(copy, "trainer.telemetry.rows")
    (line,) = [line for line in run(copy, "trainer.config.reference").splitlines() if "`algorithm.patience`" in line]
    assert "Weight of errors that lower a value." in line and "patient" in line


@pytest.mark.slow
def test_a_role_that_is_added_as_contributing_says_is_watched_and_restarted(copy: Path) -> None:
    (copy / "trainer/roles/watcher.py").write_text(WATCHER)
    (copy / "trainer/training/watchers.py").write_text(WATCHERS)
    change(copy / "trainer/host/seeds.py", '    "gateway",\n)', '    "gateway",\n    "watcher",\n)')
    system = copy / "trainer/training/system.py"
    insert(system, "from trainer.training.supervisor", "from trainer.training.watchers import Watcher")
    insert(system, "    def __post_init__", "    watcher: Watcher = field(init=False)\n")
    insert(
        system, "        names = all_of(", "        self.watcher = Watcher(self.config, self.run_dir, self.supervisor)"
    )
    insert(system, "        self.evaluator.start()", "        self.watcher.supervised.start()")
    insert(system, "        self.evaluator.stop()", "        self.watcher.stop()")
    words = ["collector.num_workers=1", "evaluator.final_episodes=2", "learner.device=cpu", "logger.terminal=none"]
    run(copy, "trainer.run", "preset=cartpole", *words, "budget_frames=20000", "run_dir=run")
    log = (copy / "run/log.txt").read_text()
    assert log.count("the watcher (pid ") == 1 and "SIGKILL" in log and "another one takes its place" in log
    assert f"(pid {(copy / 'run/watcher.txt').read_text()})" not in log
    assert json.loads((copy / "run/summary.json").read_text())["status"] == "finished"
