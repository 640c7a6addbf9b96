"""A signal asks a run to end: noted where somebody looks, raised where nobody does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.host.signals import Stopped, StopSignals
from trainer.run_folder import manifest


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[StopSignals]:
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, by which tests may be started, ignores it
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    with StopSignals(leftovers=tmp_path / "nothing") as stop:
        yield stop
    assert {number: signal.getsignal(number) for number in before} == before
    signal.signal(signal.SIGHUP, hangup)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_is_noted(number: signal.Signals, stop: StopSignals) -> None:
    assert stop.number == 0
    signal.raise_signal(number)
    assert (stop.number, stop.name) == (number, number.name)


def test_signal_is_raised_at_once(stop: StopSignals) -> None:
    with pytest.raises(Stopped), stop.raising(after_s=0):
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it was not raised")  # pytest's failure is no Exception either, but not Stopped


def test_signal_from_before_is_raised_at_the_entry(stop: StopSignals) -> None:
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped), stop.raising(after_s=0):
        pytest.fail("it was not raised")


def test_code_that_looks_has_time_to_end(stop: StopSignals) -> None:
    with stop.raising(after_s=60):
        signal.raise_signal(signal.SIGINT)
        assert stop.number == signal.SIGINT
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_code_that_does_not_look_is_interrupted(stop: StopSignals) -> None:
    start = time.monotonic()
    with pytest.raises(Stopped), stop.raising(after_s=0.05):
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
    assert 0.05 <= time.monotonic() - start < 60


def test_exception_that_an_interruption_turned_into_is_told_as_the_stop(stop: StopSignals) -> None:
    """As TensorDict does, whose context managers fail when what they hold is interrupted."""
    with pytest.raises(Stopped) as stopped, stop.raising(after_s=0):
        try:
            signal.raise_signal(signal.SIGTERM)
        except Stopped:
            raise ValueError("made of it") from None
    assert str(stopped.value.__cause__) == "made of it"


def test_failure_is_no_stop_when_nothing_was_interrupted(stop: StopSignals) -> None:
    with pytest.raises(ValueError, match="of its own"), stop.raising(after_s=60):
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("of its own")


def test_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(leftovers=tmp_path) as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.number == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_after_a_signal_ends_the_process_and_removes_what_was_left(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    manifest.begin(folder)
    manifest.add(folder / "rows.memmap")
    (folder / "rows.memmap").write_bytes(b"0" * 100)
    code = (
        "import signal, sys; from pathlib import Path; from trainer.host.signals import StopSignals\n"
        "with StopSignals(Path(sys.argv[1])):\n"
        "    signal.raise_signal(signal.SIGINT); print('first', flush=True)\n"
        "    signal.raise_signal(signal.SIGTERM); print('saves on', flush=True)\n"
        "    signal.raise_signal(signal.SIGINT); print('second', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "first\nsaves on\n", "")
    assert list(tmp_path.iterdir()) == []
