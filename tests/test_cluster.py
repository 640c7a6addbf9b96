"""The link to collectors on other machines: a sink and two nodes in one process, grants, and the block's distance."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_replay_processes import GAMMA, RICH, wrong
from torch import Tensor

from trainer import envs
from trainer.cluster import line
from trainer.cluster.code import code, difference
from trainer.cluster.exchange import Orders, receive, send
from trainer.cluster.grants import grant
from trainer.cluster.sink import OutOfOrder, Sink
from trainer.cluster.source import Source, plan_node
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.run_config import to_yaml
from trainer.config.sections import BLOCK, Config
from trainer.envs.counting import decode_image, episode_length
from trainer.host.seeds import SEEDS_PER_START
from trainer.learning.feed import flat
from trainer.memory.boards import ControlBoard
from trainer.replay.buffer import open_replay
from trainer.replay.on_disk import ReplayCopy
from trainer.replay.streams import StreamLayout
from trainer.replay.uniform import StreamSampler
from trainer.roles.agents import end_episodes, plan_agents
from trainer.roles.rollout import CollectorPlan
from trainer.training.playing import LocalCollectors

RING = 4 * BLOCK
WORKERS, ENVS, N_STEP = 2, 8, 3


class Link:
    """Two nodes with a worker each, and the learner's sink, in this process."""

    def __init__(self, config: Config) -> None:
        folder, world = Path(config.run_dir), envs.describe_world(config.env)
        self.plan = plan_agents(config, world, folder / "run", folder / "scratch")[0]
        self.control, self.world, self.folder, self.config = ControlBoard(WORKERS), world, folder, config
        self.sink, self.starts, self.nodes = Sink(self.plan, self.control), [0, 0], {}
        for worker in range(WORKERS):
            self.join(worker)

    def join(self, worker: int) -> None:
        """A node that takes the place of the one before."""
        standing = self.sink.attach([worker], [self.starts[worker]])
        plan = plan_node(self.config, self.world, self.folder / f"{worker}_{self.starts[worker]}", [worker])
        control = ControlBoard(WORKERS)
        source, self.number = Source(plan, control, standing), 0
        players = LocalCollectors([CollectorPlan(plan.config, (plan,), worker, self.starts[worker])], control, print)
        players.start()
        self.nodes[worker] = source, players

    def restart(self, worker: int) -> None:
        """Let another worker take the place of one on its node."""
        source, players = self.nodes[worker]
        (plan,) = players.plans
        end_episodes(plan.agents, worker)
        self.starts[worker] += 1
        players.plans = [replace(plan, start=self.starts[worker])]
        players.close()
        source.replaced({worker: self.starts[worker]})
        players.start()

    def exchange(self, worker: int, steps: int) -> Any:
        """Let the worker make vector steps as far as its limit allows, and report them."""
        source, players = self.nodes[worker]
        frames = self.plan.board.frames
        source.obey(Orders(0, 10**9, int(frames.sum() - frames[worker]), 0, 0, 1))
        (rollout,) = players.rollouts
        for _ in range(steps):
            so_far = rollout.agents[0].link.frames()
            if rollout.agents[0].link.may_collect(so_far):
                rollout.step([so_far])
        return source.report(0)


@pytest.fixture
def link(small_config: Callable[..., Config]) -> Link:
    return Link(
        small_config(
            env={"kwargs": RICH, "frame_stack": 4}, algorithm={"gamma": GAMMA, "n_step": N_STEP},
            collector={"num_workers": WORKERS, "envs_per_worker": ENVS},
            replay={"capacity_frames": WORKERS * ENVS * RING},
        )
    )  # fmt: skip


def cut_by_a_loss(batch: dict[Any, Tensor]) -> np.ndarray:
    """Check all rows of a batch; returns which of them end where a worker was lost, bool [B]."""
    now = decode_image(batch["observation"].numpy())[:, -1]
    stream, episode, step, _ = now.T
    assert (stream % SEEDS_PER_START == batch["stream"].numpy()).all()  # a restarted worker has other seeds
    ends = step + batch["steps_to_next_obs"][:, 0].numpy() == episode_length(stream, episode, max_length=9)
    lost = batch["next", "truncated"][:, 0].numpy() & ~ends
    rows = {key: value[None] for key, value in {**batch, "stream": torch.from_numpy(stream)}.items()}
    assert not (wrong(rows, N_STEP, 4, RICH) & ~lost).any()
    return lost


