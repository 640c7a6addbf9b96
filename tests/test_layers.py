"""The layers of the house: who may import whom, who starts processes, who knows wandb; read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the top down: a part imports parts of lower lines only. A new file of trainer/ is given its place here.
LAYERS = [
    {"run", "eval", "play"},
    {"train"},
    {"final"},
    {"schedules", "building", "saving", "resume", "league", "play_games"},
    {"system", "forkserver", "finished"},
    {"collectors", "evaluators", "tasks", "final_episodes"},
    {"learners", "server", "parts"},
    {"processes"},
    {"shared_device"},
    {"diagnostics", "stacking", "shared", "needs", "seat", "matches", "opponents"},
    {"agents", "priorities", "learning", "replay_copy", "pool", "child"},
    {"algorithms", "acting", "pulse", "replay", "recording", "checkpoint", "telemetry", "trace"},
    {"networks", "metrics", "loggers", "boards", "limiter", "plot", "resources", "run_folder", "compose", "timeline"}
    | {"signals", "errors", "determinism", "seeds", "silence", "scripting", "league_picture", "human"}
    | {"programs", "output"},
    {"validation", "arguments", "blocks", "scratch", "rows", "pictures", "video"},
    {"plausibility"},
    {"consistency", "overrides"},
    {"config"},
    {"machine", "leftovers"},
    {"fields"},
    {"reading", "manifest"},
]
HEIGHT = {part: len(LAYERS) - line for line, parts in enumerate(LAYERS) for part in parts}

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
LIGHT = {  # loaded before the arguments are known to be right
    "reading", "fields", "machine", "config", "overrides", "consistency", "plausibility", "validation", "arguments",
    "compose", "run",
}  # fmt: skip
HEAVY = {"torch", "torchrl", "tensordict", "gymnasium", "numpy", "wandb"}


def imported(path: Path, root: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere, also within functions; ``from a import b`` yields a and a.b."""
    package = path.relative_to(root).parent.parts
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


def part_of(module: str) -> tuple[str, str]:
    """The part of trainer that a dotted name belongs to, and the module within it: processes, learner."""
    pieces = module.split(".")
    return (pieces[1] if len(pieces) > 1 else ""), (pieces[2] if len(pieces) > 2 else "")


def breaches(root: Path) -> list[str]:
    """Every breach of the layers below ``root``, as a sentence."""
    found = []
    for path in sorted(root.glob("envs/**/*.py")):
        for module in imported(path, root):
            if module.split(".")[0] == "trainer":
                found.append(f"{path.relative_to(root)} imports {module}: envs knows nothing of trainer")
    for path in sorted(root.glob("trainer/**/*.py")):
        name = str(path.relative_to(root))
        part, module = part_of(name.removesuffix(".py").replace("/", "."))
        if part == "__init__":
            part = ""
        if part and part not in HEIGHT:
            found.append(f"{name} has no place in LAYERS of tests/test_layers.py")
            continue
        for other in set(imported(path, root)):
            if other.split(".")[0] == "wandb" and name != "trainer/loggers/wandb.py":
                found.append(f"{name} imports wandb: only trainer/loggers/wandb.py does")
            if other.split(".")[0] != "trainer":
                continue
            other_part, other_module = part_of(other)
            if other_part not in HEIGHT:
                continue  # a name out of trainer/__init__.py
            # Processes import one another never; but a local agent is made of a collector's and a learner's part.
            within = other_part == part and (
                part != "processes" or other_module in ("", module) or module == "local_agent"
            )
            if not within and HEIGHT[other_part] >= HEIGHT.get(part, 0):
                found.append(f"{name} imports {other}: imports go downward only")
    for path in sorted([*root.glob("trainer/**/*.py"), *root.glob("envs/**/*.py")]):
        starters = names(path) & STARTERS
        if starters and path != root / "trainer/system.py":
            found.append(f"{path.relative_to(root)} names {', '.join(sorted(starters))}: only system starts processes")
    for part in LIGHT:
        path = root / f"trainer/{part}.py"
        heavy = {module.split(".")[0] for module in imported(path, root)} & HEAVY if path.exists() else set()
        if heavy:
            found.append(
                f"trainer/{part}.py imports {', '.join(sorted(heavy))}: wrong arguments are to be told at once"
            )
    return found


def test_no_lock_stands_between_processes() -> None:
    """Nor a thread beside them: shared memory has one writer for each field instead.

    But for W&B's uploads, and for TorchRL's wait for a worker that takes a dead one's place, while learning goes on.
    """
    banned = {"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Thread", "ThreadPoolExecutor"}
    for path in [*ROOT.glob("trainer/**/*.py"), *ROOT.glob("envs/**/*.py")]:
        allowed = {"Thread"} if path == ROOT / "trainer/collectors.py" else set()
        if path != ROOT / "trainer/loggers/wandb.py":
            assert not names(path) & banned - allowed, path


def test_the_house_keeps_its_layers() -> None:
    assert breaches(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "breach"),
    [
        ("trainer/config.py", "from trainer.replay import x", "trainer/config.py imports trainer.replay"),
        ("trainer/networks.py", "import trainer.metrics", "trainer/networks.py imports trainer.metrics"),
        ("trainer/replay.py", "def f():\n    from trainer import system", "imports trainer.system"),
        ("trainer/eval.py", "from trainer.run import main", "trainer/eval.py imports trainer.run"),
        ("trainer/processes/learner.py", "from .collector import x", "imports trainer.processes.collector"),
        ("trainer/processes/learner.py", "from trainer.processes import collector", "trainer.processes.collector"),
        ("trainer/__init__.py", "from trainer.config import Config", "trainer/__init__.py imports trainer.config"),
        ("trainer/metrics.py", "import wandb.sdk", "trainer/metrics.py imports wandb"),
        ("trainer/newcomer.py", "", "trainer/newcomer.py has no place"),
        ("trainer/processes/collector.py", "import multiprocessing as mp\nmp.Process()", "names Process"),
        (
            "trainer/algorithms/dqn.py",
            "from torchrl.collectors import MultiAsyncCollector",
            "names MultiAsyncCollector",
        ),
        ("envs/vector.py", "from gymnasium.vector import AsyncVectorEnv", "names AsyncVectorEnv"),
        ("envs/spec.py", "from trainer.config import EnvConfig", "envs knows nothing of trainer"),
        ("trainer/config.py", "def f():\n    import torch.nn", "trainer/config.py imports torch"),
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
        ("trainer/system.py", "import multiprocessing as mp\nfrom trainer.processes import collector\nmp.Process()"),
        ("trainer/processes/learner.py", "from trainer.algorithms import build\nfrom ..config import Config"),
        ("trainer/loggers/wandb.py", "import wandb\nfrom .sink import Sink\nfrom trainer.loggers.csv import x"),
        ("trainer/run.py", "from trainer import system, config\nfrom envs.spec import EnvError"),
        ("trainer/algorithms/dqn.py", "from trainer.algorithms.algorithm import Algorithm"),
    ],
)
def test_what_is_allowed_is_let_through(file: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert breaches(tmp_path) == []
