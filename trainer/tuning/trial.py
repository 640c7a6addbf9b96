"""One trial: a run in a process and a folder of its own, whose evaluations decide whether it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from trainer.config.run_files import RunFolder
from trainer.host.signals import stop_with_parent
from trainer.reading import ReadError, read_json
from trainer.telemetry.rows import of_kind, read, value_of

POLL_S = 0.2
READING_SHARE = 0.05  # of the time, at most, is spent on reading the run's rows


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Args:
        state: finished, pruned, failed or stopped. A stopped one goes on later.
        score: mean return of the best policy in the final evaluation; None unless it is finished.
        text: why it failed, or "".
    """

    state: str
    score: float | None = None
    text: str = ""


def run_trial(
    trial: optuna.Trial,
    arguments: Sequence[str],
    folder: Path,
    every_frames: int,
    lock: int,
    stop: Callable[[], int],
) -> Outcome:
    """Run a trial to its end, or until its evaluations are too low; it resumes what its folder holds.

    Args:
        trial: that is told the evaluations.
        arguments: of the run.
        folder: of the run; what it prints goes to FOLDER.log.
        every_frames: frames between two evaluations.
        lock: a file descriptor that is locked as long as the run is going on.
        stop: the signal that this process got, or 0; the run gets it too, and saves.
    """
    command = [sys.executable, "-m", "trainer.run", *arguments, f"run_dir={folder}", "resume=auto"]
    with open(folder.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock],
            start_new_session=True,  # Ctrl-C goes to this process, which passes it on once
            preexec_fn=stop_with_parent,
        )  # fmt: skip
    asked = ""
    try:
        while process.poll() is None:
            began = time.monotonic()
            if not asked and stop():
                process.send_signal(stop())
                asked = "stopped"
            if not asked and report(trial, folder, every_frames):
                process.send_signal(signal.SIGTERM)
                asked = "pruned"
            time.sleep(max(POLL_S, (time.monotonic() - began) / READING_SHARE))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    report(trial, folder, every_frames)
    if process.returncode == 0:
        return _finished(folder)
    if asked:
        return Outcome(asked)
    return Outcome("failed", text=_why(process.returncode, folder))


def report(trial: optuna.Trial, folder: Path, every_frames: int) -> bool:
    """Report the evaluations that the run has made; whether the trial should be pruned.

    A step is the number of an evaluation and not its frames, which differ from run to run: so a pruner compares alike.
    """
    if not RunFolder(folder).metrics.exists():
        return False
    try:
        rows = of_kind(read(folder)[0], "evaluation")
    except ReadError:  # the folder is being made, or the disk does not answer; the next time it may
        return False
    known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    prune = False
    for step, value in steps(rows, every_frames).items():
        if step not in known:
            trial.report(value, step)
            prune = trial.should_prune()
    return prune


def steps(rows: Sequence[dict[str, float | int | str]], every_frames: int) -> dict[int, float]:
    """The mean returns of evaluations by their numbers, the first being 1."""
    found: dict[int, float] = {}
    for row in sorted(rows, key=lambda row: value_of(row, "frames")):
        value = value_of(row, "eval_return_mean")
        if value == value:
            found[max(1, round(value_of(row, "frames") / max(1, every_frames)))] = value
    return found


def _finished(folder: Path) -> Outcome:
    try:
        score = value_of(read_json(RunFolder(folder).summary), "eval_return_mean")
    except ReadError as error:
        return Outcome("failed", text=str(error))
    if score != score:
        return Outcome("failed", text="no episode of the final evaluation has ended: raise evaluator.final_max_seconds")
    return Outcome("finished", score)


def _why(code: int, folder: Path) -> str:
    """What the run said last, as one line."""
    said = folder.with_suffix(".log").read_text(errors="replace").strip().splitlines()
    errors = [line for line in said if line.startswith("error: ")]
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return (errors or said or [""])[-1].removeprefix("error: ") or f"it ended with {how}"
