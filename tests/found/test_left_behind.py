"""What environments set or leave in a process that is also the trainer's."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import torch
from tensordict import TensorDict

from trainer import envs
from trainer.algorithms import make_policy
from trainer.config.fields import ConfigError
from trainer.config.sections import Config, EnvConfig
from trainer.memory.blocks import shared


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (
            "import threading; threading.Thread(target=time.sleep, args=(60,), name='spinner').start()",
            "its thread spin",
        ),
        ("import atexit; atexit.register(time.sleep, 60)", "a function that is called at the end (atexit)"),
        ("", ""),
    ],
)
def test_what_an_environment_leaves_keeps_no_program_from_ending(left: str, words: str) -> None:
    code = (
        f"import sys, time; from trainer.host.leaving import leave_soon; {left or 'pass'}; sys.exit(leave_soon(3, 0.5))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 3 and "Traceback" not in ended.stderr
    assert words in ended.stderr and bool(ended.stderr) == bool(left)


def test_networks_are_float32_on_the_cpu_whatever_an_environment_has_set(make_config, tmp_path) -> None:
    config: Config = make_config(tmp_path, env={"id": "CartPole-v1", "backend": "gymnasium"})
    spec = envs.describe(EnvConfig("CartPole-v1"))
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        leaves = TensorDict.from_module(make_policy(config, spec)).flatten_keys().values()
        assert {(leaf.dtype, str(leaf.device)) for leaf in leaves if leaf.is_floating_point()} == {
            (torch.float32, "cpu")
        }
        assert torch.get_default_dtype() == torch.float64 and torch.get_default_device() == torch.device("meta")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_an_environment_that_sets_torchs_default_type_trains(run) -> None:
    ended = run("env.id=Found/Defaults-v0", "env.import_modules=[hurting_processes]", "evaluator.every_frames=300")
    assert ended.code == 0 and ended.summary["eval_return_mean"] is not None, ended.said


def test_a_forked_process_that_comes_back_does_no_work_of_the_workers(run) -> None:
    """Two of its four environments fork, in the collector and in the evaluator; else one would report a death."""
    ended = run("env.id=Found/Forks-v0", "env.import_modules=[hurting_processes]", "evaluator.every_frames=300")
    assert ended.code == 0 and "takes its place" not in ended.said, ended.said
    words = (ended.run_dir / "output" / "collector_0.txt").read_text()
    assert words.count("a process that the environment forked came back from it, and is ended") >= 2
    replay = b"".join(path.read_bytes() for path in (ended.run_dir / "replay").rglob("reward.bin"))
    assert ended.summary["frames"] == 600 and len(replay) >= 600 * 4


def test_shared_memory_that_is_refused_is_one_sentence() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(ConfigError, match="1000000 bytes could not be shared in /dev/shm .*File too large"):
            shared(torch.zeros(250_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["full", "closed"])
def test_a_terminal_that_takes_nothing_costs_no_run(end: str, begin, tmp_path) -> None:
    """A disk that is full, and a pipe that nobody reads (`| head`)."""
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full" if end == "full" else writing, "w") as stream:
        code = begin("env.id=Hurting/Plain-v0", "schedule=sequential", stdout=stream).wait(timeout=120)
    said = (tmp_path / "run" / "log.txt").read_text()
    assert code == 0 and "Traceback" not in said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
