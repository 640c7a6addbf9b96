"""Search for a better configuration: `python -m trainer.tune preset=cartpole --trials 20 --folder FOLDER`.

KEY=VALUE are those of trainer.run. Keys with several values are searched, as learner.batch_size=32,64 or
'learner.learning_rate=tag(log,interval(1e-4,1e-2))', and those of the preset's search space. The first trial has the
preset's values. The same command joins the search or goes on with it, on this machine or on others that share FOLDER.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.commands.names import program
from trainer.config.compose import load
from trainer.config.fields import ConfigError
from trainer.config.parts import import_from_here
from trainer.host.signals import StopSignals

MOST_FAILURES = 3  # in a row end the search
WAIT_S = 30.0  # at the end, for trials of a search that was killed: their runs are still saving


def main(arguments: Sequence[str] | None = None) -> int:
    """Run trials until there are as many as asked for, and print the best one.

    Args:
        arguments: of the command line; None: those of this process.

    Returns:
        The exit code: 0; 1 if trials fail one after another; 2 if the arguments are not valid; 128 plus the signal's
        number if a signal stopped the search.
    """
    parser = argparse.ArgumentParser(
        prog=program("tune"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of trainer.run")
    parser.add_argument("--trials", type=int, default=20, help="that end the search, pruned ones too (default: 20)")
    parser.add_argument("--folder", type=Path, required=True, help="of the search: its storage and its runs")
    parser.add_argument("--space", type=Path, help="YAML file with the search space (default: the preset's)")
    parser.add_argument(
        "--pruner", choices=("median", "asha", "none"), default="median",
        help="ends trials early whose evaluations are below the others' (default: median)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="of the sampler (default: random)")
    options = parser.parse_intermixed_args(arguments)
    import_from_here()
    try:
        return _search(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _search(options: argparse.Namespace) -> int:
    try:
        from trainer.tuning import search as searches
        from trainer.tuning import space as spaces
    except ImportError as error:
        raise ConfigError(f"trainer.tune needs Optuna ({error}): pip install optuna") from error
    for key in ("run_dir", "resume"):
        if any(text.startswith(f"{key}=") for text in options.overrides):
            raise ConfigError(f"{key}= is refused: each trial has a folder of its own in --folder")
    if options.trials < 1:
        raise ConfigError(f"--trials {options.trials} must be at least 1")
    space, fixed = spaces.read_space(options.overrides, options.space)
    config = load(fixed).config
    first = spaces.defaults(space, config)
    folder = options.folder.absolute()
    search = searches.open_search(folder, space, fixed, options.trials, options.pruner, options.seed, first)
    for key, distribution in space.items():
        print(f"{key}: {spaces.text_of(distribution)}; default {first.get(key, 'is not in the space')}")
    with StopSignals(leftovers=folder / "none") as stop:
        code = _work(search, fixed, config.evaluator.every_frames, stop)
    searches.write_best(search, fixed)
    best = searches.best(search)
    if best is not None:
        command = shlex.join(["python", "-m", "trainer.run", *fixed, *spaces.arguments_of(best.params)])
        print(f"best: {best.value:g}, {searches.folder_of(search, best)}\n{command}")
    if stop.number:
        print("stopped: the same command goes on with the search")
    return 128 + stop.number if stop.number else code


def _work(search: Any, fixed: list[str], every_frames: int, stop: StopSignals) -> int:
    """Run trials one after another; the exit code."""
    from optuna.trial import TrialState

    from trainer.tuning import search as searches
    from trainer.tuning.space import arguments_of
    from trainer.tuning.trial import run_trial

    failures, patience = 0, time.monotonic() + WAIT_S
    while not stop.number:
        with searches.next_trial(search) as found:
            if found is None:
                others = searches.running(search)
                if others and time.monotonic() < patience:
                    time.sleep(0.5)
                    continue
                if others:
                    print(f"{others} trials are still running elsewhere: the same command shows the result later")
                return 0
            trial, lock = found
            folder, values = searches.folder_of(search, trial), arguments_of(trial.params)
            print(f"trial {trial.number}: {' '.join(values)}", flush=True)
            began = time.monotonic()
            outcome = run_trial(trial, [*fixed, *values], folder, every_frames, lock, lambda: stop.number)
            if outcome.state == "finished":
                search.study.tell(trial, outcome.score)
            elif outcome.state == "pruned":
                search.study.tell(trial, state=TrialState.PRUNED)
            elif outcome.state == "failed":
                trial.set_user_attr("error", outcome.text)
                search.study.tell(trial, state=TrialState.FAIL)
        failures = failures + 1 if outcome.state == "failed" else 0
        score = f" score {outcome.score:g}" if outcome.score is not None else ""
        why = f": {outcome.text}" if outcome.text else ""
        took = time.monotonic() - began
        print(f"trial {trial.number}: {outcome.state}{score} after {took:.0f} s{why}", flush=True)
        searches.write_best(search, fixed)
        if failures >= MOST_FAILURES:
            print(
                f"error: {failures} trials have failed one after another: see {folder.with_suffix('.log')}",
                file=sys.stderr,
            )
            return 1
        patience = time.monotonic() + WAIT_S
    return 0
