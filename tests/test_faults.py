"""Every fault of docs/faults.md, injected for real into a real run: who is named, what goes on, what is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.test_room import words_of
from trainer.config.sections import Config
from trainer.host.errors import RunFailed, device_failure
from trainer.run_folder import checkpoint
from trainer.training.train import train

ROOT = Path(__file__).parent.parent
LATE = 60  # steps of the environment until the fault

# One fault of one process; the file `once` keeps it from coming again.
STRUCK = """
import ctypes, multiprocessing, os, time
import gymnasium as gym
import numpy as np

class Struck(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault, once=None, where="collector", render_mode=None):
        name = multiprocessing.current_process().name
        self.fault = fault if (name == "evaluator") == (where == "evaluator") and name != "MainProcess" else None
        self.once, self.steps, self.ballast = once, 0, None

    def strikes(self):
        if self.fault is None or self.steps < LATE or (self.once and os.path.exists(self.once)):
            return False
        if self.once:
            open(self.once, "w").close()
        return True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fault == "raise_in_reset" and self.strikes():
            raise ValueError("the level file is gone")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        time.sleep(0.0005)
        shown = np.full(2, (self.steps % 9) / 9, np.float32)
        if self.fault != "raise_in_reset" and self.strikes():
            if self.fault == "kill":
                os.kill(os.getpid(), 9)
            if self.fault == "segfault":
                ctypes.string_at(0)
            if self.fault == "raise":
                raise ValueError("the physics engine gave up")
            if self.fault == "hang":
                time.sleep(3600)
            if self.fault == "nan":
                return shown, float("nan"), False, False, {}
            if self.fault == "shape":
                return np.zeros(3, np.float32), 0.0, False, False, {}
            if self.fault == "leak":
                self.ballast = np.ones(60_000_000)
        return shown, 1.0, self.steps % 7 == 0, False, {}

