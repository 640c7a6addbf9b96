"""The limiter's numbers at its edges, and that no interleaving of two sides leaves its band."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.learning.limiter import Limiter


def limiter(updates: int = 0, **changes) -> Limiter:
    made = Limiter(
        **{
            "budget_frames": 10_000,
            "warmup_frames": 100,
            "frames_per_update": 10.0,
            "tolerance_frames": 32,
            **changes,
        }
    )
    made.updates = updates
    return made


@pytest.mark.parametrize(
    ("frames", "updates", "due"),
    [
        (0, 0, 0),
        (99, 0, 0),
        (109, 0, 0),
        (110, 0, 1),
        (119, 0, 1),
        (120, 0, 2),
        (200, 10, 0),
        (209, 10, 0),
        (210, 10, 1),
    ],
)
def test_an_update_is_due_for_every_ten_frames_after_the_warm_up(frames, updates, due):
    assert limiter(updates).due(frames) == due


def test_an_update_is_due_for_every_three_episodes_once_the_warm_up_is_over():
    own = limiter(episodes_per_update=3.0, tolerance_episodes=4)
    assert own.due(99, episodes=30) == 0  # none of them is forgotten
    assert [own.due(100, episodes) for episodes in (0, 2, 3, 30)] == [0, 0, 1, 10]
    own.updates = 9
    assert (own.due(500, 29), own.due(500, 30)) == (0, 1)
    assert own.frame_limit() == 10_000
    assert own.episode_limit(99) > 10**9 and own.episode_limit(100) == 30 + 4
    assert not own.finished(10_000, 30) and own.finished(10_000, 29)
    half = limiter(episodes_per_update=0.5)
    assert half.due(100, 7) == 14 and half.episode_limit(100) == 1 + 1
    own.begin_again(600, episodes=30)  # the replay is gone: a new warm-up, and what was owed before is done with
    assert own.due(699, 60) == 0 and own.due(700, 60) == 10
    other = limiter(episodes_per_update=3.0, tolerance_episodes=4)
    other.load_state_dict(own.state_dict())
    assert other.due(700, 60) == 10 and other.episode_limit(700) == own.episode_limit(700) == 30 + 3 + 4


def test_nothing_is_due_when_learning_is_ahead():
    assert limiter(updates=50).due(300) == 0


@pytest.mark.parametrize(("updates", "limit"), [(0, 142), (1, 152), (10, 242), (986, 10_000), (987, 10_000)])
def test_collection_may_run_ahead_by_one_update_and_the_tolerance(updates, limit):
    assert limiter(updates).frame_limit() == limit


def test_a_ratio_that_is_no_whole_number_of_frames():
    half = limiter(frames_per_update=0.5)
    assert (half.due(99), half.due(100), half.due(101), half.due(107)) == (0, 0, 2, 14)
    third = limiter(frames_per_update=10 / 3)
    assert [third.due(100 + frames) for frames in (3, 4, 6, 7, 10)] == [0, 1, 1, 2, 3]
    assert third.frame_limit() == 100 + 4 + 32


def test_unlimited_neither_side_waits():
    free = limiter(updates=10**9, frames_per_update=None)
    assert free.due(99) == 0 and free.due(100) == math.inf
    assert free.frame_limit() == 10_000
    assert not free.finished(9_999) and free.finished(10_000)


def test_finished_needs_the_budget_and_its_updates():
    almost = limiter(updates=989)
    assert not almost.finished(9_999)
    assert almost.due(10_000) == 1 and not almost.finished(10_000)
    almost.updates += 1
    assert almost.finished(10_000)
    assert not almost.finished(10_040)  # frames of the last vector step, beyond the budget, are owed updates as well


def test_state_dict_round_trip():
    other = limiter()
    other.load_state_dict(limiter(updates=123).state_dict())
    assert other.updates == 123
    assert other.frame_limit() == limiter(updates=123).frame_limit()


@pytest.mark.parametrize("seed", range(20))
def test_no_interleaving_leaves_the_band_or_stands_still(seed):
    rng = np.random.default_rng(seed)
    step = int(rng.integers(1, 65))  # frames of one vector step of all workers
    warmup, tolerance = int(rng.integers(1, 500)), step + int(rng.integers(0, 300))
    per_update = float(rng.choice([0.25, 1.0, 10 / 3, 4.0, 17.3, 100.0]))
    own = Limiter(warmup + 3_000, warmup, per_update, tolerance)
    frames, collector_share = 0, rng.uniform(0.02, 0.98)
    for _ in range(200_000):
        if own.finished(frames):
            break
        may_collect, may_learn = frames < own.frame_limit(), own.due(frames) > 0
        assert may_collect or may_learn, "both sides wait for each other"
        if rng.random() < collector_share:
            frames += step if may_collect else 0
        elif may_learn:
            own.updates += int(min(own.due(frames), rng.integers(1, 9)))
        assert own.updates <= max(0.0, frames - warmup) / per_update
        assert frames < warmup + (own.updates + 1) * per_update + 1 + tolerance + step
        assert frames < own.budget_frames + step
    assert own.finished(frames)
    assert own.updates == (frames - warmup) // per_update
