"""The boards between processes: nothing torn, nobody waited for, the same order of weights on both sides."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import build
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import LearnerConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.update import Updater
from trainer.memory.boards import EPISODES_KEPT, ERROR_BYTES, RUN, STOP, AgentBoard, ControlBoard
from trainer.memory.fields import allocate, fields_of, float32_tensor, int64, shared_fields
from trainer.memory.weights import WeightsBoard, WeightsReader, flatten_parameters, ordered_leaves
from trainer.training.processes import use_fork_server

NUMEL = 1_000_000
PULLS, MIXED, BACKWARDS, VERSION, UNGUARDED_TORN = range(5)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.001)


def through_pickle(thing):
    """As what crosses a process border arrives there."""
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


# ------------------------------------------------------------------ declared fields


@shared_fields
class Declared:
    """A board of a test."""

    counts = int64(("W", 2), "what is counted", by="its worker")
    weights = float32_tensor(("N",), "what is learned", by="the learner")

    def __init__(self, workers: int, numel: int) -> None:
        allocate(self, W=workers, N=numel)


def test_a_declaration_gives_memory_views_and_documentation():
    board = Declared(3, 5)
    assert fields_of(Declared, W=3, N=5) == {"counts": ((3, 2), torch.int64), "weights": ((5,), torch.float32)}
    assert board.counts.tolist() == [[0, 0]] * 3 and board.weights.tolist() == [0.0] * 5
    assert "counts: int64 [W, 2], what is counted; its worker." in Declared.__doc__
    theirs = through_pickle(board)
    theirs.counts[2, 1] = 7
    board.weights[4] = 0.5
    assert board.counts.tolist() == [[0, 0], [0, 0], [0, 7]] and theirs.weights.tolist() == [0, 0, 0, 0, 0.5]


# ------------------------------------------------------------------ control board


def test_control_board_stays_shared_through_pickling():
    own = AgentBoard(num_workers=2, num_streams=6)
    theirs = through_pickle(own)
    theirs.frames[:] = 5, 7
    theirs.cursor[4] = 9
    assert own.total_frames() == 12 and own.cursor.tolist() == [0, 0, 0, 0, 9, 0]
    board = ControlBoard(num_workers=2)
    other = through_pickle(board)
    board.command[0] = STOP
    assert other.stopping()
    board.command[0] = RUN
    assert not other.stopping()


def test_error_text_round_trip():
    board = ControlBoard(2)
    assert board.read_error(0) == ""
    board.write_error(1, "Traceback: ça ne va pas\n  x = 1 / 0")
    assert board.read_error(1) == "Traceback: ça ne va pas\n  x = 1 / 0"
    assert board.read_error(0) == ""
    board.write_error(1, "short")
    assert board.read_error(1) == "short"  # nothing is left of the longer one before


@pytest.mark.parametrize("letter", ["x", "ü", "語"])
def test_an_error_text_that_is_too_long_keeps_its_end(letter):
    board = ControlBoard(1)
    text = letter * ERROR_BYTES + "ValueError: the end"
    board.write_error(0, text)
    read = board.read_error(0)
    assert read.endswith(letter * 1_000 + "ValueError: the end")
    # A character that was cut in two becomes up to 3 replacement marks.
    assert text.endswith(read.lstrip("\N{REPLACEMENT CHARACTER}")) and len(read.encode()) <= ERROR_BYTES + 6


def test_episodes_are_read_once_and_the_newest_survive_a_wrapped_ring():
    board, seen = AgentBoard(2, 2), np.zeros(2, np.int64)

    def finish(worker: int, count: int) -> None:
        for _ in range(count):
            number = int(board.episodes_done[worker])
            board.episodes[worker, number % EPISODES_KEPT] = number, 10 * number, worker
            board.episodes_done[worker] += 1

    assert board.read_episodes(seen).shape == (0, 3)
    finish(0, 3)
    finish(1, 1)
    assert board.read_episodes(seen).tolist() == [[0, 0, 0], [1, 10, 0], [2, 20, 0], [0, 0, 1]]
    assert board.read_episodes(seen).shape == (0, 3)
    finish(1, EPISODES_KEPT)  # wraps, nothing is lost
    assert board.read_episodes(seen)[:, 0].tolist() == list(range(1, EPISODES_KEPT + 1))
    finish(0, EPISODES_KEPT + 100)  # 100 too many
    read = board.read_episodes(seen)
    assert read[:, 0].tolist() == list(range(103, EPISODES_KEPT + 103))
    assert seen.tolist() == [EPISODES_KEPT + 103, EPISODES_KEPT + 1]


# ------------------------------------------------------------------ weights board


def million() -> TensorDict:
    weights = {"1": {"weight": torch.zeros(500, 1_000), "bias": torch.zeros(500)}, "10": torch.zeros(499, 1_001)}
    return TensorDict({**weights, "2": torch.zeros(1)}, [])


def publish(board: WeightsBoard, weights: TensorDict) -> None:
    """The next version, all of whose values are its number."""
    for leaf in weights.values(True, True):
        leaf.fill_(board.version + 1)
    board.send(weights)


def read_forever(reader: WeightsReader, command: Tensor, stats: Tensor) -> None:
    """A reader's process: counts into `stats` what it sees until `command` is not 0."""
    torch.set_num_threads(1)
    flat, count, before = torch.empty(NUMEL), stats.numpy(), 0
    while command[0] == 0:
        version = reader.pull(flat)
        if version == before:
            continue
        low, high = flat.aminmax()
        count[PULLS] += 1
        count[MIXED] += not low == high == version
        count[BACKWARDS] += version < before
        count[VERSION] = before = version
        if count[PULLS] % 8 == 0:  # the same copy without looking at the version: does it tear here at all?
            low, high = reader._slots[0].clone().aminmax()
            count[UNGUARDED_TORN] += bool(low != high)


