"""Runs that end or are struck in all kinds of ways, and what they leave; for `test_shutdown.py`."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.run_folder import checkpoint

ROOT = Path(__file__).parent.parent
START_S = 120.0  # until a run is where it is to be struck, on a machine that is busy
END_S = 10.0  # that an end may take, on a machine that is not; the load stretches it
MARK = "TEST_SHUTDOWN_MARK"
_numbers = itertools.count()

SMALL = [
    "preset=generic", "budget_frames=1_000_000_000", "algorithm.hidden_sizes=[16]", "collector.num_workers=2",
    "collector.envs_per_worker=4", "replay.capacity_frames=4000", "learner.device=cpu", "learner.batch_size=32",
    "learner.warmup_frames=100", "schedule.frames_per_update=8", "schedule.tolerance_frames=64",
    "evaluator.every_frames=200", "evaluator.episodes=4", "evaluator.num_envs=2", "evaluator.final_episodes=2",
    "logger.every_seconds=0.1", "logger.terminal=plain", "faults.max_failures=0",
]  # fmt: skip
COUNTING = ["env.id=Counting", "env.backend=counting", "env.kwargs.step_seconds=0.001"]
# On a busy machine the second process is late: the first must not be taken for hung meanwhile.
PATIENT = f"faults.hang_seconds={2 * START_S:.0f}"
FAULTY = ["env.id=Faulty-v0", "env.backend=gymnasium", "env.import_modules=[faulty_environment]"]

# An environment that fails where it is built: in a collector's process, which unlike the evaluator's is not nice.
FAULTY_ENVIRONMENT = """
import multiprocessing, os, signal, time
import gymnasium as gym
import numpy as np

class Faulty(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault, render_mode=None):
        looked_at = multiprocessing.current_process().name == "first look at the environment"
        if multiprocessing.parent_process() is not None and os.nice(0) == 0 and not looked_at:
            if fault == "raise":
                raise ValueError("the licence server does not answer\\nsee its log")
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            open(f"hung_{os.getpid()}", "w").close()
            time.sleep(3600)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

gym.register("Faulty-v0", Faulty)
"""


class Run:
    """A run of the command in `folder`, as its test sees it; `hung` is a file that marks a hung environment."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        self.folder, self.hung, self.tmp = folder, folder / "hung", folder / "tmp"
        self.mark = f"{os.getpid()}_{next(_numbers)}"
        self.struck_at = 0.0
        self.shared: set[str] = set()  # files in /dev/shm that its processes had mapped when it was struck
        self.tmp.mkdir()
        (folder / "faulty_environment.py").write_text(FAULTY_ENVIRONMENT)
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{folder}", "TMPDIR": str(self.tmp),
            MARK: self.mark,
        }  # fmt: skip
        command = [sys.executable, "-m", "trainer.run", *SMALL, f"run_dir={folder / 'run'}", *overrides]
        with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, start_new_session=True, stdout=stdout, stderr=stderr
            )

    def processes(self) -> dict[int, tuple[int, int]]:
        """Parent and niceness of each of the run's living processes."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}\0".encode() not in (path / "environ").read_bytes():
                    continue
                state, parent, *rest = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile, or is another user's
                continue
            if state != "Z":
                found[int(path.name)] = int(parent), int(rest[14])
        return found

    def children(self, nice: int) -> list[int]:
        """Process ids of the collectors (nice 0) or of the evaluator (nice 10), in the order of their start."""
        processes = self.processes()
        servers = {pid for pid, (parent, _) in processes.items() if parent == self.process.pid}
        return sorted(pid for pid, found in processes.items() if found[0] in servers and found[1] == nice)

    def rows(self) -> list[dict[str, Any]]:
        """The whole rows of metrics.jsonl until now."""
        path = self.folder / "run" / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until the condition holds, or the run has ended, or it takes too long."""
        deadline = time.monotonic() + START_S
        while not condition() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def wait_until_trained(self) -> None:
        """Until updates are made and an evaluation is told."""
        self.wait(lambda: any(row.get("updates") for row in self.rows()))
        self.wait(lambda: any("eval_return_mean" in row for row in self.rows()))

    def strike(self, *signals: tuple[int, int]) -> None:
        """Send (process id, signal) pairs; a negative process id is a whole group. No pair: only look at the clock."""
        for pid in self.processes():
            try:
                self.shared |= set(re.findall(r"/dev/shm/\S+", Path(f"/proc/{pid}/maps").read_text()))
            except OSError:  # it ended meanwhile
                continue
        if signals and self.process.poll() is not None:
            said = (self.folder / "stderr").read_text()
            raise AssertionError(f"the run ended by itself with {self.process.returncode} before it was struck: {said}")
        self.struck_at = time.monotonic()
        for pid, number in signals:
            os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)

    def strike_all(self, number: int) -> None:
        """A signal to all processes, as Ctrl-C in a terminal sends it."""
        self.strike((-self.process.pid, number))


