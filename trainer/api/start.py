"""`trainer.train`: a run from a script, a notebook, standard input, a thread or a test.

A run changes its process: signals, the way in which processes are started, threads, random generators. What the caller
can notice is put back when the run has ended. The fork server stays, so the next run in the process starts faster.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trainer.config.fields import ConfigError

if TYPE_CHECKING:
    from trainer.api.run import Run

_going_on: list[str] = []  # environment of the run of this process, if there is one
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # variables that a run sets for its children


def train(*overrides: str, run_dir: str | os.PathLike[str] | None = None, callbacks: Sequence[Any] = ()) -> Run:
    """Train, wait for the end, and return the run.

    Args:
        overrides: `KEY=VALUE` and `GROUP=NAME`, the words of the command line: `"preset=lunarlander"`,
            `"learner.learning_rate=1e-3"`, `"resume=runs/a"`.
        run_dir: the run's folder; None: as the overrides say, else a new one in runs/.
        callbacks: objects with methods of `trainer.Callback`.

    Returns:
        The run that has ended. It was stopped by a callback or reached its target if `run.summary["reason"]` says so.

    Raises:
        ConfigError: the configuration is not valid, or another run goes on in this process; nothing was started.
        EnvError: the environment could not be made, or training on it is not possible.
        RunFailed: a process died too often, a callback raised, or the loss was not finite; there is a checkpoint if
            training had begun. The run's folder can be read by `trainer.load`.
        KeyboardInterrupt: Ctrl-C stopped the run, which has been saved; so do other signals, by their own handlers.
    """
    from trainer.config.arguments import quoted

    _refuse_child()
    arguments = [str(word) for word in overrides]
    if run_dir is not None:
        arguments.append(f"run_dir={quoted(os.fspath(run_dir))}")
    from trainer.api.run import Run
    from trainer.config.compose import load

    loaded = load(arguments)
    for text in loaded.warnings:
        warnings.warn(text, stacklevel=2)
    folder = loaded.config.run_dir
    if loaded.finished:
        warnings.warn(loaded.finished, stacklevel=2)
    else:
        if loaded.config.logger.terminal != "none":
            print(f"preset {loaded.config.preset} ({loaded.preset_reason})", flush=True)
        summary, folder = _trained(loaded.config, ["trainer", "run", *arguments], callbacks)
        if summary["stop_signal"]:
            signal.raise_signal(summary["stop_signal"])  # now to the handler of the program that called this
    assert folder is not None
    return Run(Path(folder))


def _trained(config: Any, command: list[str], callbacks: Sequence[Any]) -> tuple[dict[str, Any], str]:
    """Summary and folder of a run in this process, which afterwards is as it was before."""
    from trainer.host.errors import RunFailed

    if _going_on:
        raise ConfigError("a run goes on in this process: wait for its end, or start this one in a process of its own")
    folder: list[str] = []
    told = SimpleNamespace(on_end=lambda run, summary: folder.append(str(run.run_dir)))
    with _process_as_it_was():
        from trainer.training.train import train as run  # imports TorchRL, which chooses a start method

        _going_on.append(config.env.id)
        try:
            summary = run(config, command, [*callbacks, told])
        except RunFailed as error:
            if error.traceback and hasattr(error, "add_note"):
                error.add_note(f"traceback of the {error.role}:\n{error.traceback}")
            raise
        finally:
            _going_on.clear()
    return summary, folder[0]


def _refuse_child() -> None:
    """Refuse to train in a process that is importing its parent's main module, as a script without a main guard does.

    Raises:
        ConfigError: in a process that the user started.
    """
    from trainer.host import unguarded

    if unguarded.importing_main():
        unguarded.leave_if_child_of_run()
        raise ConfigError(unguarded.sentence())


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Put back, at the end of the context, what a run changes of its process."""
    import torch

    from trainer.host import seeds
    from trainer.training.processes import same_start_method

    here = os.getcwd()
    variables = {name: os.environ.get(name) for name in THREADS}
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    keeps_denormals = bool(torch.tensor(1e-40) * 1.0 > 0)
    with ExitStack() as undo:
        undo.callback(_set_variables, variables)
        undo.callback(torch.set_flush_denormal, not keeps_denormals)
        undo.callback(torch.use_deterministic_algorithms, strict)
        undo.callback(torch.set_num_threads, threads)
        undo.enter_context(same_start_method())
        undo.callback(os.chdir, here)  # an environment in this process may have changed it
        undo.enter_context(seeds.apart({}))
        undo.enter_context(_main_that_can_be_imported())
        yield


def _set_variables(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _main_that_can_be_imported() -> Iterator[None]:
    """Hide the path of a main module that is no file, as that of a script from standard input: children import it."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or os.path.exists(path):
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = path
