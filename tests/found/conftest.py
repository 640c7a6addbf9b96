"""The real main, run as a user runs it, for the tests of what use has found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainer.config.run_files import RunFolder
from trainer.reading import read_jsonl
from trainer.telemetry import rows

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# A run of some seconds: one worker with four environments, 600 frames, an update for each tenth frame.
QUICK = [
    "env.import_modules=[hurting]", "collector.num_workers=1", "collector.envs_per_worker=4", "budget_frames=600",
    "learner.warmup_frames=100", "learner.batch_size=32", "replay.capacity_frames=1000", "algorithm.hidden_sizes=[16]",
    "evaluator.every_frames=0", "evaluator.final_episodes=2", "evaluator.episodes=2", "evaluator.num_envs=2",
    "learner.device=cpu", "logger.terminal=plain",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Args:
        code: its exit code.
        out: what it wrote on stdout.
        err: what it wrote on stderr.
        run_dir: the run's folder.
    """

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def said(self) -> str:
        """All that it wrote."""
        return self.out + self.err

    @property
    def summary(self) -> dict[str, Any]:
        """What RUN/summary.json holds."""
        return json.loads((self.run_dir / "summary.json").read_text())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of RUN/metrics.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]


def environment(**more: str) -> dict[str, str]:
    """Variables of a command that finds the environments of this folder."""
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **more}


def command(*arguments: str, module: str = "trainer.run") -> list[str]:
    """What starts one of the trainer's programs."""
    return [sys.executable, "-m", module, *arguments]


def _quick(arguments: Sequence[str], run_dir: Path, quick: bool) -> list[str]:
    """The words of a quick run, but for those that the test gives itself, and a folder for it."""
    named = {argument.partition("=")[0] for argument in arguments}
    words = [word for word in QUICK if quick and word.partition("=")[0] not in named]
    folder = [] if named & {"run_dir", "resume"} else [f"run_dir={run_dir}"]
    return [*words, *folder, *arguments]


@pytest.fixture
def run(tmp_path: Path, call: Callable[..., Any]) -> Callable[..., Ended]:
    """`run("env.id=Hurting/Plain-v0", "seed=3")`: a quick run of the real main in a folder of its own.

    It runs in the test's process (see `call`), its workers in theirs. `process=True` gives it a process of its own,
    and so do environment variables, which are all names but these: `name` is its folder's, `module` another program
    (which gets no arguments but the given ones), `quick=False` leaves out `QUICK`, `cwd` is where it is started.
    """

    def start(
        *arguments: str, name: str = "run", module: str = "trainer.run", quick: bool = True, cwd: Path | None = None,
        timeout: float = 120, process: bool = False, **variables: str,
    ) -> Ended:  # fmt: skip
        run_dir, cwd = tmp_path / name, cwd or tmp_path
        words = _quick(arguments, run_dir, quick) if module == "trainer.run" else list(arguments)
        if process or variables:
            done = subprocess.run(
                command(*words, module=module), cwd=cwd, env=environment(**variables), capture_output=True, text=True,
                timeout=timeout, errors="replace",
            )  # fmt: skip
            ended = Ended(done.returncode, done.stdout, done.stderr, run_dir)
        else:
            done = call(*words, module=module, cwd=cwd, timeout=timeout)
            ended = Ended(done.code, done.out, done.err, run_dir)
        metrics = RunFolder(run_dir).metrics
        if metrics.is_file():  # whatever the test is about, its metrics are those that are declared
            keys = {key for row in read_jsonl(metrics)[0] for key in row}
            assert [key for key in sorted(keys) if rows.declared(key) is None] == []
        return ended

    return start


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`begin("env.id=Hurting/Plain-v0")`: the same run as a process, for tests that strike it; killed at the end.

    Keywords are those of `run`, but `module`; `stdout` is where both of its streams go, `before` stands before
    the command.
    """
    processes: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str, name: str = "run", quick: bool = True, cwd: Path | None = None, stdout: Any = subprocess.PIPE,
        before: Sequence[str] = (), **variables: str,
    ) -> subprocess.Popen[str]:  # fmt: skip
        processes.append(
            subprocess.Popen(
                [*before, *command(*_quick(arguments, tmp_path / name, quick))],
                cwd=cwd or tmp_path,
                env=environment(**variables),
                stdout=stdout,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )  # fmt: skip
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