def test_no_row_that_came_over_the_link_is_wrong_while_workers_and_nodes_are_replaced(link: Link):
    plan, rng, cut, closings = link.plan, np.random.default_rng(1), set(), 0
    replay = open_replay(
        plan.spec, plan.storage, plan.streams, plan.board.cursor, plan.board.oldest, plan.config.algorithm,
        plan.config.replay, 512, 0, block=BLOCK,
    )  # fmt: skip
    for turn in range(400):
        worker = turn % WORKERS
        if turn % 40 == 11:
            link.restart(worker)
            closings += 1
        if turn % 80 == 50:
            link.sink.detach([worker])
            link.starts[worker] += 1
            link.join(worker)
            closings += 1
        link.sink.write(link.exchange(worker, int(rng.integers(1, BLOCK))))
        batch = flat(replay.sample(512))  # 204,800 rows in all
        lost = cut_by_a_loss(batch)
        cut |= set(zip(batch["stream"][lost].tolist(), batch["time"][lost].tolist(), strict=True))
    assert closings == 15
    assert 0 < len(cut) <= closings * ENVS * N_STEP
    assert (plan.board.cursor > 15 * RING).all()
    final = plan.storage._storage["final"].numpy().mean()
    assert plan.board.frames.sum() == pytest.approx((1 - final) * plan.board.cursor.sum(), rel=0.05)


def test_a_block_that_does_not_follow_the_last_one_is_refused_before_a_row_is_written(link: Link):
    report = link.exchange(0, 5)
    link.sink.write(report)
    with pytest.raises(OutOfOrder, match="worker 0 begin at 0 in place of 5"):
        link.sink.write(report)
    assert link.plan.board.cursor[:ENVS].tolist() == [5] * ENVS
    assert link.plan.board.episodes_done[0] == report.blocks[0].episodes_done


CARTPOLE = ("preset=cartpole", "cluster=local", "cluster.nodes=2", "cluster.workers_per_node=3")


def test_the_number_of_workers_follows_from_the_nodes():
    assert load(CARTPOLE, cores=8).config.collector.num_workers == 6
    assert load(CARTPOLE[:3], cores=8).config.collector.num_workers == 14  # a core of each is left to its node process


@pytest.mark.parametrize(
    ("argument", "refusal"),
    [
        ("replay.capacity_frames=12000", "set replay.capacity_frames=12288 or more"),
        ("schedule=sequential", "set schedule=async or sync"),
        ("schedule.episodes_per_update=1", "leave it out"),
        ("telemetry.trace=true", "set cluster=none for a trace"),
        ("collector.num_workers=5", "follows from cluster.nodes=2 and cluster.workers_per_node=3"),
    ],
)
def test_what_nodes_do_not_do_is_refused_in_one_sentence(argument: str, refusal: str):
    with pytest.raises(ConfigError, match=refusal):
        load([*CARTPOLE, argument], cores=8)


