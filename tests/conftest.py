"""One thread for each process, as in a run, and what the tests of whole runs share.

Several processes with two torch threads each slow one another down 10 times.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import subprocess

gc.disable()  # until all tests are imported: looking for garbage is a quarter of the time of imports

# A shell ignores SIGINT in what it starts in the background, and so would every run that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
    os.environ[_name] = "1"  # before torch is imported

from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import ExitStack  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

from trainer.config.algorithms import section_of  # noqa: E402
from trainer.config.sections import Config  # noqa: E402

SMALL: dict[str, dict[str, Any]] = {
    "env": {"id": "Counting", "backend": "counting"},
    "algorithm": {"hidden_sizes": [16]},
    "collector": {"num_workers": 2, "envs_per_worker": 4, "epsilon_decay_frames": 600},
    "replay": {"capacity_frames": 4_000},
    "learner": {"device": "cpu", "batch_size": 32, "warmup_frames": 200},
    "schedule": {"frames_per_update": 4.0, "tolerance_frames": 64, "frames_per_round": 128},
    "evaluator": {"every_frames": 0, "episodes": 4, "final_episodes": 2, "num_envs": 2},
    "logger": {"terminal": "none", "every_seconds": 0.1},
    "faults": {"max_failures": 0},  # a test that wants to see a worker come again says so
}

# The files that take longest begin first, so that no worker of pytest-xdist ends long after the others.
LONGEST = (
    "test_jobs.py", "test_agents.py", "test_resume.py", "test_shared.py", "test_resume_exactly.py", "test_faults.py",
    "test_shutdown.py", "test_config_refusals.py", "test_shared_device.py", "test_family.py", "test_rows.py",
    "test_games.py", "test_final.py", "test_programs.py", "test_wheel.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the front; within a file, and among all others, the order stays."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among all that was imported."""
    gc.freeze()
    gc.enable()


# Where the main of each program stands; `python -m trainer.run` is a thin file that calls it.
MAINS = {
    "trainer.run": "trainer.commands.run",
    "trainer.eval": "trainer.commands.eval",
    "trainer.plot": "trainer.commands.plot",
}


@dataclass(frozen=True)
class Called:
    """What a program's main gave and wrote.

    Args:
        code: its exit code.
        out: what it wrote on stdout.
        err: what it wrote on stderr.
    """

    code: int
    out: str
    err: str


@pytest.fixture
def call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """`call("seed=3", module="trainer.run")`: the real main, in the test's process.

    A process of its own spends some five seconds of a core on imports, and its fork server as many; the runs of one
    test process share its fork server. `cwd` is where it runs, the test's folder by default.
    """

    def start(*words: str, module: str = "trainer.run", cwd: Path | None = None, timeout: float = 120) -> Called:
        main = importlib.import_module(MAINS[module]).main

        def too_long(*_: object) -> None:
            raise TimeoutError(f"{module} {' '.join(words)} took more than {timeout} s")

        capfd.readouterr()
        before = signal.signal(signal.SIGALRM, too_long)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(cwd or tmp_path)
                patch.setenv("COLUMNS", "200")
                code = main(list(words))
        except SystemExit as end:  # argparse's own refusals, and a sweep's end
            code = int(end.code or 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return Called(code, *capfd.readouterr())

    return start


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, str], None]]:
    """`small_disk(folder, "size=1m")` mounts a small disk there, until the test has ended."""
    folders: list[Path] = []

    def mount(folder: Path, options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder]).returncode:
            pytest.skip("only root may mount a small disk")
        folders.append(folder)

    yield mount
    for folder in folders:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """Makes a configuration of 2 workers x 4 environments; `schedule={"name": "sync"}` changes keys of a section."""

    def make(run_dir: Path, seed: int = 0, budget_frames: int = 1_000, **sections: dict[str, Any]) -> Config:
        config = Config(preset="generic", seed=seed, budget_frames=budget_frames, run_dir=str(run_dir))
        chosen = sections.get("algorithm", {}).get("name", config.algorithm.name)
        config = replace(config, algorithm=section_of(config.algorithm, chosen))
        changed = {
            section: replace(getattr(config, section), **{**SMALL.get(section, {}), **sections.get(section, {})})
            for section in {*SMALL, *sections}
        }
        return replace(config, **changed)

    return make


@pytest.fixture
def small_config(make_config: Callable[..., Config], tmp_path: Path) -> Callable[..., Config]:
    """The same for a run in the test's own folder."""
    return lambda name="run", **changes: make_config(tmp_path / name, **changes)


