"""Issue 18, 1.16 and 2: who waits, sleeps or is slow is not taken for hung."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest
from running import Running, running

from trainer.memory.pulse import Silence

LONGER_S = 7.0  # than a process may be silent


def stopped_for(run: Running, seconds: float) -> None:
    """As Ctrl-Z, `scontrol suspend` or a freezer do it: all processes at once."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in run.alive():
            os.kill(pid, number)
        time.sleep(seconds if number == signal.SIGSTOP else 0)


@pytest.mark.slow
def test_slow_resets_and_a_suspended_run_cost_no_worker(tmp_path: Path):
    """Eight resets of 0.8 s in one vector step, and seven seconds of sleep, where three are allowed."""
    words = ["env.id=Found/SlowReset-v0", "collector.envs_per_worker=8", "evaluator.every_frames=200"]
    words += ["faults.hang_seconds=3", "faults.max_failures=0", "budget_frames=1_000_000"]
    with running(tmp_path, *words) as slow:
        slow.until(lambda: slow.collected() > 240)  # two rounds of resets
        stopped_for(slow, LONGER_S)
        frames = slow.collected()
        slow.until(lambda: slow.collected() > frames + 240)
        slow.process.send_signal(signal.SIGTERM)
        assert slow.ended() == 143, slow.said
        assert "sign of life" not in slow.events()


@pytest.mark.slow
def test_agents_that_wait_for_the_lock_of_the_shared_gradient_live_on(tmp_path: Path):
    """Somebody holds the lock for seven seconds, where three are allowed; then all are suspended for as long."""
    words = ["env.id=Found/Slow-v0", "schedule=shared_gradient", "schedule.application=locked"]
    words += ["schedule.applier=local", "agents.hang_seconds=3", "faults.max_failures=0", "budget_frames=1_000_000"]
    with running(tmp_path, *words) as shared:
        shared.until(lambda: shared.collected() > 300)
        (path,) = shared.run_dir.rglob("shared_agent")
        with open(path, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            time.sleep(LONGER_S)
        stopped_for(shared, LONGER_S)
        frames = shared.collected()
        shared.until(lambda: shared.collected() > frames + 300)
        shared.process.send_signal(signal.SIGTERM)
        assert shared.ended() == 143, shared.said
        assert "sign of life" not in shared.events()


def test_silence_counts_only_while_its_watcher_is_awake(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watched, silent = Silence(8.0), []
    for now in (101.0, 102.0, 3_602.0, 3_603.0, 3_604.0, 3_605.0, 3_606.0):  # an hour of sleep counts for 2 s
        clock[0] = now
        silent.append((watched.too_long(101.0), watched.silent_s))
    assert silent == [(False, 0.0), (False, 1.0), (False, 3.0), (False, 4.0), (False, 5.0), (False, 6.0), (False, 7.0)]
    clock[0] = 3_608.5
    assert watched.too_long(101.0) and watched.silent_s == 9.0
    assert not watched.too_long(3_608.0) and watched.silent_s == 0.0  # a sign of life
    assert not watched.too_long(3_700.0) and watched.silent_s == -91.5  # time that it is given to start