# --- the strikes; each returns the process that it killed, or 0 ------------------------------------------------------


def ctrl_c(run: Run) -> int:
    run.wait_until_trained()
    run.strike_all(signal.SIGINT)
    return 0


def sigterm(run: Run) -> int:
    run.wait_until_trained()
    run.strike((run.process.pid, signal.SIGTERM))
    return 0


def sigterm_to_all(run: Run) -> int:
    run.wait_until_trained()
    run.strike_all(signal.SIGTERM)
    return 0


def kill_worker(run: Run) -> int:
    run.wait_until_trained()
    worker = run.children(nice=0)[1]
    run.strike((worker, signal.SIGKILL))
    return worker


def kill_evaluator(run: Run) -> int:
    run.wait_until_trained()
    (evaluator,) = run.children(nice=10)
    run.strike((evaluator, signal.SIGKILL))
    return evaluator


def kill_main(run: Run) -> int:
    run.wait_until_trained()
    run.strike((run.process.pid, signal.SIGKILL))
    return run.process.pid


def fails_by_itself(run: Run) -> int:
    run.wait(lambda: False)
    run.strike()
    return 0


def ctrl_c_when_hung(run: Run) -> int:
    run.wait(run.hung.exists)
    run.strike_all(signal.SIGINT)
    return 0


def ctrl_c_when_all_hang(run: Run) -> int:
    """Both that collect: before they obey the main process, they would end by the signal itself."""
    run.wait(lambda: len(list(run.folder.glob("hung_*"))) == 2)
    run.strike_all(signal.SIGINT)
    return 0


def ctrl_c_twice(run: Run) -> int:
    ctrl_c_when_hung(run)
    run.wait(lambda: "stopped" in (run.folder / "run" / "log.txt").read_text() or not run.children(nice=10))
    run.strike_all(signal.SIGINT)  # while the main process waits for the worker that hangs
    return 0


def ctrl_c_while_starting(run: Run) -> int:
    log = run.folder / "run" / "log.txt"
    run.wait(lambda: log.exists() and log.stat().st_size)  # before its first line there is nothing to summarise
    run.wait(lambda: len(run.processes()) > 2)  # the fork server is there, and imports
    run.strike_all(signal.SIGINT)
    return 0


def ctrl_c_in_final_evaluation(run: Run) -> int:
    run.wait(lambda: "final evaluation: " in (run.folder / "stdout").read_text())
    run.strike_all(signal.SIGINT)
    return 0