@pytest.fixture(scope="session", autouse=True)
def declared_rows() -> Iterator[None]:
    """No run of any test writes a figure that `trainer.telemetry.rows` does not declare, or one of another type."""
    from trainer.telemetry import rows
    from trainer.telemetry.loggers import Loggers
    from trainer.telemetry.loggers.sink import plain_value

    write = Loggers.write

    def checked(self: Loggers, row: rows.Row) -> None:
        assert rows.faults({key: plain_value(value) for key, value in row.items()}) == []
        write(self, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loggers, "write", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_folders() -> Iterator[None]:
    """No run in a test's process waits for the disk or asks git again: some 0.15 s less of each of hundreds of runs."""
    from trainer.run_folder import folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(folder, "_git", functools.cache(folder._git))
        yield


DRAWN = {"test_plot.py", "test_curve.py", "test_system.py"}  # whose tests look at curves


@pytest.fixture(scope="session", autouse=True)
def blank_curves() -> Iterator[Callable[..., str]]:
    """The curve of a run is read as always and drawn blank, which takes a quarter of a second less of each run."""
    from matplotlib.figure import Figure

    from trainer.config.run_files import RunFolder
    from trainer.telemetry import pictures, plot, rows

    drawn = plot.curve

    def blank(run_dir: Path | str) -> str:
        problem = rows.read(Path(run_dir))[1]
        pictures.save(Figure((1, 1)), RunFolder(Path(run_dir)).curve)
        return problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot, "curve", blank)
        yield drawn


@pytest.fixture(autouse=True)
def drawn_curves(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, blank_curves: Callable[..., str]
) -> None:
    """Curves are drawn in the tests of `DRAWN`."""
    if request.path.name in DRAWN:
        from trainer.telemetry import plot

        monkeypatch.setattr(plot, "curve", blank_curves)


@pytest.fixture(scope="session")
def real_run(make_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with evaluations, whose rows the tests of what reads rows share; nobody changes it.

    CartPole for 3,000 frames in rounds: training begins at 200, an evaluation comes after each fifth hundred.
    """
    from trainer.training.train import train

    config = make_config(
        tmp_path_factory.mktemp("real") / "run", seed=7, budget_frames=3_000,
        env={"id": "CartPole-v1", "backend": "gymnasium"}, collector={"num_workers": 1}, schedule={"name": "sync"},
        learner={"learning_rate": 3e-3},
        evaluator={"every_frames": 500, "episodes": 3, "final_episodes": 5, "num_envs": 3},
    )  # fmt: skip
    train(config, ["test"])
    return Path(str(config.run_dir))


@pytest.fixture(scope="session")
def real_rows(real_run: Path) -> list[dict[str, Any]]:
    """Its rows, as they stand in RUN/metrics.jsonl."""
    return [json.loads(line) for line in (real_run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def game_run(make_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of tic-tac-toe with a few snapshots; whoever changes it makes a copy."""
    from trainer.training.train import train

    config = make_config(
        tmp_path_factory.mktemp("game") / "run", budget_frames=1_500, env={"id": "tictactoe", "backend": "game"},
        opponents={"snapshot_every_frames": 300, "pool_size": 3, "scripted": 0.2}, schedule={"name": "sequential"},
        evaluator={"league_games": 5},
    )  # fmt: skip
    train(config, ["test"])
    return Path(str(config.run_dir))


@pytest.fixture
def started() -> Iterator[Callable[[Config], Any]]:
    """Builds and starts a system as `trainer.training.train.train` does, and closes it at the test's end."""
    import torch

    from trainer import envs
    from trainer.host.signals import StopSignals
    from trainer.run_folder import folder as run_folder
    from trainer.telemetry.loggers import RunInfo, open_loggers
    from trainer.training import building

    opened: list[Any] = []
    folders = ExitStack()

    def start(config: Config) -> Any:
        torch.manual_seed(config.seed)
        world = envs.describe_world(config.env)
        run_dir, config = folders.enter_context(run_folder.opened(config, ["test"]))
        workers = config.collector.num_workers
        assert workers is not None
        budget = config.budget_frames
        info = RunInfo(run_dir, config.env.id, "dqn", config.seed, budget, {}, workers, workers, "cpu")
        scratch, loggers = run_dir / "scratch", open_loggers(config.logger, info)
        stop = StopSignals(leftovers=scratch)
        opened.append(building.build(config, run_dir, world, torch.device("cpu"), scratch, loggers, stop))
        opened[-1].start()
        return opened[-1]

    yield start
    for parts in opened:
        parts.close()
        parts.loggers.close({})
    folders.close()