@pytest.mark.parametrize("pulls", [600, pytest.param(50_000, marks=pytest.mark.slow)])
def test_no_version_is_torn_and_nobody_is_waited_for(pulls):
    use_fork_server()
    board, weights = WeightsBoard(NUMEL), million()
    assert sum(leaf.numel() for leaf in ordered_leaves(weights)) == NUMEL
    command = torch.zeros(1, dtype=torch.int64).share_memory_()
    stats = torch.zeros(2, 5, dtype=torch.int64).share_memory_()
    context = mp.get_context("forkserver")
    readers = [
        context.Process(target=read_forever, args=(board.reader(), command, stats[i]), daemon=True) for i in range(2)
    ]
    try:
        for process in readers:
            process.start()
        publish(board, weights)
        wait_until(lambda: bool((stats[:, VERSION] == 1).all()))
        for _ in range(50):  # as a learner does
            publish(board, weights)
            time.sleep(0.01)
        while stats[:, PULLS].sum() < pulls:  # as fast as it goes
            publish(board, weights)
            assert all(process.is_alive() for process in readers)

        os.kill(readers[1].pid, signal.SIGSTOP)  # a reader that stands still holds nobody up
        version, frozen = board.version, stats[1].clone()
        for _ in range(300):
            publish(board, weights)
        assert board.version == version + 300
        wait_until(lambda: stats[0, VERSION] == board.version)
        assert torch.equal(stats[1], frozen)
        os.kill(readers[1].pid, signal.SIGCONT)
        wait_until(lambda: stats[1, VERSION] == board.version)

        for _ in range(10):
            publish(board, weights)
        os.kill(readers[1].pid, signal.SIGKILL)  # nor does one that dies, probably in the middle of a copy
        readers[1].join(30)
        for _ in range(300):
            publish(board, weights)
        wait_until(lambda: stats[0, VERSION] == board.version)
        assert readers[0].is_alive() and readers[1].exitcode == -signal.SIGKILL
    finally:
        command[0] = 1
        for process in readers:
            process.join(10)
            process.kill()
    assert stats[:, PULLS].sum() > pulls
    assert stats[:, MIXED].tolist() == [0, 0]
    assert stats[:, BACKWARDS].tolist() == [0, 0]
    assert stats[:, UNGUARDED_TORN].sum() > 0  # the test can see a torn version


