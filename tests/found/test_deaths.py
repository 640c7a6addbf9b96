"""Issue 18, 1.10, 1.15 and 2: what dies is named in its own words, comes again, and goes on from what there is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hurting_processes import ENDS, WORDS
from running import running

from trainer.config.sections import Config
from trainer.roles.agents import published, published_updates

COUNTING = {"id": "Counting", "backend": "counting_agents", "kwargs": {"num_agents": 2, "step_seconds": 0.001}}


def test_whatever_an_environment_raises_comes_in_its_own_words(run, tmp_path: Path):
    """Text that UTF-8 cannot hold, a panic, sys.exit, KeyboardInterrupt, no words at all; and what it prints."""
    folder = tmp_path / "ended"
    folder.mkdir()
    ended = run(
        "env.id=Found/Ends-v0", "env.import_modules=[hurting_processes]", f"env.kwargs.folder={folder}",
        "faults.max_failures=5", "budget_frames=2_000", "collector.envs_per_worker=1", "telemetry.trace=true",
    )  # fmt: skip
    assert ended.code == 0, ended.said
    log = (ended.run_dir / "log.txt").read_text()
    deaths = [line for line in log.splitlines() if "another one takes its place" in line]
    assert len(deaths) == len(ENDS) and "exit code" not in "".join(deaths)
    for line, error, words in zip(deaths, ENDS, WORDS, strict=True):
        assert f"{type(error).__name__}: {words.partition(chr(0xD800))[0]}" in line
    assert "Traceback" not in ended.said and "Traceback" in log
    printed = (ended.run_dir / "output" / "collector_0.txt").read_text()
    assert "the simulator says hello" in printed
    shown = [line for line in ended.said.splitlines() if "hello" in line]
    assert all("collector 0 prints into" in line for line in shown)  # an event, and nothing else
    assert f"collector 0 prints into {ended.run_dir / 'output' / 'collector_0.txt'}: " in log


@pytest.mark.slow
def test_a_fork_server_that_is_killed_comes_again_and_the_run_goes_on(tmp_path: Path):
    """Twice, as `faults.max_failures=2` allows; the third time ends the run in one sentence."""
    words = [
        "env.id=Found/Slow-v0",
        "faults.max_failures=2",
        "evaluator.every_frames=200",
        "budget_frames=1_000_000_000",
    ]
    with running(tmp_path, *words) as run:
        for times in range(3):
            frames = run.collected()
            run.until(lambda frames=frames: run.collected() > frames + 300)
            server = run.children()["server"]
            os.kill(server, signal.SIGKILL)
            if times < 2:
                text = f"the fork server (pid {server}) died: it was ended by signal SIGKILL"
                run.until(lambda text=text: text in run.events())
        assert run.ended() == 1
        assert "more than faults.max_failures=2" in run.said and "Traceback" not in run.said
        assert run.alive() == []


@pytest.mark.slow
def test_a_fork_servers_end_is_told_whoever_finds_it_first(
    small_config: Callable[..., Config], started: Callable[[Config], Any]
):
    """The evaluator ends as the server does; whoever is looked at first, the server's end is told too."""
    system = started(small_config(budget_frames=10**9, evaluator={"every_frames": 100}, faults={"max_failures": 1}))
    server, evaluator = system.supervisor.server, system.evaluator.supervised
    pids = server.pid, evaluator.pid
    os.kill(server.pid, signal.SIGKILL)
    while evaluator.alive:  # it ends with its server
        torch.rand(1_000)
    evaluator.check()  # before the server is: another one is started, by another server
    assert server.restarts == evaluator.restarts == 1 and server.pid != pids[0]
    log = (Path(str(system.config.run_dir)) / "log.txt").read_text()
    assert f"the fork server (pid {pids[0]}) died: it was ended by signal SIGKILL, and all that came from it" in log
    assert f"the evaluator (pid {pids[1]}, 2 x Counting) died: it was ended by the end of its fork server" in log


