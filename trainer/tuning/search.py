"""A search: its trials in one file, which processes on several machines share, and who works on which trial.

FOLDER/study.journal is Optuna's storage. Trial N has the run folder FOLDER/trial_N, and FOLDER/trial_N.lock is locked
as long as its run or the process that started it lives. A trial that is not finished and whose lock is free was killed
or stopped: whoever sees that gives its values and its folder to a new trial, and that run is resumed.
"""

from __future__ import annotations

import fcntl
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from trainer.config.fields import ConfigError
from trainer.run_folder.folder import write_json
from trainer.tuning.space import Space, arguments_of, text_of

PRUNERS: dict[str, Callable[[], BasePruner]] = {
    # As long as 5 trials have not reached an evaluation, nothing is pruned there.
    "median": lambda: MedianPruner(n_startup_trials=5, n_warmup_steps=1, n_min_trials=5),
    "asha": lambda: SuccessiveHalvingPruner(min_resource=2, reduction_factor=3),
    "none": NopPruner,
}
ANYWHERE = ("replay.scratch_dir=", "learner.device=", "logger.")  # arguments that may differ between machines


@dataclass(frozen=True)
class Search:
    """An open search.

    Args:
        folder: with the storage and the runs.
        study: Optuna's.
        space: what is searched.
        trials: how many end the search, of all processes together.
    """

    folder: Path
    study: optuna.Study
    space: Space
    trials: int


def open_search(
    folder: Path,
    space: Space,
    fixed: Sequence[str],
    trials: int,
    pruner: str,
    seed: int | None,
    first: Mapping[str, Any],
) -> Search:
    """Begin a search, or join one.

    Args:
        folder: of the search.
        space: what is searched.
        fixed: the arguments that all trials share.
        trials: how many end it.
        pruner: a key of `PRUNERS`.
        seed: of the sampler; None: random, as several processes need.
        first: values of the first trial, as far as they are given: those of the preset.

    Raises:
        ConfigError: the folder holds another search, or cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
            study = optuna.create_study(
                study_name="trainer", storage=storage, pruner=PRUNERS[pruner](),
                direction="maximize", load_if_exists=True,
            )  # fmt: skip
            # Other draws than those of the process that was killed, which would be made again.
            again = None if seed is None else seed + len(study.get_trials(deepcopy=False))
            study.sampler = optuna.samplers.TPESampler(seed=again)
            asked = {
                "arguments": sorted(text for text in fixed if not text.startswith(ANYWHERE)),
                "space": {key: text_of(distribution) for key, distribution in space.items()},
            }
            if not study.user_attrs:
                for key, value in asked.items():
                    study.set_user_attr(key, value)
                study.enqueue_trial(dict(first))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be used for a search ({error}): choose another folder") from error
    for key, value in asked.items():
        if study.user_attrs[key] != value:
            raise ConfigError(
                f"{folder} holds a search with other {key} ({study.user_attrs[key]}): use these, or another --folder"
            )
    return Search(folder, study, space, trials)


@contextmanager
def next_trial(search: Search) -> Iterator[tuple[optuna.Trial, int] | None]:
    """A context with a trial to run and the descriptor of its lock; None while others run the last ones."""
    with locked(search.folder / "lock"):
        _give_up_dead(search)
        states = [trial.state for trial in search.study.get_trials(deepcopy=False) if counts(trial)]
        if TrialState.WAITING not in states and len(states) >= search.trials:
            trial = None
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first trial's values may lie between the steps of the space
                trial = search.study.ask(search.space)
        file = os.open(lock_of(search, trial.number), os.O_RDWR | os.O_CREAT) if trial else -1
        if trial:
            fcntl.flock(file, fcntl.LOCK_EX)
    if trial is None:
        yield None
        return
    try:
        yield trial, file
    finally:
        os.close(file)


def folder_of(search: Search, trial: optuna.Trial | FrozenTrial) -> Path:
    """The run folder of a trial; one that goes on with another trial's run has that one's."""
    return search.folder / str(trial.user_attrs.get("folder", f"trial_{trial.number:04}"))


def lock_of(search: Search, number: int) -> Path:
    """The lock file of a trial."""
    return search.folder / f"trial_{number:04}.lock"


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those that were asked for: not one whose run another trial went on with."""
    return trial.state != TrialState.FAIL or "error" in trial.user_attrs


def running(search: Search) -> int:
    """How many trials other processes run."""
    return len(search.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))


def best(search: Search) -> FrozenTrial | None:
    """The finished trial with the highest score; None before the first one has finished."""
    finished = search.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return max(finished, key=lambda trial: trial.value if trial.value is not None else -math.inf, default=None)


def write_best(search: Search, fixed: Sequence[str]) -> None:
    """Write score, run and arguments of the best trial into FOLDER/best.json."""
    if (trial := best(search)) is not None:
        content = {
            "score": trial.value, "run": folder_of(search, trial).name,
            "arguments": [*fixed, *arguments_of(trial.params)],
        }  # fmt: skip
        write_json(search.folder / "best.json", content)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A context in which no other process on any machine holds the lock of this file."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _give_up_dead(search: Search) -> None:
    for trial in search.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        with open(lock_of(search, trial.number), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            search.study.enqueue_trial(trial.params, user_attrs={"folder": folder_of(search, trial).name})
            search.study.tell(trial.number, state=TrialState.FAIL)