def test_a_reader_holds_what_it_has_until_there_is_something_new():
    board = WeightsBoard(6)
    reader, late, flat = board.reader(), through_pickle(board.reader()), torch.full((6,), -1.0)
    assert reader.pull(flat) == 0 and (flat == -1).all()  # nothing was published yet
    weights = TensorDict({"b": torch.arange(2.0), "a": torch.arange(4.0).reshape(2, 2)}, [])
    board.send(weights)
    assert reader.pull(flat) == 1 and flat.tolist() == [0, 1, 2, 3, 0, 1]
    flat.zero_()
    assert reader.pull(flat) == 1 and (flat == 0).all()  # not copied again
    board.send(weights)
    board.another().send(weights)
    assert board.version == 3
    assert late.pull(flat) == 3 and flat.tolist() == [0, 1, 2, 3, 0, 1]


def test_a_writer_killed_while_writing_leaves_the_version_before():
    board, weights = WeightsBoard(4), TensorDict({"a": torch.ones(4)}, [])
    board.send(weights)
    board.send(weights * 2)
    board.memory.sequence[1] = -1  # version 3 was begun in slot 1, and half of it written
    board.memory.slots[1, :2] = 3.0
    flat = torch.zeros(4)
    assert board.reader().pull(flat) == 2 and flat.tolist() == [2, 2, 2, 2]
    board.send(weights * 3)  # whoever goes on writes it anew
    assert board.reader().pull(flat) == 3 and flat.tolist() == [3, 3, 3, 3]


def several_encoders() -> EnvSpec:
    vectors = [Leaf(f"observation.{i}", (2,), "float32", "vector") for i in range(11)]
    others = [
        Leaf("observation.cell", (2,), "int64", "discrete", nvec=(3, 4)),
        Leaf("observation.image", (8, 8, 3), "uint8", "image", "hwc", stack=2),
    ]
    return EnvSpec("test", (*vectors, *others), DiscreteAction(3))


def some_observation(spec: EnvSpec, rows: int) -> list[Tensor]:
    leaves = []
    for leaf in spec.leaves:
        high = {"uint8": 256, "int64": 3, "float32": 2}[leaf.dtype]
        leaves.append(torch.randint(0, high, (rows, *leaf.seen_shape)).to(getattr(torch, leaf.dtype)))
    return leaves


def test_the_order_of_leaves_is_the_same_in_learner_and_policy():
    """More than ten layers: "10" sorts before "2" in text, and has to on both sides."""
    spec, config = several_encoders(), DQNConfig(hidden_sizes=[8] * 12)
    learner = Updater(build(config, LearnerConfig(), spec), LearnerConfig(), torch.device("cpu"))
    policy = build(config, LearnerConfig(), spec).policy
    ours = TensorDict.from_module(policy)
    for number, (leaf, own) in enumerate(zip(ordered_leaves(learner.weights), ordered_leaves(ours), strict=True)):
        assert leaf.shape == own.shape
        own.data.fill_(number)
    numbers = {str(key): leaf.detach().reshape(-1)[0].item() for key, leaf in ours.items(True, True)}
    names = sorted(str(key) for key, leaf in learner.weights.items(True, True) if leaf.is_floating_point())
    assert [numbers[name] for name in names] == list(range(len(names)))
    assert len(names) == 28  # 13 linear layers and a convolution; the one-hot's offsets are no weights


def test_a_published_version_makes_the_policy_compute_what_the_learner_does():
    spec, config = several_encoders(), DQNConfig(hidden_sizes=[8] * 12)
    algorithm = build(config, LearnerConfig(), spec)
    learner = Updater(algorithm, LearnerConfig(), torch.device("cpu"))
    policy = build(config, LearnerConfig(), spec).policy
    reference = copy.deepcopy(policy)
    flat = flatten_parameters(policy)
    network, x = policy.module[0].module, some_observation(spec, 5)
    with torch.inference_mode():
        assert torch.equal(network(*x), reference.module[0].module(*x))  # becoming views changes no value
        board = WeightsBoard(flat.numel())
        board.send(learner.weights)
        assert board.reader().pull(flat) == 1
        learner.weights.to_module(reference)
        assert torch.allclose(network(*x), reference.module[0].module(*x), atol=1e-6)
        flat.zero_()
        assert not network(*x).any()  # one flat tensor is all of it
