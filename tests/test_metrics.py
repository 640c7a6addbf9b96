"""Counters behind the telemetry, with clocks given by hand."""

import math
import subprocess
import sys

import pytest

from trainer.telemetry.metrics import Every, EverySeconds, Rate, ReturnWindow, bottleneck


def test_rate_is_the_slope_over_the_window():
    rate = Rate(window_s=10.0)
    assert math.isnan(rate.observe(0, now=100.0))  # nothing is known of a rate yet
    assert rate.observe(50, now=105.0) == pytest.approx(10.0)
    assert rate.observe(300, now=110.0) == pytest.approx(30.0)
    # At 120 s the window starts at 110 s: what came before no longer counts.
    assert rate.observe(320, now=120.0) == pytest.approx(2.0)


def test_rate_of_a_stalled_counter_falls_to_zero():
    rate = Rate(window_s=10.0)
    for second in range(60):
        rate.observe(min(second, 20) * 7, now=float(second))
    assert rate.value == 0.0
    assert len(rate._seen) <= 12


def test_rate_starts_afresh_when_the_total_falls():
    rate = Rate()
    rate.observe(1_000, now=0.0)
    rate.observe(0, now=1.0)
    assert rate.observe(30, now=2.0) == pytest.approx(30.0)


def test_rate_of_two_observations_at_one_time_is_not_known():
    rate = Rate()
    rate.observe(1, now=5.0)
    assert math.isnan(rate.observe(9, now=5.0))


def test_return_window_keeps_the_last_episodes():
    window = ReturnWindow(size=3)
    for episode_return in (100.0, -1.0, 2.0, 5.0):
        window.add(episode_return, length=int(abs(episode_return)) + 1)
    assert window.row() == {
        "episodes": 4,
        "return_mean": 2.0,
        "return_min": -1.0,
        "return_max": 5.0,
        "length_mean_frames": pytest.approx((2 + 3 + 6) / 3),
    }


def test_return_window_before_the_first_episode_is_nan():
    row = ReturnWindow().row()
    assert row["episodes"] == 0
    assert all(math.isnan(row[key]) for key in ("return_mean", "return_min", "return_max", "length_mean_frames"))


def test_return_window_state_round_trip():
    window, copy = ReturnWindow(size=2), ReturnWindow(size=2)
    for episode_return in (1.0, 2.0, 4.0):
        window.add(episode_return, 10)
    copy.load_state_dict(window.state_dict())
    window.add(8.0, 20)
    copy.add(8.0, 20)
    assert copy.row() == window.row()
    assert copy.row()["return_mean"] == 6.0 and copy.row()["episodes"] == 4


def test_every_answers_once_for_each_jump_over_multiples():
    every = Every(100)
    counts = (0, 99, 101, 150, 199, 200, 200, 555, 599, 600)
    assert [every.crossed(count) for count in counts] == [
        False, False, True, False, False, True, False, True, False, True,
    ]  # fmt: skip


def test_every_fires_as_often_as_multiples_for_small_steps():
    every = Every(7)
    assert sum(every.crossed(count) for count in range(0, 703, 3)) == 100


def test_every_zero_never_fires():
    every = Every(0)
    assert not any(every.crossed(count) for count in range(50))


def test_every_state_round_trip_asks_no_multiple_twice():
    every = Every(100)
    assert every.crossed(250)
    resumed = Every(100)
    resumed.load_state_dict(every.state_dict())
    assert not resumed.crossed(299)
    assert resumed.crossed(300)


def test_every_started_late_does_not_fire_for_the_past():
    assert not Every(100, start=250).crossed(260)


def test_every_seconds_has_no_drift():
    every = EverySeconds(1.0, now=10.0)
    times = (10.0, 10.9, 11.7, 11.9, 12.1, 15.5, 15.9, 16.0)
    assert [every.crossed(now) for now in times] == [False, False, True, False, True, True, False, True]


@pytest.mark.parametrize(
    ("collectors", "learner", "target", "side", "reason"),
    [
        (
            0.63, 0.02, 0.1, "learning",
            "collectors waited 63 % of the time for the replay-ratio limit (replay ratio 0.0945, target 0.1)",
        ),
        (
            0.0, 0.4, 0.1, "collection",
            "the learner waited 40 % of the time for new frames (replay ratio 0.0945, target 0.1)",
        ),
        (
            0.05, 0.02, 0.1, "balanced",
            "neither side waits for the other (replay ratio 0.0945, target 0.1)",
        ),
        (
            0.0, 0.0, None, "balanced",
            "neither side waits for the other, and no replay-ratio limit is set (replay ratio 0.0945)",
        ),
        (
            0.5, 0.45, 0.1, "balanced",
            "both sides wait alike, collectors 50 % and the learner 45 % of the time"
            " (replay ratio 0.0945, target 0.1)",
        ),
        (math.nan, 0.0, 0.1, "balanced", "nothing has been measured yet"),
    ],
)  # fmt: skip
def test_bottleneck_names_who_is_waited_for(collectors, learner, target, side, reason):
    assert bottleneck(collectors, learner, 0.0945, target) == (side, reason)


def test_metrics_and_loggers_do_not_import_torch_or_wandb():
    code = "import sys, trainer.telemetry.metrics, trainer.telemetry.loggers; "
    code += "print(sorted({'torch', 'wandb'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
