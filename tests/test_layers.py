"""The packages of the house: which may import which, who starts processes, who knows wandb; read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the top down, each with its one job (its `__init__.py` says it): a package imports packages below it only.
PACKAGES = [
    "commands",
    "tuning",
    "comparing",
    "api",
    "training",
    "cluster",
    "shared_gradient",
    "roles",
    "selfplay",
    "learning",
    "telemetry",
    "algorithms",
    "acting",
    "networks",
    "datasets",
    "replay",
    "host",
    "memory",
    "run_folder",
    "sharing",
    "config",
    "reading",  # a file: what reads files, and says of a damaged one what is wrong
    "envs",
]
HEIGHT = {package: len(PACKAGES) - line for line, package in enumerate(PACKAGES)}
# `python -m trainer.run` and the like: nothing but the call of a command.
ENTRIES = {"run", "eval", "play", "plot", "report", "tune", "export_dataset", "push", "league", "timeline", "node"}

# Whatever starts a process or says how one is started.
STARTERS = {
    "Process",
    "Pool",
    "ProcessPoolExecutor",
    "Popen",
    "fork",
    "get_context",
    "set_start_method",
    "set_forkserver_preload",
    "MultiAsyncCollector",
    "MultiSyncCollector",
    "MultiaSyncDataCollector",
    "MultiSyncDataCollector",
    "AsyncVectorEnv",
    "ParallelEnv",
}
# The files that may: one for TorchRL's collector, which starts its workers itself, one for the runs of a search, one
# for the nodes of a cluster, which start on their machines, one for all other processes.
MAY_START = {
    "trainer/training/collectors.py": {"MultiAsyncCollector"},
    "trainer/tuning/trial.py": {"Popen"},
    "trainer/cluster/placing.py": {"Popen"},
    "trainer/training/processes.py": {"Process", "get_context", "set_start_method", "set_forkserver_preload"},
}
LIGHT = [
    "trainer/reading.py",
    "trainer/run.py",
    "trainer/commands/run.py",
    "trainer/config/**/*.py",
    "envs/__init__.py",
    "envs/backends.py",
]  # loaded before the
HEAVY = {"torch", "torchrl", "tensordict", "gymnasium", "numpy", "wandb"}  # arguments are known to be right


def sources(root: Path) -> list[Path]:
    """The files of trainer/ and envs/; trainer/envs is a link to the latter."""
    own = [path for path in root.glob("trainer/**/*.py") if not path.is_relative_to(root / "trainer" / "envs")]
    return sorted([*own, *root.glob("envs/**/*.py")])


def module_of(path: Path, root: Path) -> tuple[str, ...]:
    """The file's name as a module: trainer.learning.update, trainer.envs.vector."""
    pieces = path.relative_to(root).with_suffix("").parts
    return ("trainer", *pieces) if pieces[0] == "envs" else pieces