@pytest.mark.slow
def test_a_learner_without_a_checkpoint_goes_on_from_the_weights_on_its_board(
    small_config: Callable[..., Config], started: Callable[[Config], Any]
):
    """Killed after 50 updates or more; its limit stays what it was until it is back, and nothing is at random."""
    config = small_config(
        env=COUNTING, agents={"learner": "process"}, faults={"max_failures": 1}, budget_frames=10**9,
        schedule={"frames_per_update": 4.0, "tolerance_frames": 64}, checkpoint={"save_every_seconds": 1_000.0},
    )  # fmt: skip
    system = started(config)
    plan, own = system.plans[1], system.learners.remote[1]
    board = plan.board

    def until(condition: Callable[[], bool]) -> None:
        for _ in range(60_000):
            if condition():
                return
            system.check()
            torch.rand(1_000)
        raise AssertionError("gave up waiting")

    until(lambda: published_updates(plan) >= 50)
    os.kill(own.supervised.pid, signal.SIGSTOP)  # so that what is on the board stays
    made, weights, limit = published_updates(plan), published(plan), int(board.frame_limit[0])
    os.kill(own.supervised.pid, signal.SIGKILL)
    while own.alive:
        torch.rand(1_000)
    system.check()
    assert own.restarts == 1 and int(board.frame_limit[0]) == limit  # collection waits for it
    assert board.total_frames() <= limit + 2 * 8  # 8 frames of a step that was under way in each worker
    version = plan.weights.version
    until(lambda: plan.weights.version > version)
    assert published_updates(plan) >= made and int(board.updates[0]) >= made
    distance = (published(plan) - weights).abs().max()
    assert distance < 0.05  # a random network is 0.5 away
    until(lambda: published_updates(plan) > made + 50)
    log = (Path(str(config.run_dir)) / "log.txt").read_text()
    assert f"it is restarted from the weights that it published after {made} updates: " in log


@pytest.mark.slow
def test_a_worker_that_finds_no_room_to_start_is_tried_again(tmp_path: Path):
    """A /dev/shm of 64 MB is full for some seconds, in which a worker dies: a failed start each, and no traceback."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("only root may mount")
    mount = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "bash"]
    with running(tmp_path, "env.id=Found/Slow-v0", "budget_frames=1_000_000", before=mount) as run:
        run.until(lambda: run.collected() > 200)
        shared = Path(f"/proc/{run.process.pid}/root/dev/shm")  # as that process sees it, among its own mounts
        output = run.run_dir / "output" / "collector_0.txt"
        (worker,) = [pid for pid in run.children().values() if output in open_files(pid)]
        filler = shared / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4_096))
        os.kill(worker, signal.SIGKILL)
        run.until(lambda: "could not be started: [Errno 28] No space left on device; it is tried again" in run.events())
        filler.unlink()
        frames = run.collected()
        run.until(lambda: run.collected() > frames + 300)
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 143 and "Traceback" not in run.said


@pytest.mark.slow
def test_a_killed_learner_leaves_no_words_of_pythons_own(tmp_path: Path):
    """Its semaphores are removed without "resource_tracker: There appear to be 3 leaked semaphore objects".

    Nor does a trace that no disk takes.
    """
    words = ["env.id=Counting", "env.backend=counting_agents", "env.kwargs.num_agents=2", "agents.learner=process"]
    words += ["telemetry.trace=true", "env.kwargs.step_seconds=0.002", "budget_frames=1_000_000"]
    with running(tmp_path, *words) as run:
        run.until(lambda: any(row.get("updates") for row in run.metrics()))
        (run.run_dir / "trace").touch()  # a disk that takes no part of the trace
        output = run.run_dir / "output" / "learner_1.txt"
        (learner,) = [pid for pid in run.children().values() if pid and output in open_files(pid)]
        os.kill(learner, signal.SIGKILL)
        run.until(lambda: "it is restarted" in run.events())
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 143
        assert "resource_tracker" not in run.said and "Traceback" not in run.said
        assert "the trace could not be written" in run.events()


def open_files(pid: int) -> set[Path]:
    """Of a process."""
    return {Path(os.readlink(path)) for path in Path(f"/proc/{pid}/fd").iterdir()}
