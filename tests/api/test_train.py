"""`trainer.train` from wherever Python runs: a test, a thread, a script with and without a main guard, from stdin."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer

ROOT = Path(__file__).parent.parent.parent
SMALL = [
    "env.id=CartPole-v1", "preset=generic", "budget_frames=600", "collector.num_workers=1",
    "collector.envs_per_worker=4", "learner.device=cpu", "learner.warmup_frames=100", "learner.batch_size=32",
    "algorithm.hidden_sizes=[16]", "replay.capacity_frames=1000", "evaluator.every_frames=0",
    "evaluator.final_episodes=2", "logger.terminal=none", "schedule.tolerance_frames=64",
]  # fmt: skip
CALL = f"run = trainer.train(*{SMALL!r}, run_dir=RUN)\nprint(run.summary['status'])\n"
GUARDED = 'if __name__ == "__main__":\n    ' + CALL.replace("\n", "\n    ")


def python(*words: str, cwd: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, input=text, timeout=300
    )


def state_of_process() -> dict[str, Any]:
    """What a run changes of its process; whether denormal numbers are kept is one of it."""
    return {
        "method": multiprocessing.get_start_method(allow_none=True), "threads": torch.get_num_threads(),
        "signals": {number: signal.getsignal(number) for number in (2, 10, 14, 15)}, "folder": os.getcwd(),
        "libraries": os.environ.get("MKL_NUM_THREADS"), "denormal": float(torch.tensor(1e-40) * 1),
    }  # fmt: skip


def test_it_trains_twice_in_a_process_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    before = state_of_process()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    drawn = (
        random.Random(1).random(),
        np.random.RandomState(1).random(),
        torch.rand(1, generator=torch.Generator().manual_seed(1)),
    )
    for schedule in ("async", "sequential"):
        run = trainer.train(*SMALL, f"schedule={schedule}", run_dir=tmp_path / schedule)
        assert run.path == tmp_path / schedule
        assert run.summary["status"] == "finished" and run.summary["frames"] >= 600
        assert run.commands[0].startswith("trainer run env.id=CartPole-v1 ")
    assert state_of_process() == before
    assert (random.random(), np.random.random(), torch.rand(1)) == drawn


def test_it_trains_in_a_thread_which_leaves_signals_alone(tmp_path: Path) -> None:
    found: list[trainer.Run] = []
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    mine = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    class Look:
        def on_row(self, run: Any, row: Any) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))

    try:
        thread = threading.Thread(
            target=lambda: found.append(trainer.train(*SMALL, run_dir=tmp_path / "run", callbacks=[Look()]))
        )
        thread.start()
        thread.join(120)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert found and found[0].summary["status"] == "finished"
    assert set(seen) == {mine}


def test_errors_are_exceptions(tmp_path: Path) -> None:
    with pytest.raises(trainer.ConfigError, match="there is no key learner.lr; the nearest is learner.learning_rate"):
        trainer.train("learner.lr=1")
    with pytest.raises(trainer.EnvError, match="no environment of that id is registered"):
        trainer.train(*SMALL, "env.id=Nothing-v0", "schedule=sequential", run_dir=tmp_path / "none")
    run = trainer.train(*SMALL, "schedule=sequential", run_dir=tmp_path / "a=b,c")  # read as it is typed
    assert run.path == tmp_path / "a=b,c"
    with pytest.raises(trainer.ConfigError, match="holds a run already"):
        trainer.train(*SMALL, "schedule=sequential", run_dir=run.path)
    with pytest.warns(UserWarning, match="is finished: raise budget_frames above 600"):
        assert trainer.train(f'resume="{run.path}"').summary == run.summary
    more = trainer.train(f'resume="{run.path}"', "budget_frames=800", "logger.terminal=none")
    assert more.path == run.path and more.summary["frames"] >= 800


def test_a_signal_stops_the_run_and_then_reaches_the_program(tmp_path: Path) -> None:
    class Interrupt:
        sent = 0

        def on_row(self, run: Any, row: Any) -> None:
            if not self.sent:  # a second one would end the process at once
                self.sent = 1
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.train(
            *SMALL, "schedule=sequential", "budget_frames=100_000", "logger.every_seconds=0.1",
            run_dir=tmp_path / "run", callbacks=[Interrupt()],
        )  # fmt: skip
    summary = trainer.load(tmp_path / "run").summary
    assert (summary["status"], summary["reason"]) == ("stopped", "signal SIGINT")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    class Another:
        def on_row(self, run: Any, row: Any) -> None:
            trainer.train(*SMALL, run_dir=tmp_path / "second")

    with pytest.raises(trainer.RunFailed, match="ConfigError: a run goes on in this process"):
        trainer.train(*SMALL, "schedule=sequential", run_dir=tmp_path / "run", callbacks=[Another()])


def test_importing_the_library_is_cheap(tmp_path: Path) -> None:
    code = (
        "import sys, trainer; trainer.ConfigError; print([name for name in ('torch', 'numpy', 'hydra', 'gymnasium') "
        "if name in sys.modules]); print('train' in dir(trainer))"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "[]\nTrue\n", done.stderr
    assert trainer.__all__ == sorted(trainer.__all__)
    with pytest.raises(AttributeError, match="module 'trainer' has no attribute 'tain'"):
        trainer.tain  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("how", ["guarded", "stdin", "-c"])
def test_scripts(how: str, tmp_path: Path) -> None:
    script = "import trainer\nRUN = 'run'\n" + (GUARDED if how == "guarded" else CALL)
    (tmp_path / "script.py").write_text(script)
    words = {"guarded": ("script.py",), "stdin": ("-",), "-c": ("-c", script)}[how]
    done = python(*words, cwd=tmp_path, text=script if how == "stdin" else None)
    assert done.stdout.endswith("finished\n"), done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import trainer\nRUN = 'run'\n" + CALL)
    done = python("script.py", cwd=tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("trainer.config.fields.ConfigError: trainer.train is called outside of a main guard in ")
    assert last.endswith('put the call, and what follows it, under the line if __name__ == "__main__":')
    assert done.stderr.count("Traceback") <= 3 and not (tmp_path / "run").exists()
