"""Collectors on other nodes: what the link costs, how fast weights arrive, and what kills do to rows and time.

    python -m benchmarks.cluster [--json FILE] [--rows 20_000_000]

The nodes are processes of this machine (`cluster=local`), which reach the gateway by sockets as they would elsewhere;
so both ends of the link share its cores. A node that is stopped stands for a machine that is gone.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row, parser, show

if TYPE_CHECKING:
    import numpy as np

    from trainer.training.system import System

COUNTING = (
    "preset=generic", "env.id=counting", "env.backend=counting", "algorithm.n_step=1", "algorithm.hidden_sizes=[16]",
    "cluster=local", "faults.max_failures=1000", "learner.batch_size=4096",
)  # fmt: skip
SLEEPING = ("env.kwargs.step_seconds=0.02", "collector.envs_per_worker=4", "replay.capacity_frames=100_000")
CHECKED = ("collector.envs_per_worker=16", "replay.capacity_frames=16_384", "cluster.nodes=2")  # a ring of 512 rows
CARTPOLE = ("preset=cartpole", "cluster=local", "collector.envs_per_worker=64", "replay.capacity_frames=100_000")
WIDE = ("algorithm.hidden_sizes=[1300,1280]",)  # 1.7 M parameters, as a Nature CNN has
WAIT_S, POLL_S = 120.0, 5e-3
VERSIONS, PUBLISH_EVERY_S = 50, 0.5


def until(system: System, happened: Callable[[], bool], work: Callable[[], object] = lambda: None) -> float:
    """Seconds until something has happened, with `work` meanwhile.

    Raises:
        TimeoutError: it has not within `WAIT_S`.
    """
    start = time.monotonic()
    while not happened():
        system.check()
        work()
        if time.monotonic() > start + WAIT_S:
            raise TimeoutError(f"waited {WAIT_S:g} s")
        time.sleep(POLL_S)
    return time.monotonic() - start


def opened(*words: str) -> Any:
    """A system without a limit of frames, all of whose workers collect; and the seconds that this took."""
    from benchmarks import parts

    return parts.opened(parts.config(*words, parts.BUDGET, "collector.num_workers=null"))


def free(system: System) -> None:
    """Let all workers collect without a limit, and wait until they do."""
    from benchmarks import parts

    system.plans[0].board.frame_limit[0] = parts.NO_LIMIT
    parts.wait_until_stepping(system)


def told(system: System, text: str) -> int:
    """How often the run's log has a text."""
    return Path(system.run_dir / "log.txt").read_text().count(text)


def node_pid(system: System, worker: int) -> int:
    """The process of a worker's node: above its fork server."""
    pid = int(system.board.pid[worker])
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def gateway_pid(system: System) -> int:
    """The gateway's process."""
    from trainer.training.cluster_collectors import ClusterCollectors

    assert isinstance(system.collectors, ClusterCollectors)
    pid = system.collectors.gateway.pid
    assert pid is not None
    return pid


def scaling(seconds: float, repeats: int) -> Row:
    """Frames per second of two nodes with sleeping environments, divided by those of one."""
    from benchmarks import parts

    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for nodes, found in rates.items():
            with opened(*COUNTING, *SLEEPING, f"cluster.nodes={nodes}", "cluster.workers_per_node=4") as system:
                free(system)
                found.append(parts.collected_per_s(system, seconds))
    one, two = (statistics.median(rates[nodes]) for nodes in (1, 2))
    detail = f"{two:,.0f} and {one:,.0f} frames/s, 4 workers a node, a step sleeps 20 ms"
    return Row("two nodes over one", parts.ratio(rates[2], rates[1]), bar=1.8, detail=detail)


def cost(seconds: float) -> list[Row]:
    """Cores that both ends of the link use, scaled to 50,000 frames/s of CartPole a node."""
    from benchmarks import machine

    with opened(*CARTPOLE, "cluster.nodes=1", "cluster.workers_per_node=1") as system:
        free(system)
        pids = {"node": node_pid(system, 0), "gateway": gateway_pid(system)}

        def used() -> dict[str, float]:
            everyone = machine.stats()
            return {name: machine.cpu_s({pid: everyone[pid]}) for name, pid in pids.items()}

        before, frames = used(), system.total_frames()
        time.sleep(2 * seconds)
        collected = system.total_frames() - frames
        cores = {name: 50_000 * (spent - before[name]) / collected for name, spent in used().items()}
    detail = f"{collected / (2 * seconds):,.0f} frames/s were collected"
    return [
        Row("a node's process at 50,000 frames/s", cores["node"], "cores", 0.1, True, detail),
        Row("the gateway at 50,000 frames/s", cores["gateway"], "cores", 0.05, True, detail),
    ]