SCENARIOS: dict[str, tuple[Callable[[Run], int], list[str]]] = {
    "ctrl_c": (ctrl_c, COUNTING),
    "sigterm": (sigterm, COUNTING),
    "sigterm_to_all": (sigterm_to_all, COUNTING),
    "kill_worker": (kill_worker, COUNTING),
    "kill_evaluator": (kill_evaluator, COUNTING),
    "kill_main": (kill_main, COUNTING),
    "raise": (fails_by_itself, [*COUNTING, "env.kwargs.raise_at_step=200", "env.kwargs.fault_stream=4"]),
    "nan_reward": (fails_by_itself, [*COUNTING, "env.kwargs.nan_at_step=200", "env.kwargs.fault_stream=0"]),
    "nan_observation": (
        fails_by_itself, [*COUNTING, "env.kwargs.nan_observation_at_step=200", "env.kwargs.fault_stream=0"]
    ),
    "hang": (
        ctrl_c_when_hung,
        [*COUNTING, "env.kwargs.hang_at_step=200", "env.kwargs.fault_stream=4", "env.kwargs.fault_once=hung"],
    ),
    "hang_sequential": (
        ctrl_c_when_hung,
        [*COUNTING, "schedule=sequential", "schedule.frames_per_round=80", "env.kwargs.hang_at_step=200",
         "env.kwargs.fault_stream=4", "env.kwargs.fault_once=hung"],
    ),
    "ctrl_c_twice": (
        ctrl_c_twice,
        [*COUNTING, "env.kwargs.hang_at_step=200", "env.kwargs.fault_stream=4", "env.kwargs.fault_once=hung"],
    ),
    "ctrl_c_while_starting": (ctrl_c_while_starting, COUNTING),
    "ctrl_c_in_final_evaluation": (
        ctrl_c_in_final_evaluation,
        [*COUNTING, "budget_frames=2000", "evaluator.final_episodes=20000", "algorithm.target_update_every_updates=50",
         "collector.epsilon_decay_frames=1000"],
    ),
    "raise_in_constructor": (fails_by_itself, [*FAULTY, "env.kwargs.fault=raise"]),
    "kill_in_constructor": (fails_by_itself, [*FAULTY, "env.kwargs.fault=kill"]),
    "hang_in_constructor": (ctrl_c_when_all_hang, [*FAULTY, PATIENT, "env.kwargs.fault=hang"]),
    "hang_in_constructors_of_local_agents": (
        ctrl_c_when_all_hang, 
        [*FAULTY, PATIENT, "env.kwargs.fault=hang", "schedule=shared_gradient", "schedule.num_agents=2"],
    ),
}  # fmt: skip


# --- what is left ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What was left of a run."""

    code: int
    seconds: float  # from the strike until no process was left
    processes: dict[int, tuple[int, int]]  # that were left
    shared: list[str]  # files in /dev/shm that were left
    temporary: list[str]
    scratch: list[str]
    stdout: str
    stderr: str
    log: str  # RUN/log.txt
    summary: dict[str, Any]
    checkpoints: list[Path]
    killed: int


def carried_out(name: str, folder: Path) -> Outcome:
    """Start a run, strike it, wait for its end and look at what is left; nothing of it outlives the call."""
    strike, overrides = SCENARIOS[name]
    run = Run(folder, overrides)
    try:
        killed = strike(run)
        deadline = time.monotonic() + 4 * END_S
        while (left := run.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        seconds = time.monotonic() - run.struck_at
    finally:
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)
        code = run.process.wait()
    scratch, summary = folder / "run" / "scratch", folder / "run" / "summary.json"
    log = folder / "run" / "log.txt"
    return Outcome(
        code, seconds, left,
        shared=[name for name in run.shared if Path(name).exists()],
        temporary=[path.name for path in run.tmp.iterdir() if not path.name.startswith("torchinductor_")],  # a cache
        scratch=[path.name for path in scratch.iterdir()] if scratch.exists() else [],
        stdout=(folder / "stdout").read_text(), stderr=(folder / "stderr").read_text(),
        log=log.read_text() if log.exists() else "",
        summary=json.loads(summary.read_text()) if summary.exists() else {},
        checkpoints=checkpoint.numbered(folder / "run" / "checkpoints"), killed=killed,
    )  # fmt: skip
