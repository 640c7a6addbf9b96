"""Nodes in processes of their own, started as on other machines: rows, bits, and what is lost with a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from test_cluster import cut_by_a_loss
from test_replay_processes import GAMMA, RICH

from trainer.config.sections import BLOCK, Config
from trainer.learning.feed import flat
from trainer.reading import read_json

pytestmark = pytest.mark.slow
WORKERS, ENVS, N_STEP = 2, 8, 3
NODES = ("cluster.nodes=2", "cluster.workers_per_node=1")
CARTPOLE = (
    "preset=cartpole", "seed=3", "evaluator.every_frames=0", "evaluator.final_episodes=2", "logger.terminal=none",
    "learner.warmup_frames=512",
)  # fmt: skip


def events(run: Path) -> str:
    return (run / "log.txt").read_text()


def until(happened: Callable[[], bool], work: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        work()


def test_no_row_is_wrong_while_a_worker_and_a_node_are_killed(
    small_config: Callable[..., Config], started: Callable[[Config], Any]
):
    config = small_config(
        budget_frames=10**9,
        env={"kwargs": RICH, "frame_stack": 4},
        algorithm={"n_step": N_STEP, "gamma": GAMMA},
        collector={"num_workers": WORKERS, "envs_per_worker": ENVS},
        cluster={"name": "local", "nodes": 2, "workers_per_node": 1, "compression": "zlib"},
        replay={"capacity_frames": WORKERS * ENVS * 4 * BLOCK},
        learner={"batch_size": 512},
        faults={"max_failures": 5},
    )
    system = started(config)
    (learner,) = system.learners.local
    board, cut, checked = learner.board, 0, 0
    system.publish()
    board.frame_limit[0] = 10**9
    until(lambda: board.cursor.min() > 8 * BLOCK, system.check)

    def draw() -> None:
        nonlocal cut, checked
        system.check()
        cut += int(cut_by_a_loss(flat(learner.replay.sample(512))).sum())
        checked += 512

    def goes_on(worker: int, text: str) -> None:
        """Draw until the log tells of the loss, and the worker's streams were overwritten since."""
        until(lambda: text in events(system.run_dir), draw)
        until(lambda: board_pid(system, worker) > 0, draw)
        before = board.cursor.copy()
        until(lambda: bool((board.cursor > before + 4 * BLOCK).all()), draw)

    victim = board_pid(system, 1)
    os.kill(victim, signal.SIGKILL)
    goes_on(1, f"node 1: collector worker 1 (pid {victim}")
    node = parent(parent(board_pid(system, 0)))
    os.kill(node, signal.SIGKILL)
    goes_on(0, f"node 0 (this machine, pid {node}) is lost: ")
    until(lambda: checked > 60_000, draw)
    assert system.collectors.restarts == 2
    assert system.collectors.starts() == [2, 2]
    system.publish()
    until(lambda: bool((board.version == learner.plan.weights.version).all()), system.check)


def board_pid(system: Any, worker: int) -> int:
    return int(system.board.pid[worker])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_rounds_of_nodes_give_the_bits_of_one_process(call: Callable[..., Any], tmp_path: Path):
    sync = ("schedule=sync", "cluster=local", *NODES, "run_dir=nodes", "budget_frames=3000")
    assert call(*CARTPOLE, *sync).code == 0
    one = ("schedule=sequential", "collector.num_workers=2", "run_dir=one", "budget_frames=3000")
    assert call(*CARTPOLE, *one).code == 0
    nodes, one = (load_file(tmp_path / run / "last" / "policy.safetensors") for run in ("nodes", "one"))
    assert nodes.keys() == one.keys()
    assert all((nodes[name] == one[name]).all() for name in one)
    assert read_json(tmp_path / "nodes" / "summary.json")["updates"] > 1_000
    rows = [json.loads(line) for line in (tmp_path / "nodes" / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("nodes", 0) for row in rows) == 2
    left = Path(f"/tmp/trainer_nodes_{os.getuid()}")
    assert not left.exists() or not list(left.glob("*"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[subprocess.Popen[str]]:
    """A Ray cluster of a head without cores and two machines with one; `kill` and `add` on its standard input."""
    pytest.importorskip("ray")
    environment = {**os.environ, "RAY_worker_niceness": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    script = [sys.executable, str(Path(__file__).parent / "ray_cluster.py"), "2"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_a_run_on_a_ray_cluster_survives_the_loss_of_a_machine(cluster: Any, tmp_path: Path):
    address = cluster.stdout.readline().strip()
    run = subprocess.Popen(
        [
            sys.executable, "-m", "trainer.run", *CARTPOLE, "cluster=ray", *NODES, f"cluster.address={address}",
            "run_dir=run", "budget_frames=40000", "schedule.frames_per_update=1",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    folder = tmp_path / "run"
    until(
        lambda: folder.joinpath("log.txt").exists() and events(folder).count("collects with") == 2,
        lambda: time.sleep(0.1),
    )
    print("kill", file=cluster.stdin, flush=True)
    until(lambda: "is lost: " in events(folder), lambda: time.sleep(0.1), 10)
    print("add", file=cluster.stdin, flush=True)
    assert run.wait(200) == 0
    summary = read_json(folder / "summary.json")
    assert summary["status"] == "finished"
    assert 0 <= summary["frames"] - 40_000 < 2 * 16  # at most a vector step of all workers
    until(
        lambda: not subprocess.run(["pgrep", "-f", "trainer.node"], capture_output=True).stdout,
        lambda: time.sleep(0.1),
        10,
    )