def test_a_resumed_run_may_have_other_nodes(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(to_yaml(load(CARTPOLE, cores=8).config))
    resume = f"resume={tmp_path}"
    assert load([resume], cores=8).config.collector.num_workers == 6
    assert load([resume, "cluster.nodes=3"], cores=8).config.collector.num_workers == 9
    assert load([resume, "cluster=none"], cores=8).config.collector.num_workers == 6  # cores - 2


def test_a_caller_that_says_nothing_is_given_up_and_one_with_the_key_is_heard():
    listener, key = line.listen("127.0.0.1"), b"key of this run"
    address = listener.getsockname()
    assert line.accept(listener, key) is None  # nobody has called
    with socket.create_connection(address):
        began = time.monotonic()
        assert line.accept(listener, key) is None
        assert 0.9 * line.HANDSHAKE_S < time.monotonic() - began < 20 * line.HANDSHAKE_S
    with ThreadPoolExecutor(1) as beside:
        calling = beside.submit(lambda: send(line.call(address, key), "hello"))
        while (taken := line.accept(listener, key)) is None:
            time.sleep(1e-3)
        assert taken[0] == "hello"
        assert calling.result(30) > 0
        line.close(taken[1])
    listener.close()


def test_other_code_is_named_by_what_differs():
    here = code()
    assert difference(here, here) == ""
    other = {**here, "torch": "1.0", "trainer": "abc"}
    assert difference(here, other) == f"torch 1.0, here {here['torch']}, trainer abc, here {here['trainer']}"


def test_a_report_crosses_an_authenticated_socket_and_a_stranger_does_not(link: Link):
    report, key = link.exchange(0, 7), b"key of this run"
    with Listener(("127.0.0.1", 0), authkey=key) as listener, ThreadPoolExecutor(1) as beside:
        for theirs in (b"another key", key):
            calling = beside.submit(Client, listener.address, authkey=theirs)
            if theirs != key:
                with pytest.raises(AuthenticationError):
                    listener.accept()
                assert isinstance(calling.exception(30), AuthenticationError)
                continue
            with listener.accept() as here, calling.result(30) as there:
                sent = beside.submit(send, there, report)
                got, _ = receive(here)
                assert sent.result(30) >= sum(column.nbytes for column in report.columns.values())
    assert got.columns.keys() == report.columns.keys()
    assert all((got.columns[name] == column).all() for name, column in report.columns.items())
    assert got.blocks[0].count == 7
    assert got.blocks[1:] == []
    link.sink.write(got)
    assert link.plan.board.cursor[:ENVS].tolist() == [7] * ENVS


def test_a_worker_waits_before_its_ring_overwrites_rows_that_are_not_reported(link: Link):
    source, _ = link.nodes[0]
    link.exchange(0, 5_000)  # reports a block, the ring holds 512 steps
    assert source.pending() <= 512 - BLOCK
    before = source.pending()
    link.exchange(0, 0)
    assert source.pending() == before - BLOCK


@pytest.mark.parametrize("seed", range(5))
def test_grants_of_all_nodes_stay_within_the_limit_and_use_all_of_it(seed: int):
    rng = np.random.default_rng(seed)
    nodes = list(range(int(rng.integers(1, 6))))
    collected, granted = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    limit = lost = 0
    for _ in range(2_000):
        limit += int(rng.integers(0, 50))
        node = int(rng.choice(nodes))
        granted[node] = grant(node, limit, lost + sum(collected.values()), collected, granted, 64)
        assert lost + sum(granted.values()) <= limit
        assert granted[node] - collected[node] <= 64
        other = int(rng.choice(nodes))
        collected[other] += int(rng.integers(0, granted[other] - collected[other] + 1))
        if rng.random() < 0.01:  # a lost node gives back what it has not collected
            lost += collected[other]
            collected[other] = granted[other] = 0
    while lost + sum(collected.values()) < limit:
        for node in nodes:
            granted[node] = grant(node, limit, lost + sum(collected.values()), collected, granted, 64)
            collected[node] = granted[node]
    assert lost + sum(collected.values()) == limit


@pytest.mark.parametrize(("block", "first"), [(1, 41), (8, 48)])
def test_draws_keep_a_blocks_distance_from_the_writer(block: int, first: int, tmp_path, link: Link):
    cursor = np.array([100])
    sampler = StreamSampler(cursor, StreamLayout(1, 1, 60), block=block)
    begin, end = sampler.whole()
    assert (begin[0], end[0]) == (first, 99)
    assert sampler.intact(np.array([0, 0]), np.array([first - 1, first])).tolist() == [False, True]

    link.plan.board.cursor[:] = 3 * RING
    copy = ReplayCopy(tmp_path / "copy", link.plan.storage, link.plan.streams, link.plan.board.cursor, block=block)
    assert copy.save()["first"] == [2 * RING + block] * WORKERS