def imported(path: Path, root: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere, also within functions; `from a import b` yields a and a.b."""
    package = module_of(path, root)[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from [module, *(f"{module}.{alias.name}" for alias in node.names)]


def names(path: Path) -> set[str]:
    """Every name and attribute that a file reads, and every name that it imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
    return found


def breaches(root: Path) -> list[str]:
    """Every breach of the packages' order below `root`, as a sentence."""
    found = []
    for path in sources(root):
        name = str(path.relative_to(root))
        pieces = module_of(path, root)
        package = pieces[1] if pieces[1] != "__init__" else ""
        height = HEIGHT.get(package, len(PACKAGES) + 1 if package in ENTRIES | {""} else 0)
        if package and not height:
            found.append(f"{name} has no place in PACKAGES of tests/test_layers.py")
            continue
        for other in set(imported(path, root)):
            top, *rest = other.split(".")
            if top == "wandb" and name != "trainer/telemetry/loggers/wandb.py":
                found.append(f"{name} imports wandb: only trainer/telemetry/loggers/wandb.py does")
            if top in ("envs", "configs"):
                found.append(f"{name} imports {other}: it is trainer.{top}, as that name may be the user's own")
            if top == "trainer" and rest and rest[0] != package and rest[0] in (HEIGHT.keys() | ENTRIES):
                if HEIGHT.get(rest[0], len(PACKAGES) + 1) >= height:
                    found.append(f"{name} imports {other}: imports go downward only")
        starters = (names(path) & STARTERS) - MAY_START.get(name, set())
        if starters:
            found.append(f"{name} names {', '.join(sorted(starters))}: only {' and '.join(MAY_START)} start processes")
    for path in sorted(path for pattern in LIGHT for path in root.glob(pattern)):
        heavy = {module.split(".")[0] for module in imported(path, root)} & HEAVY
        if heavy:
            name = path.relative_to(root)
            found.append(f"{name} imports {', '.join(sorted(heavy))}: wrong arguments are to be told at once")
    return found


def arrows(root: Path) -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {}
    for path in sources(root):
        package = module_of(path, root)[1]
        for other in imported(path, root):
            top, *rest = other.split(".")
            if top == "trainer" and rest and rest[0] in HEIGHT and rest[0] != package:
                found.setdefault(package, set()).add(rest[0])
    return found


def test_no_lock_stands_between_processes() -> None:
    """Nor a thread beside them: shared memory has one writer for each field instead.

    But for W&B's uploads, TorchRL's wait for a worker that takes a dead one's place, while learning goes on,
    batches that are gathered while the updater works on others, parts of an update beside each other, and the end of a
    program that does not end by itself.
    """
    threads = {"trainer/training/collectors.py": {"Thread"}, "trainer/learning/feed.py": {"ThreadPoolExecutor"}}
    threads["trainer/learning/threads.py"] = {"ThreadPoolExecutor"}
    threads["trainer/host/leaving.py"] = {"Thread"}
    banned = {"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Thread", "ThreadPoolExecutor"}
    for path in sources(ROOT):
        allowed = threads.get(str(path.relative_to(ROOT)), set())
        if path != ROOT / "trainer/telemetry/loggers/wandb.py":
            assert not names(path) & banned - allowed, path


def test_imports_go_downward_only() -> None:
    assert breaches(ROOT) == []


def test_every_package_says_its_job_and_the_top_level_holds_commands_only() -> None:
    for package in PACKAGES:
        if (ROOT / "trainer" / package).is_dir():
            assert ast.get_docstring(ast.parse((ROOT / "trainer" / package / "__init__.py").read_text())), package
    assert {path.stem for path in (ROOT / "trainer").glob("*.py")} == ENTRIES | {"__init__", "reading"}


@pytest.mark.parametrize(
    ("file", "source", "breach"),
    [
        ("trainer/config/sections.py", "from trainer.replay.streams import x", "imports trainer.replay.streams"),
        ("trainer/networks/a.py", "import trainer.telemetry.metrics", "imports trainer.telemetry.metrics"),
        ("trainer/replay/a.py", "def f():\n    from trainer.training import system", "imports trainer.training.system"),
        ("trainer/replay/a.py", "from ..training import system", "imports trainer.training.system"),
        ("trainer/commands/eval.py", "from trainer.run import main", "imports trainer.run"),
        ("trainer/telemetry/metrics.py", "import wandb.sdk", "trainer/telemetry/metrics.py imports wandb"),
        ("trainer/newcomer.py", "", "trainer/newcomer.py has no place"),
        ("trainer/new/comer.py", "", "trainer/new/comer.py has no place"),
        ("trainer/roles/collector.py", "import multiprocessing as mp\nmp.Process()", "names Process"),
        ("trainer/training/system.py", "import multiprocessing as mp\nmp.Process()", "names Process"),
        ("trainer/training/collectors.py", "import multiprocessing as mp\nmp.Process()", "names Process"),
        (
            "trainer/algorithms/dqn.py",
            "from torchrl.collectors import MultiAsyncCollector",
            "names MultiAsyncCollector",
        ),
        ("envs/vector.py", "from gymnasium.vector import AsyncVectorEnv", "names AsyncVectorEnv"),
        ("envs/spec.py", "from trainer.config.sections import EnvConfig", "envs/spec.py imports trainer.config"),
        ("trainer/roles/collector.py", "import envs", "imports envs: it is trainer.envs"),
        ("trainer/config/sections.py", "def f():\n    import torch.nn", "trainer/config/sections.py imports torch"),
    ],
)
def test_breach_is_found(file: str, source: str, breach: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert breach in "\n".join(breaches(tmp_path))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "trainer/training/processes.py",
            "import multiprocessing as mp\nfrom trainer.roles import collector\nmp.Process()",
        ),
        ("trainer/training/collectors.py", "from torchrl.collectors import MultiAsyncCollector"),
        ("trainer/roles/learner.py", "from trainer.algorithms import build\nfrom ..config.sections import Config"),
        ("trainer/telemetry/loggers/wandb.py", "import wandb\nfrom .sink import Sink"),
        ("trainer/commands/run.py", "from trainer.config import sections\nfrom trainer.envs.spec import EnvError"),
        ("trainer/run.py", "from trainer.commands.run import main"),
        ("trainer/algorithms/dqn.py", "from trainer.algorithms.algorithm import Algorithm"),
        ("envs/vector.py", "from trainer.envs.spec import EnvSpec"),
    ],
)
def test_what_is_allowed_is_let_through(file: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert breaches(tmp_path) == []


def test_no_child_process_imports_matplotlib() -> None:
    """It takes half a second of a core, which the final evaluation of each run paid."""
    modules = {".".join(module_of(path, ROOT)).removesuffix(".__init__"): path for path in sources(ROOT)}
    todo = [name for name in modules if name.startswith(("trainer.roles", "trainer.shared_gradient"))]
    reached = set(todo)
    while todo:
        for node in ast.parse(modules[todo.pop()].read_text()).body:  # what is imported at once, not when it is called
            names_of = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names_of += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names_of += [f"{name}.{alias.name}" for name in names_of for alias in getattr(node, "names", [])]
            assert not any(name.split(".")[0] == "matplotlib" for name in names_of)
            new = {name for name in names_of if name in modules} - reached
            reached |= new
            todo += new
    assert len(reached) > 80
