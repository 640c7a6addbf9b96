"""Batches between updates and in the background: the same rows in the same order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.envs import DiscreteAction, EnvSpec, Leaf
from trainer.learning.feed import Feed
from trainer.learning.update import linear
from trainer.replay.buffer import StreamReplay, Transitions
from trainer.replay.streams import StreamLayout, open_storage
from trainer.replay.uniform import StreamSampler

VECTOR = EnvSpec("vector", (Leaf("observation", (4,), "float32", "vector"),), DiscreteAction(3))
CPU = torch.device("cpu")


def open_replay(folder: Path, seed: int = 4) -> StreamReplay:
    """60 rows whose observations are their numbers; batches of 8."""
    streams, cursor = StreamLayout(1, 2, 30), np.full(2, 30)
    storage = open_storage(VECTOR, streams, folder)
    storage._storage["observation"].numpy()[:] = np.arange(60)[:, None]
    columns = {name: column.numpy() for name, column in storage._storage.items()}
    return StreamReplay(
        Transitions(VECTOR, columns, streams, cursor, 0.9, 1), StreamSampler(cursor, streams, seed=seed), 8
    )


@pytest.mark.parametrize("ahead", [False, True], ids=["between updates", "in the background"])
def test_feed_yields_what_sample_gives_batch_by_batch_in_the_order_asked_for(tmp_path, ahead):
    """Chunks of 5, 3, 3 and 1 batches draw the same rows, whether the next one is gathered meanwhile or not."""
    plain, feed, seen = open_replay(tmp_path / "a"), Feed(open_replay(tmp_path / "b"), CPU, ahead), 0
    counts = [5, 3, 3, 1]
    for number, count in enumerate(counts):
        whole = plain.sample(count * 8)
        then = counts[number + 1] if number < 3 else 0
        for i, batch in enumerate(feed.batches(count, then)):
            assert set(batch) == set(whole.keys(True, True))
            assert all(torch.equal(tensor, whole[key][8 * i : 8 * i + 8]) for key, tensor in batch.items())
            assert torch.equal(batch["observation"][:, 0], batch["index"].float())
            seen += 1
    assert seen == 12
    feed.close()


def test_feed_gives_as_many_as_are_asked_for_when_it_was_told_another_number(tmp_path):
    feed = Feed(open_replay(tmp_path), CPU, ahead=True)
    for count, then in ((2, 5), (3, 1), (4, 2), (1, 0), (6, 0)):
        assert len(list(feed.batches(count, then))) == count
    feed.close()


@pytest.mark.parametrize(
    ("fraction", "value"), [(0.0, 1.0), (0.25, 0.775), (0.2599, 0.775), (0.5, 0.55), (1.0, 0.1), (1.5, 0.1)]
)
def test_linear_schedule_goes_in_hundredths(fraction, value):
    assert linear(1.0, 0.1, fraction) == pytest.approx(value)
    assert linear(1.0, None, fraction) == 1.0
