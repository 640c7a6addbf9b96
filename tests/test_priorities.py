"""Priorities against slow references: the tree, how often rows are drawn, and what happens as rings wrap around."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torchrl.data.replay_buffers import samplers as torchrl_samplers

from tests.replay_streams import GAMMA, Streams, make_streams, sampled
from trainer.algorithms.targets import first_priority
from trainer.config.algorithms import DQNConfig
from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.replay.buffer import StreamReplay
from trainer.replay.priorities import FANOUT, PrioritizedStreamSampler, PriorityTree
from trainer.replay.streams import open_storage, row_bytes, row_spec, worker_rows
from trainer.replay.uniform import StreamSampler

STACKED = EnvSpec("test", (Leaf("observation", (2,), "float32", "vector", stack=3),), DiscreteAction(4))


def prioritized(
    written: Streams, alpha: float = 0.6, beta: float = 0.4, n_step: int = 1, seed: int = 0, batch_size: int = 16
) -> tuple[StreamReplay, PrioritizedStreamSampler]:
    uniform = StreamSampler(written.cursor, written.streams, n_step, written.spec.stack - 1, seed)
    final = written.storage._storage["final"].numpy()
    sampler = PrioritizedStreamSampler(uniform, alpha, beta, 0.0, final, batch_size)
    return StreamReplay(written.transitions(n_step), sampler, batch_size), sampler


def known(sampler: PrioritizedStreamSampler) -> dict[tuple[int, int], float]:
    """Every transition that the tree would draw, with its share."""
    rows = np.flatnonzero(sampler.tree[np.arange(sampler.tree.size)])
    streams, found = sampler.streams, {}
    for stream in range(streams.num_streams):
        for time in range(sampler._begin[stream], sampler._adopted[stream]):
            row = int(streams.index(np.array(stream), np.array(time)))
            if row in rows:
                found[stream, time] = float(sampler.tree[np.array(row)])
    assert len(found) == len(rows)  # nothing is left over from rows that are gone
    return found


# ------------------------------------------------------------------ the tree


@pytest.mark.parametrize("size", [1, 2, FANOUT, FANOUT + 1, 300, FANOUT**2, 5000])
def test_the_tree_equals_a_plain_array(size: int) -> None:
    rng, tree, plain = np.random.default_rng(size), PriorityTree(size), np.zeros(size)
    for _ in range(30):
        index = rng.integers(0, size, rng.integers(1, 40))
        value = rng.random(len(index)) * (rng.random(len(index)) < 0.7)
        tree[index] = value
        plain[index] = value
        assert np.array_equal(tree[np.arange(size)], plain)
        assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
        if not plain.any():
            continue
        mass = rng.random(200) * tree.total
        assert np.array_equal(tree.scan_lower_bound(mass), np.searchsorted(np.cumsum(plain), mass, side="right"))


def test_a_mass_at_the_very_end_finds_a_leaf_that_has_any() -> None:
    tree = PriorityTree(1000)
    tree[np.arange(10)] = 0.1
    for mass in (tree.total, np.nextafter(tree.total, 2), tree.total * (1 + 1e-15)):
        assert tree.scan_lower_bound(np.array([mass]))[0] == 9
    assert tree.scan_lower_bound(np.array([0.0]))[0] == 0


def test_of_a_leaf_named_twice_the_last_value_holds() -> None:
    tree = PriorityTree(100)
    tree[np.array([3, 3, 50, 3])] = np.array([1.0, 2.0, 4.0, 8.0])
    assert tree.total == 12.0 and tree[np.array([3, 50])].tolist() == [8.0, 4.0]


@pytest.mark.skipif(
    getattr(torchrl_samplers, "SumSegmentTreeFp32", None) is None,
    reason="TorchRL's C++ tree does not load with this torch",
)
def test_the_tree_equals_torchrls() -> None:
    theirs, ours, rng = torchrl_samplers.SumSegmentTreeFp32(4096), PriorityTree(4096), np.random.default_rng(0)
    for _ in range(20):
        index, value = rng.permutation(4096)[:200], rng.random(200).astype(np.float32)
        theirs[torch.from_numpy(index)] = torch.from_numpy(value)
        ours[index] = value
        mass = rng.random(500) * ours.total * 0.999
        found = theirs.scan_lower_bound(torch.from_numpy(mass.astype(np.float32))).numpy()
        assert np.mean(found == ours.scan_lower_bound(mass)) > 0.99  # theirs rounds to float32


def test_entropy_is_one_of_equal_leaves_and_zero_of_a_single_one() -> None:
    tree = PriorityTree(64)
    tree[np.arange(10)] = 0.3
    assert tree.entropy() == pytest.approx(1.0)
    tree[np.arange(10)] = np.array([8.0, 8, 0, 0, 0, 0, 0, 0, 0, 0])
    assert tree.entropy() == pytest.approx(1.0)  # of two
    tree[np.array([0, 1])] = np.array([3.0, 1.0])
    assert tree.entropy() == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / np.log(2))


# ------------------------------------------------------------------ statistics


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_are_as_frequent_as_the_priorities_say(tmp_path: Path, alpha: float) -> None:
    written = make_streams(tmp_path)
    for worker in range(2):
        written.write(worker, 100, np.random.default_rng(worker))
    _, sampler = prioritized(written, alpha)
    sampler.adopt()
    pairs = sorted(written.startable(1))
    stream, time = np.array(pairs).T
    errors = np.random.default_rng(5).exponential(size=len(pairs))
    sampler.update(stream, time, errors)
    drawn = list(zip(*(part.tolist() for part in sampler.draw(200_000)), strict=True))
    counts = np.array([drawn.count(pair) for pair in pairs[:60]])
    p = errors**alpha / (errors**alpha).sum()
    assert set(drawn) <= set(pairs)
    rest = 200_000 - counts.sum()
    expected = np.append(p[:60], 1 - p[:60].sum()) * 200_000
    assert chisquare(np.append(counts, rest), expected).pvalue > 1e-3


def test_alpha_zero_draws_what_uniform_draws_may_and_weighs_all_alike(tmp_path: Path) -> None:
    written = make_streams(tmp_path)
    for worker in range(2):
        written.write(worker, 55, np.random.default_rng(worker))
    _, sampler = prioritized(written, alpha=0.0)
    stream, time = sampler.draw(20_000)
    sampler.update(stream, time, np.random.default_rng(0).exponential(size=len(time)))
    stream, time = sampler.draw(20_000)
    assert set(zip(stream.tolist(), time.tolist(), strict=True)) == written.startable(1)
    assert (sampler.weights(stream, time, 20) == 1).all()


def test_weights_of_two_batches_by_hand(tmp_path: Path) -> None:
    """Priorities 1, 4, 16 and 4, 16, 64 at beta 1/2: a row is weighed against those of its own batch alone."""
    written = make_streams(tmp_path, workers=1, envs=1, ring=40)
    written.write(0, 10, np.random.default_rng(0), end=0.0)
    _, sampler = prioritized(written, alpha=1.0, beta=0.5)
    sampler.adopt()
    stream, time = np.zeros(4, np.int64), np.arange(4)
    sampler.update(stream, time, np.array([1.0, 4.0, 16.0, 64.0]))
    two = np.array([0, 1, 2, 1, 2, 3])
    expected = np.array([1, 1 / 2, 1 / 4] * 2, np.float32)
    assert np.array_equal(sampler.weights(stream[0] + 0 * two, two, 3), expected)
    assert np.array_equal(sampler.weights(np.zeros(2, np.int64), np.array([3, 3]), 1), np.ones(2, np.float32))
    sampler.update(stream, time, np.array([1e-3, 4.0, 16.0, 64.0]))  # a row of no batch here changes none of them
    assert np.array_equal(sampler.weights(np.zeros(3, np.int64), two[3:], 3), expected[3:])


def test_an_example_out_of_rows_that_are_not_written_yet_has_weights_of_one(tmp_path: Path) -> None:
    replay, _ = prioritized(make_streams(tmp_path), batch_size=8)
    assert torch.equal(replay.example()["priority_weight"], torch.ones(8))


def test_weights_follow_the_formula(tmp_path: Path) -> None:
    """`(N P) ** -beta` over its maximum in the batch (Schaul et al. 2016, 3.4); N and P of every transition."""
    written = make_streams(tmp_path)
    written.write(0, 30, np.random.default_rng(0))
    written.write(1, 30, np.random.default_rng(1))
    replay, sampler = prioritized(written, alpha=0.7, beta=0.5)
    sampler.adopt()
    pairs = sorted(written.startable(1))
    stream, time = np.array(pairs).T
    sampler.update(stream, time, np.random.default_rng(2).exponential(size=len(pairs)))
    shares = known(sampler)
    p = np.array([shares[pair] for pair in pairs]) / sum(shares.values())
    weight = {pair: (len(pairs) * share) ** -0.5 for pair, share in zip(pairs, p, strict=True)}
    whole = {key: tensor.view(5, 16, *tensor.shape[1:]) for key, tensor in sampled(replay, 5).items()}
    assert whole["priority_weight"].dtype == torch.float32
    largest = []
    for i in range(5):
        drawn = list(zip(whole["stream"][i].tolist(), whole["time"][i].tolist(), strict=True))
        largest.append(max(weight[pair] for pair in drawn))
        expected = [weight[pair] / largest[i] for pair in drawn]
        np.testing.assert_allclose(whole["priority_weight"][i].numpy(), expected, rtol=1e-5)
    assert len(set(largest)) == 5 and max(largest) < max(weight.values())  # neither the chunk's nor that of all rows
    one = replay.sample(7)
    drawn = list(zip(one["stream"].tolist(), one["time"].tolist(), strict=True))
    expected = np.array([weight[pair] for pair in drawn])
    np.testing.assert_allclose(one["priority_weight"].numpy(), expected / expected.max(), rtol=1e-5)
    sampler.beta = 0.0
    assert (sampled(replay, 3)["priority_weight"] == 1).all()


# ------------------------------------------------------------------ rows that come and go


@pytest.mark.parametrize("spec", [None, STACKED], ids=["plain", "stacked"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_new_rows_are_adopted_and_overwritten_ones_dropped_for_ever(
    tmp_path: Path, spec: EnvSpec | None, n_step: int
) -> None:
    """After any writing, far beyond one lap of the rings, exactly what may be drawn has a priority."""
    written = make_streams(tmp_path, spec) if spec else make_streams(tmp_path)
    _, sampler = prioritized(written, n_step=n_step)
    rng = np.random.default_rng(3)
    for turn in range(40):
        for worker in range(2):
            written.write(worker, int(rng.choice([0, 1, 7, 39, 40, 41, 100])), rng)
        if sampler.cursor.max() > 5:
            sampler.adopt()
            assert set(known(sampler)) == written.startable(n_step), turn
            assert set(known(sampler).values()) == {1.0}


def test_a_new_row_gets_the_largest_error_so_far(tmp_path: Path) -> None:
    written = make_streams(tmp_path)
    written.write(0, 10, np.random.default_rng(0), end=0.0)
    _, sampler = prioritized(written, alpha=1.0)
    sampler.adopt()
    assert set(known(sampler).values()) == {1.0}
    sampler.update(np.array([0, 0]), np.array([2, 3]), np.array([5.0, 0.25]))
    written.write(0, 1, np.random.default_rng(1), end=0.0)
    sampler.adopt()
    shares = known(sampler)
    assert (shares[0, 2], shares[0, 3], shares[0, 4], shares[0, 9]) == (5.0, 0.25, 1.0, 5.0)


def test_a_priority_that_comes_after_its_row_was_overwritten_is_left_out(tmp_path: Path) -> None:
    written = make_streams(tmp_path, workers=1, envs=1, ring=40)
    written.write(0, 40, np.random.default_rng(0), end=0.0)
    replay, sampler = prioritized(written, alpha=1.0)
    sampler.adopt()
    stream, time = np.zeros(2, np.int64), np.array([3, 30])
    written.write(0, 10, np.random.default_rng(1), end=0.0)  # overwrites 0 .. 9, unseen by the tree
    sampler.update(stream, time, np.array([100.0, 7.0]))
    assert sampler.rejected == 1 and sampler.largest == 7.0
    sampler.adopt()
    shares = known(sampler)
    assert shares[0, 30] == 7.0 and shares[0, 43] == 7.0 and (0, 3) not in shares  # 43 lies where 3 lay: it is new
    # Adopted meanwhile, the place carries another transition.
    sampler.update(np.zeros(1, np.int64), np.array([3]), np.array([100.0]))
    assert sampler.rejected == 2 and known(sampler)[0, 43] == 7.0


def test_priorities_of_a_batch_count_from_the_next_gathering_on(tmp_path: Path) -> None:
    written = make_streams(tmp_path, workers=1, envs=1, ring=40)
    written.write(0, 30, np.random.default_rng(0), end=0.0)
    replay, sampler = prioritized(written, alpha=1.0, batch_size=8)
    first = {key: tensor[:8] for key, tensor in sampled(replay, 2).items()}
    drawn = set(first["time"].tolist())
    replay.reprioritize(first["stream"], first["time"], torch.full((8,), 1e-9))
    assert set(known(sampler).values()) == {1.0}
    replay.take_priorities()
    times = sampled(replay, 200)["time"].tolist()
    assert not drawn & set(times)


def test_a_collectors_own_error_is_the_first_priority(tmp_path: Path) -> None:
    """Against `|R + gamma^m (1 - terminated) max Q(s') - Q(s, a)|`, summed up step by step over the history."""
    written = make_streams(tmp_path)
    written.storage = open_storage(written.spec, written.streams, tmp_path / "values", with_values=True)
    rng, values = np.random.default_rng(4), {}
    for worker in range(2):
        written.write(worker, 70, rng)
        rows = worker_rows(written.storage, written.streams, worker)
        rows["value_taken"][:] = rng.standard_normal(rows["value_taken"].shape)
        rows["value_best"][:] = rng.standard_normal(rows["value_best"].shape)
        values[worker] = rows
    replay, sampler = prioritized(written, alpha=1.0, n_step=3)
    config = DQNConfig(gamma=GAMMA)
    sampler.first = partial(replay.storage.first_priorities, priority=partial(first_priority, config=config))
    sampler.adopt()
    shares = known(sampler)
    assert set(shares) == written.startable(3)
    for (stream, time), share in shares.items():
        history, ring, env = written.history[stream], written.streams.ring, stream % 3
        total, m = 0.0, 0
        while m < 3 and not (m and (history[time + m - 1]["terminated"] or history[time + m - 1]["truncated"])):
            total += GAMMA**m * history[time + m]["reward"]
            m += 1
        columns = values[stream // 3]
        if not history[time + m - 1]["terminated"]:
            total += GAMMA**m * columns["value_best"][(time + m) % ring, env]
        assert share == pytest.approx(abs(total - columns["value_taken"][time % ring, env]), rel=1e-4, abs=1e-5)


def test_values_cost_eight_bytes_a_row_and_only_where_they_are_wanted(tmp_path: Path) -> None:
    spec = make_streams(tmp_path).spec
    assert row_bytes(spec, with_values=True) == row_bytes(spec) + 8
    assert "value_best" not in row_spec(spec)


def test_a_checkpoint_goes_on_with_the_same_draws_and_priorities(tmp_path: Path) -> None:
    written = make_streams(tmp_path)
    for worker in range(2):
        written.write(worker, 90, np.random.default_rng(worker))
    _, sampler = prioritized(written)
    stream, time = sampler.draw(500)
    sampler.update(stream, time, np.random.default_rng(0).exponential(size=500))
    state = sampler.state_dict()
    torch.save(state, tmp_path / "state.pt")
    _, other = prioritized(written, seed=99)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    written.write(0, 5, np.random.default_rng(7))
    for _ in range(3):
        for mine, theirs in zip(sampler.draw(100), other.draw(100), strict=True):
            assert np.array_equal(mine, theirs)
    assert other.tree.total == pytest.approx(sampler.tree.total) and other.largest == sampler.largest


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    _, sampler = prioritized(make_streams(tmp_path))
    with pytest.raises(RuntimeError, match="no whole transition"):
        sampler.draw(1)