gym.register("Struck-v0", Struck)
""".replace("LATE", str(LATE))


@pytest.fixture
def struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Config]
) -> Callable[..., Config]:
    """A run of 2 workers one of whose environments is struck once."""
    (tmp_path / "struck_environment.py").write_text(STRUCK)
    monkeypatch.syspath_prepend(tmp_path)

    def make(fault: str, once: bool = True, where: str = "collector", **sections: Any) -> Config:
        kwargs = {"fault": fault, "where": where, **({"once": str(tmp_path / "once")} if once else {})}
        env = {"id": "Struck-v0", "backend": "gymnasium", "kwargs": kwargs, "import_modules": ["struck_environment"]}
        changed = {"faults": {"max_failures": 2, "hang_seconds": 3.0}, "budget_frames": 12_000, **sections}
        return small_config(env=env, schedule={"frames_per_update": 20.0}, **changed)

    return make


def events(config: Config) -> str:
    return (Path(str(config.run_dir)) / "log.txt").read_text()


def rows_of(config: Config) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(str(config.run_dir)) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("kill", "died after N frames: it was ended by signal SIGKILL"),
        pytest.param("segfault", "died after N frames: it was ended by signal SIGSEGV", marks=pytest.mark.slow),
        ("raise", r"died after N frames: Struck-v0: sub-environment \d \(seed \d+\) failed in step with action \d, in "
                  r"step \d+ of its episode, step \d+ of all: ValueError: the physics engine gave up"),
        pytest.param(
            "raise_in_reset", r"died after N frames: Struck-v0: .* failed in reset, .*: the level file is gone",
            marks=pytest.mark.slow,
        ),
        ("hang", "showed no sign of life for \\d s and was ended"),
        pytest.param(
            "nan", "died after N frames: Struck-v0: .*its reward is nan, which is no finite number",
            marks=pytest.mark.slow,
        ),
        pytest.param("shape", r"died after N frames: Struck-v0: .*\(3,\)", marks=pytest.mark.slow),
        ("leak", "held \\d\\d\\d MB, more than faults.worker_memory_mb=500"),
    ],
)  # fmt: skip
def test_worker_is_named_and_started_anew_and_the_others_go_on(
    fault: str, cause: str, struck: Callable[..., Config]
) -> None:
    limit = {"worker_memory_mb": 500} if fault == "leak" else {}
    budget = 12_000 if fault == "hang" else 5_000  # the others collect while it hangs
    config = struck(fault, faults={"max_failures": 2, "hang_seconds": 3.0, **limit}, budget_frames=budget)
    summary = train(config, ["test"])
    assert summary["status"] == "finished" and summary["frames"] >= budget
    assert (budget - 200) // 20 <= summary["updates"] <= (summary["frames"] - 200) // 20
    pattern = (
        rf"collector worker ([01]) \(pid \d+, 4 x Struck-v0, seeds from ([04])\) {cause.replace('N', '[0-9]+')}.*; "
        "another one takes its place, the others go on"
    )
    named = re.findall(pattern, events(config))
    assert len(named) == 1 and int(named[0][1]) == 4 * int(named[0][0])
    assert [row for row in rows_of(config) if "worker_restarts" in row][-1]["worker_restarts"] == 1
    if fault in ("raise", "raise_in_reset", "nan", "shape"):
        assert f"traceback of collector {named[0][0]}:\n" in events(config)


def test_only_the_unfinished_rollout_is_dropped(small_config: Callable[..., Config], tmp_path: Path) -> None:
    """The counting environment tells what follows what: no stored transition leads from the dead worker to the next."""
    once = str(tmp_path / "once")
    kwargs = {"max_length": 9, "kill_at_step": 80, "fault_once": once, "step_seconds": 0.004}
    config = small_config(
        env={"kwargs": kwargs}, faults={"max_failures": 1}, budget_frames=3_000, replay={"capacity_frames": 16_000}
    )
    train(config, ["test"])
    folder = Path(str(config.run_dir)) / "replay" / "2x4x2000"
    upto = json.loads((folder / "upto.json").read_text())["upto"]
    seen = np.fromfile(folder / "observation.bin", np.float32).reshape(2, 2_000, 4, 4).astype(np.int64)
    flags = {
        name: np.fromfile(folder / f"{name}.bin", bool).reshape(2, 2_000, 4)
        for name in ("final", "truncated", "terminated")
    }
    successors = 0
    for worker, count in enumerate(upto):
        for env in range(4):
            rows = seen[worker, :count, env]
            final, truncated = flags["final"][worker, :count, env], flags["truncated"][worker, :count, env]
            numbers = set(rows[:, 0].tolist())
            successors += len(numbers) - 1
            start = np.flatnonzero(~final[:-1])
            assert (rows[start + 1, :3] == rows[start, :3] + [0, 0, 1]).all()
            change = np.flatnonzero(np.diff(rows[:, 0]))  # the last row of the dead worker
            ended = truncated | flags["terminated"][worker, :count, env] | final  # or its last episode had just begun
            assert final[change].all() and ended[change - 1].all()
    assert successors == 4  # one worker's environments, under other seeds


def test_too_many_failures_end_the_run_with_one_sentence(struck: Callable[..., Config]) -> None:
    config = struck("raise", once=False, budget_frames=1_000_000)
    with pytest.raises(RunFailed) as failed:
        train(config, ["test"])
    text = str(failed.value)
    assert re.search(
        r"^collector worker [01] .* the physics engine gave up \(3 failures within 600 s, more than "
        r"faults\.max_failures=2\) \(checkpoints: .*\)$", text
    )  # fmt: skip
    assert checkpoint.newest(Path(str(config.run_dir)) / "checkpoints") is not None
    seeds = re.findall(r"seeds from (\d+)", events(config) + text)
    assert len(set(seeds)) >= 3  # not the same episodes again


@pytest.mark.parametrize("fault", ["kill", pytest.param("raise", marks=pytest.mark.slow)])
def test_evaluator_is_started_anew_and_its_evaluation_made_again(fault: str, struck: Callable[..., Config]) -> None:
    """The run is stopped once the second evaluator has told, however long that takes; training goes on meanwhile."""
    evaluator = {"every_frames": 3_000, "episodes": 40, "num_envs": 2}
    config = struck(fault, where="evaluator", evaluator=evaluator, budget_frames=1_000_000)
    log = Path(str(config.run_dir)) / "log.txt"

    def stop() -> None:
        while not (log.exists() and re.search(r"evaluation at \d+ frames: return", log.read_text())):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=stop, daemon=True).start()
    summary = train(config, ["test"])
    assert summary["status"] == "stopped"
    cause = "it was ended by signal SIGKILL" if fault == "kill" else ".*the physics engine gave up"
    assert re.search(
        rf"the evaluator \(pid \d+, 2 x Struck-v0\) died: {cause}; another one takes its place", events(config)
    )
    assert events(config).index("another one takes its place") < events(config).index("evaluation at ")
    assert summary["updates"] >= (3_000 - 200) // 20


def test_learner_that_meets_nan_keeps_its_last_good_state(small_config: Callable[..., Config]) -> None:
    config = small_config(
        budget_frames=1_000_000,
        env={"kwargs": {"nan_observation_at_step": 200}},
        checkpoint={"save_every_seconds": 0.2},
    )
    with pytest.raises(
        RunFailed, match="the loss or its gradient became NaN or infinite .*lower learner.learning_rate"
    ):
        train(config, ["test"])
    state = checkpoint.newest(Path(str(config.run_dir)) / "checkpoints")
    assert state is not None and state["limiter"]["updates"] > 0
    assert all(bool(value.isfinite().all()) for value in state["learner"]["loss"].values())


def test_network_that_no_memory_holds_is_one_sentence(small_config: Callable[..., Config]) -> None:
    """400 TB are more than an address space has, so that no machine gives them; a command line is refused before."""
    config = small_config(algorithm={"hidden_sizes": [10_000_000, 10_000_000]})
    sentence = (
        "the machine has no memory left for another 400000000000000 bytes: lower learner.batch_size or "
        "algorithm.hidden_sizes, or have fewer runs on it"
    )
    with pytest.raises(RunFailed, match=f"^{sentence}$"):
        train(config, ["test"])
    assert "DefaultCPUAllocator" in (Path(str(config.run_dir)) / "log.txt").read_text()  # where the traceback is


@pytest.mark.parametrize(
    ("error", "sentence"),
    [  # the texts as PyTorch has them; there is no GPU here to fill
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of ..."
            ),
            "cuda:0 has no memory left for another 20.50 GiB: lower learner.batch_size",
        ),
        (MemoryError(), "the machine has no memory left: lower"),
        (
            torch.AcceleratorError(
                "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might ..."
            ),
            "cuda:0 failed (CUDA error: an illegal memory access was encountered): look for its cause in nvidia-smi",
        ),
    ],
)
def test_device_that_gives_up_is_one_sentence(error: Exception, sentence: str) -> None:
    failure = device_failure(error, torch.device("cuda:0"))
    assert failure is not None and str(failure).startswith(sentence) and "\n" not in str(failure)
    assert device_failure(RuntimeError("shapes differ"), torch.device("cuda:0")) is None


@pytest.mark.slow
def test_memory_limit_of_a_cgroup_costs_a_worker_not_the_run(struck: Callable[..., Config], tmp_path: Path) -> None:
    """The kernel ends the process that takes too much: here a worker whose environment leaks."""
    group = Path("/sys/fs/cgroup/memory") / f"faults_{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("there is no memory cgroup of version 1 to be made here")
    try:
        (group / "memory.limit_in_bytes").write_text(str(1_500 * 2**20))
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        folder = tmp_path / "run"
        struck("leak")
        words = words_of(
            folder, "env.id=Struck-v0", "env.backend=gymnasium", "env.import_modules=[struck_environment]",
            "env.kwargs.fault=leak", f"env.kwargs.once={tmp_path / 'once'}",
        )  # fmt: skip
        words.remove("env.kwargs.step_seconds=0.0005")
        inside = [
            "bash",
            "-c",
            f'echo $$ > {group}/cgroup.procs; exec "$@"',
            "bash",
            sys.executable,
            "-m",
            "trainer.run",
        ]
        done = subprocess.run([*inside, *words], cwd=ROOT, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
    finally:
        time.sleep(0.2)
        group.rmdir()


def test_no_clock_that_can_jump_is_looked_at() -> None:
    """Periods and rates come from the monotonic clock; the wall clock only dates folders and log lines."""
    for path in (ROOT / "trainer").rglob("*.py"):
        assert not re.search(r"\btime\.time\(|from time import", path.read_text()), path