def weights() -> Row:
    """Time from a publish until all workers act by this version or a newer one."""
    import numpy as np

    with opened(*COUNTING, *SLEEPING, *WIDE, "cluster.nodes=2", "cluster.workers_per_node=2") as system:
        free(system)
        found, learner = [], system.learners.local[0]
        for _ in range(VERSIONS):
            system.publish()
            version = learner.plan.weights.version
            found.append(until(system, lambda version=version: bool((learner.board.version >= version).all())))  # type: ignore[misc]
            time.sleep(PUBLISH_EVERY_S)
        size = learner.plan.weights.numel
    detail = f"median {statistics.median(found):.3f} s, {VERSIONS} versions of {size:,} parameters, 2 nodes x 2 workers"
    return Row("weights at all workers, 99th percentile", float(np.percentile(found, 99)), "s", 1.0, True, detail)


def wrong(batch: dict[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of a batch are no transition of the counting environment, and which end with a lost worker."""
    import numpy as np

    from trainer.envs.counting import episode_length, expected_reward, is_truncation
    from trainer.host.seeds import SEEDS_PER_START

    now, then = (batch[key].numpy().astype(np.int64) for key in ("observation", ("next", "observation")))
    stream, episode, step, _ = now.T
    last = step + 1 == episode_length(stream, episode)
    cut = is_truncation(stream, episode)
    truncated = batch["next", "truncated"][:, 0].numpy()
    lost = truncated & ~last
    right = (stream % SEEDS_PER_START == batch["stream"].numpy()) & (then[:, :2] == now[:, :2]).all(1)
    right &= (then[:, 2] == step + 1) & (then[:, 3] == batch["action"].numpy().reshape(-1))
    right &= batch["next", "reward"][:, 0].numpy() == expected_reward(stream, episode, step + 1)
    right &= batch["next", "terminated"][:, 0].numpy() == (last & ~cut)
    return ~(right & (truncated == ((last & cut) | lost))), lost


def kills(rows: int) -> list[Row]:
    """Check every row that is drawn while a worker, a node, and the gateway are killed and a node is stopped."""
    from trainer.learning.feed import flat

    checked = bad = cut = 0
    with opened(*COUNTING, *CHECKED, "cluster.workers_per_node=1") as system:
        began = time.monotonic()
        free(system)
        learner, board = system.learners.local[0], system.plans[0].board
        started = time.monotonic() - began
        until(system, lambda: bool(board.cursor.min() > 2 * 512))
        first = int(board.cursor.min())

        def draw() -> None:
            nonlocal checked, bad, cut
            batch = flat(learner.replay.sample(4_096))
            faults, lost = wrong(batch)
            checked, bad, cut = checked + len(faults), bad + int(faults.sum()), cut + int(lost.sum())

        def again(worker: int) -> float:
            """Seconds until a lost worker's successor has collected."""
            frames = int(board.frames[worker])
            return until(system, lambda: int(board.frames[worker]) > frames + 64, draw)

        os.kill(int(system.board.pid[0]), signal.SIGKILL)
        until(system, lambda: told(system, "collector worker 0 (pid") > 0, draw)
        again(0)
        os.kill(node_pid(system, 1), signal.SIGKILL)
        named = until(system, lambda: told(system, "is lost: ") == 1, draw)
        back = again(1)
        stopped = node_pid(system, 0)
        os.kill(stopped, signal.SIGSTOP)
        gone = until(system, lambda: told(system, "is lost: ") == 2, draw)
        again(0)
        os.kill(gateway_pid(system), signal.SIGKILL)
        until(system, lambda: told(system, "the gateway (pid") > 0, draw)
        gateway = again(0)
        until(system, lambda: checked >= rows, draw)
        laps = (int(board.cursor.min()) - first) // 512
    detail = f"of {checked:,} in {laps} laps of the replay, {cut:,} of which end where a worker was lost"
    return [
        Row("wrong rows", bad, "rows", 0, True, detail),
        Row("until a killed node is named", named, "s", 1.0, True),
        Row("until it collects again", back, "s", detail=f"all nodes took {started:.1f} s to begin after the first"),
        Row("until a node that says nothing is given up", gone, "s", 10.0, True),
        Row("until nodes of another gateway collect", gateway, "s", 10.0, True),
    ]


def limit() -> Row:
    """How many frames two nodes collect above a limit: they must end within a vector step of all workers."""
    most = 50_000
    with opened(*COUNTING, *CHECKED, "cluster.workers_per_node=1") as system:
        system.plans[0].board.frame_limit[0] = most
        until(system, lambda: system.total_frames() >= most)
        time.sleep(1.0)
        over = system.total_frames() - most
    return Row("frames above the limit", over, "frames", 2 * 16, True, "a vector step of all workers has 32")


def main() -> None:
    arguments = parser("Collectors on other nodes.", seconds=5.0, repeats=3)
    arguments.add_argument("--rows", type=int, default=20_000_000, help="that are checked under kills (20,000,000)")
    args = arguments.parse_args()
    from benchmarks.machine import Meter

    meter = Meter()
    rows = [scaling(args.seconds, args.repeats), *cost(args.seconds), weights(), *kills(args.rows), limit()]
    show("Collectors on other nodes, which are processes of this machine", rows, args.json, meter.stop().note())


if __name__ == "__main__":
    main()
