"""The replay's arithmetic against slow references: layout, n-step returns, frame stacks, what is drawn and how often.

Streams are written here by `write`, row by row as `trainer.roles.collector` does, and remembered without a ring.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchrl.data import TensorDictReplayBuffer

from tests.replay_streams import ATARI, EVERYTHING, VECTOR, assert_right, expected_transition, make_streams, sampled
from trainer.algorithms import build
from trainer.config.algorithms import DQNConfig
from trainer.config.sections import LearnerConfig
from trainer.replay.buffer import StreamReplay
from trainer.replay.streams import (
    StreamLayout,
    close_episodes,
    layout,
    open_storage,
    row_bytes,
    worker_rows,
)

# ------------------------------------------------------------------ layout


@pytest.mark.parametrize(("workers", "envs", "ring"), [(1, 1, 5), (3, 4, 7), (2, 16, 33), (7, 1, 10)])
def test_layout_is_a_bijection(workers, envs, ring):
    streams = StreamLayout(workers, envs, ring)
    stream, time = np.meshgrid(np.arange(streams.num_streams), np.arange(100 * ring, 101 * ring), indexing="ij")
    index = streams.index(stream, time)
    assert sorted(index.ravel().tolist()) == list(range(streams.rows))
    assert np.array_equal(streams.index(stream, time + ring), index)


def test_a_worker_writes_where_the_layout_reads(tmp_path):
    made = make_streams(tmp_path, workers=3, envs=4, ring=5)
    for worker in range(3):
        rows = worker_rows(made.storage, made.streams, worker)
        assert rows["reward"].shape == (5, 4) and rows["observation"].shape == (5, 4, 3)
        stream = np.arange(12)[made.streams.streams_of(worker)]
        rows["reward"][:] = 100 * stream + np.arange(5)[:, None]
        assert rows["reward"][2].flags.c_contiguous  # one vector step is one block
    stream, time = np.meshgrid(np.arange(12), np.arange(5), indexing="ij")
    stored = made.storage._storage["reward"].numpy()
    assert np.array_equal(stored[made.streams.index(stream, time)], 100.0 * stream + time)


def test_layout_takes_what_fits_into_the_capacity():
    streams = layout(1_000, num_workers=3, envs_per_worker=16)
    assert (streams.num_streams, streams.ring, streams.rows) == (48, 20, 960)


def test_a_million_atari_transitions_take_at_most_8_gb(tmp_path):
    # A frame once, int64 action, float32 reward, three flags, int32 age.
    assert row_bytes(ATARI) == 84 * 84 + 8 + 4 + 3 + 4 == 7_075
    assert row_bytes(ATARI) * 1_000_000 <= 8e9
    streams = layout(1_000, 1, 4)
    open_storage(ATARI, streams, tmp_path)
    files = sum(path.stat().st_size for path in tmp_path.rglob("*.memmap"))
    assert files == row_bytes(ATARI) * streams.rows


# ------------------------------------------------------------------ transitions


@pytest.mark.parametrize("steps", [30, 40, 41, 97])  # a ring of 40 rows: before, just full, wrapped, wrapped twice
@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_n_step_transitions_agree_with_a_slow_reference(tmp_path, n_step, steps):
    made, rng = make_streams(tmp_path), np.random.default_rng(100 * n_step + steps)
    made.write(0, steps, rng)
    made.write(1, steps - 7, rng)
    replay = made.replay(n_step)
    rows = sum(assert_right(sampled(replay, count), made, n_step) for count in (16, 1, 9))
    assert rows == 26 * 16


@pytest.mark.parametrize("steps", [20, 40, 95])
@pytest.mark.parametrize("n_step", [1, 3])
def test_frame_stacks_masks_and_every_kind_of_leaf_agree_with_a_slow_reference(tmp_path, n_step, steps):
    made, rng = make_streams(tmp_path, EVERYTHING), np.random.default_rng(steps)
    made.write(0, steps, rng)
    made.write(1, steps, rng, end=0.6)  # episodes shorter than the stack
    batch = sampled(made.replay(n_step), 40)
    assert_right(batch, made, n_step)
    assert batch["next", "action_mask"].any(-1).all()


def test_without_episode_ends_every_return_has_n_rewards(tmp_path):
    made = make_streams(tmp_path)
    made.write(0, 40, np.random.default_rng(0), end=0.0)
    batch = sampled(made.replay(n_step=5), 8)
    assert (batch["steps_to_next_obs"] == 5).all() and not batch["next", "done"].any()


def test_terminated_and_truncated_are_kept_apart(tmp_path):
    made = make_streams(tmp_path)
    made.write(0, 200, np.random.default_rng(0), end=0.4)
    batch = sampled(made.replay(), 50)
    terminated, truncated = batch["next", "terminated"], batch["next", "truncated"]
    assert terminated.sum() > 50 and truncated.sum() > 50
    assert not (terminated & truncated).any()
    assert torch.equal(batch["next", "done"], terminated | truncated)


# ------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize(("spec", "n_step"), [(VECTOR, 1), (VECTOR, 4), (EVERYTHING, 3)])
@pytest.mark.parametrize("steps", [(12, 0), (39, 20), (40, 38), (41, 70)])
def test_every_whole_transition_is_drawn_equally_often_and_nothing_else(tmp_path, spec, n_step, steps):
    made, rng = make_streams(tmp_path, spec, envs=2), np.random.default_rng(5)
    for worker, count in enumerate(steps):
        made.write(worker, count, rng)
    replay, draws = made.replay(n_step, seed=11), 60_000
    stream, time = replay.sampler.draw(draws)
    startable = sorted(made.startable(n_step))
    number = {pair: i for i, pair in enumerate(startable)}
    counts = np.bincount([number[pair] for pair in zip(stream.tolist(), time.tolist(), strict=True)])
    assert len(counts) == len(startable) > 8 and counts.min() > 0
    # Chi-square has mean k - 1 and variance 2 (k - 1) for k equally likely transitions.
    expected, freedom = draws / len(startable), len(startable) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)
    assert replay._sampler.intact(stream, time).all()  # while nobody writes, whatever is drawn is whole


@pytest.mark.parametrize(("spec", "n_step"), [(VECTOR, 1), (VECTOR, 3), (EVERYTHING, 3)])
@pytest.mark.parametrize("steps", [40, 63])
def test_nothing_of_a_row_under_the_writers_pen_is_seen(tmp_path, spec, n_step, steps):
    made = make_streams(tmp_path, spec)
    for worker in range(2):
        made.write(worker, steps, np.random.default_rng(worker))
        for column in worker_rows(made.storage, made.streams, worker).values():
            column[steps % 40] = 1 if column.dtype == bool else 77  # the row that comes next, half written
    assert_right(sampled(made.replay(n_step), 100), made, n_step)


def test_rows_overwritten_since_they_were_drawn_are_told(tmp_path):
    made, rng = make_streams(tmp_path), np.random.default_rng(0)
    made.write(0, 50, rng)
    replay = made.replay()
    stream, time = replay.sampler.draw(500)
    assert replay._sampler.intact(stream, time).all()
    made.write(0, 10, rng)
    assert np.array_equal(replay._sampler.intact(stream, time), time > 60 - 40)


def test_rows_overwritten_while_they_are_read_are_drawn_again(tmp_path, monkeypatch):
    made, rng = make_streams(tmp_path), np.random.default_rng(0)
    made.write(0, 50, rng)
    replay, laps = made.replay(n_step=3), [12, 5]
    read = replay.storage.get

    def slow_read(index):
        batch = read(index)
        if laps:  # the writers go on while the first two reads take place
            made.write(0, laps.pop(), rng)
        return batch

    monkeypatch.setattr(replay.storage, "get", slow_read)
    assert_right(sampled(replay, 10), made, 3)
    assert replay.redrawn > 30 and not laps


def test_an_empty_replay_says_so(tmp_path):
    made = make_streams(tmp_path)
    with pytest.raises(RuntimeError, match="holds no whole transition yet"):
        made.replay().sample()
    made.write(0, 3, np.random.default_rng(0), end=0.0)
    with pytest.raises(RuntimeError, match="holds no whole transition yet"):
        made.replay(n_step=3).sample()
    assert set(made.replay(n_step=2).sample()["time"].tolist()) == {0}


def test_draws_go_on_from_a_state_dict(tmp_path):
    made = make_streams(tmp_path)
    made.write(0, 40, np.random.default_rng(0))
    one, two = made.replay(seed=1), made.replay(seed=2)
    sampled(one, 3)
    two._sampler.load_state_dict(one._sampler.state_dict())
    assert torch.equal(sampled(one, 3)["index"], sampled(two, 3)["index"])


# ------------------------------------------------------------------ TorchRL's interface, memory


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_sample_is_what_torchrls_loss_takes(tmp_path, n_step):
    made = make_streams(tmp_path, EVERYTHING)
    for worker in range(2):
        made.write(worker, 60, np.random.default_rng(worker))
    replay = made.replay(n_step, batch_size=32)
    sample, info = replay.sample(return_info=True)
    assert sample.batch_size == (32,) and set(info) == {"index", "stream", "time"}
    assert len(replay) == 2 * 3 * 40  # rings that are full
    assert replay.sample(5).batch_size == (5,)
    assert replay.sample().keys() == sample.keys()
    keys = {"action", "observation.camera", "action_mask", ("next", "reward"), ("next", "terminated"), ("next", "done")}
    assert keys <= set(sample.keys(True))
    assert ("steps_to_next_obs" in sample.keys()) == (n_step > 1)
    loss = build(DQNConfig(n_step=n_step), LearnerConfig(), EVERYTHING).loss(sample)["loss"]
    assert loss.shape == () and torch.isfinite(loss)


def test_what_sample_gave_is_kept(tmp_path):
    made, rng = make_streams(tmp_path, EVERYTHING), np.random.default_rng(0)
    made.write(0, 60, rng)
    replay = made.replay(n_step=3, batch_size=16)
    memory: dict[str, np.ndarray] = {}
    with replay.into(memory):
        replay.sample(16)
    sample = replay.sample()
    kept = sample.clone()
    replay.sample()
    with replay.into(memory):
        replay.sample(48)
    made.write(0, 40, rng)
    with replay.into(memory):
        replay.sample(16)
    assert (sample == kept).all()


def test_batches_have_the_shapes_and_dtypes_that_are_documented(tmp_path):
    made = make_streams(tmp_path, EVERYTHING)
    made.write(0, 60, np.random.default_rng(0))
    batch = sampled(made.replay(n_step=3, batch_size=16), 5)
    found = {key: (tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")) for key, tensor in batch.items()}
    assert {len(tensor) for tensor in batch.values()} == {80}
    leaves = {leaf.name: (leaf.seen_shape, leaf.dtype) for leaf in EVERYTHING.leaves} | {"action_mask": ((4,), "bool")}
    flag, number = ((1,), "bool"), ((), "int64")
    assert found == {
        **leaves,
        **{("next", name): column for name, column in leaves.items()},
        "action": number, "index": number, "stream": number, "time": number, "steps_to_next_obs": ((1,), "int64"),
        ("next", "reward"): ((1,), "float32"), ("next", "terminated"): flag, ("next", "truncated"): flag,
        ("next", "done"): flag,
    }  # fmt: skip


def test_chunks_of_any_size_share_one_memory(tmp_path):
    made = make_streams(tmp_path, EVERYTHING)
    made.write(0, 60, np.random.default_rng(0))
    replay, memory = made.replay(), {}
    camera = ("next", "observation.camera")
    with replay.into(memory):
        places = {replay.sample(16 * count)[camera].data_ptr() for count in (8, 1, 3, 8, 5)}
    assert len(places) == 1


def test_a_run_s_replay_is_sampled_and_looked_into_by_torchrls_interface(tmp_path):
    made = make_streams(tmp_path)
    made.write(0, 30, np.random.default_rng(0))
    replay = made.replay()
    assert isinstance(replay, TensorDictReplayBuffer) and "sample" not in vars(StreamReplay)
    assert len(replay) == 90 and not made.replay().storage.contains(90 + 1)
    row = replay[torch.tensor([7])]  # the transition that starts at a row
    stream, time = 7 % 3, 7 // 3
    for key, value in expected_transition(made.history[stream], time, 1, VECTOR).items():
        if key != "steps_to_next_obs":
            assert np.allclose(row[key].numpy().reshape(np.shape(value)), value), key
    with pytest.raises(RuntimeError, match="doesn't allow writing"):
        replay.extend(row)


def test_episodes_of_a_writer_that_is_gone_end_one_row_early():
    """Five streams in rings of 10 rows: the newest row of an open episode becomes its final observation."""
    streams = StreamLayout(1, 5, 10)
    columns = {name: np.zeros(streams.rows, bool) for name in ("final", "truncated")}
    stream = np.arange(5)
    time = np.array([0, 1, 5, 5, 15])  # nothing written, one row, and three that have more
    columns["final"][streams.index(np.array([3]), np.array([3]))] = True  # row 4 begins an episode
    close_episodes(columns, streams, stream, time)
    at = {
        name: [sorted(np.flatnonzero(column[streams.index(np.full(10, one), np.arange(10))])) for one in stream]
        for name, column in columns.items()
    }
    assert at["final"] == [[], [0], [4], [3, 4], [4]]  # row 14 lies at 4
    assert at["truncated"] == [[], [], [3], [], [3]]
    before = {name: column.copy() for name, column in columns.items()}
    close_episodes(columns, streams, stream, time)  # what has ended is left as it is
    assert all((column == before[name]).all() for name, column in columns.items())
